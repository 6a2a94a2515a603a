"""The helpers of a simulation: they keep the seeds of uploads, and release the sum of a batch's masks less
their noise, as real ones do, in this process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict, cast

import numpy as np
from torch import Tensor

from tardigrad.core.tensor_names import strip_prefix
from tardigrad.core.upload import Vectors
from tardigrad.secure.batches import too_few
from tardigrad.secure.integer_noise import IntegerNoise, StepKeys
from tardigrad.secure.masks import UNSIGNED, Codes, masked, new_seeds, salted, weighted_masks
from tardigrad.secure.policy import Policy


class HelpersState(TypedDict):
    """The contents of a snapshot of the helpers, besides the tensors."""

    members: list[tuple[list[str], int]]
    """For each upload in the open batch: its seeds in hexadecimal, and its staleness."""
    noise: list[dict[str, object]]
    """The state of each helper's noise."""


class SimulatedHelpers:
    """All helpers of a run."""

    def __init__(self, policy: Policy, masks: bool, keys: StepKeys | None = None) -> None:
        """`masks`: whether uploads are masked; without masks all numbers are the same. `keys`: where the
        noise comes from, as for `IntegerNoise`."""
        self.policy, self._masks = policy, masks
        self._seeds: dict[int, tuple[bytes, ...]] = {}  # of uploads that have left their clients, by trip
        self._members: list[tuple[tuple[bytes, ...], int]] = []  # seeds and staleness, of the open batch
        self._noise = [
            IntegerNoise(policy.noise, sum(policy.lengths), helper, keys)
            for helper in range(len(policy.helpers))
            if policy.noise is not None
        ]

    def masked(self, trip: int, vectors: Vectors) -> Vectors:
        """Return the codes of an upload with a mask of each helper, and a salt."""
        if not self._masks:
            return salted(vectors)
        self._seeds[trip] = new_seeds(len(self.policy.helpers))
        return masked(vectors, self._seeds[trip], self.policy.bits)

    def admit(self, trip: int, staleness: int) -> None:
        """Put an upload into the open batch."""
        self._members.append((self._seeds.pop(trip, ()), staleness))

    def close(self, version: int) -> Codes | None:
        """Return the sum of what all helpers release for the step from this version, modulo 2^bits; None if
        too few clients would hide each other."""
        policy, members, self._members = self.policy, self._members, []
        noise = [one.draw(version) for one in self._noise]
        if too_few(policy, (policy.weight(staleness) for _, staleness in members)):
            return None
        released = self._mask_sum(members)
        for one in noise:
            released -= one.astype(released.dtype)
        return released

    def _mask_sum(self, members: Sequence[tuple[tuple[bytes, ...], int]]) -> Codes:
        policy = self.policy
        if not self._masks:
            return np.zeros(sum(policy.lengths), UNSIGNED[policy.bits])
        seeds = ((seed, policy.weights(staleness)) for own, staleness in members for seed in own)
        return weighted_masks(seeds, policy.lengths, policy.bits)

    def snapshot(self) -> tuple[dict[str, Tensor], HelpersState]:
        """Return the state: tensors, and the rest as JSON."""
        tensors: dict[str, Tensor] = {}
        documents = []
        for helper, noise in enumerate(self._noise):
            more, document = noise.snapshot()
            tensors |= {f"helper/{helper}/{name}": value for name, value in more.items()}
            documents.append(document)
        members = [([seed.hex() for seed in seeds], staleness) for seeds, staleness in self._members]
        return tensors, {"members": members, "noise": documents}

    def restore(self, tensors: dict[str, Tensor], document: object) -> None:
        """Continue from a `snapshot()`."""
        state = cast(HelpersState, document)
        self._members = [
            (tuple(map(bytes.fromhex, seeds)), staleness) for seeds, staleness in state["members"]
        ]
        for helper, noise in enumerate(self._noise):
            noise.restore(strip_prefix(f"helper/{helper}/", tensors), state["noise"][helper])
