"""Adversaries: simulated clients that send something else than what they trained.

They are a part of the population, for comparisons of robust algorithms. Whether a client is an adversary is a
draw that depends only on the seed and the client, so that all algorithms meet the same ones.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field, NonNegativeInt, PositiveInt

from tardigrad.algorithms.layers import ADVERSARY_MEMORY, UploadLayer
from tardigrad.core.draws import Draws, uniform
from tardigrad.core.setting import Setting, by_name
from tardigrad.core.tensor_names import strip_prefix
from tardigrad.core.upload import Task, Upload, Vectors
from tardigrad.data.trigger import Trigger
from tardigrad.errors import RunError

LARGEST = 1e12
"""The greatest strength. Uploads that are so many times longer, their sums and their squares are finite in
float32."""
Strength = Annotated[float, Field(gt=0, le=LARGEST)]


class _Adversary(Setting):
    share: float = Field(default=0.2, ge=0, le=1)
    """The chance of each client to be an adversary."""

    @abstractmethod
    def sent(self, change: Vectors, kept: Vectors) -> Vectors:
        """Return what an adversary sends in place of its upload. Both are as the algorithm's client half has
        them, except that a model is its change: start minus end. `kept`: what the adversary keeps between its
        trips, which may be changed; it is forgotten if the upload is not accepted."""


class SignFlip(_Adversary):
    """Sends minus its upload, times `strength`: training goes backwards.

    >>> SignFlip(strength=2.0).sent({"delta": torch.tensor([1.0, -3.0])}, {})
    {'delta': tensor([-2.,  6.])}
    """

    kind: Literal["sign_flip"] = "sign_flip"
    strength: Strength = 1.0
    """How many times longer than an honest upload."""

    def sent(self, change: Vectors, kept: Vectors) -> Vectors:
        return {name: -self.strength * vector for name, vector in change.items()}


class Scaled(_Adversary):
    """Sends its upload times `strength`, so that it counts for many clients (model replacement)."""

    kind: Literal["scaled"] = "scaled"
    strength: Strength = 10.0
    """How many times longer than an honest upload."""

    def sent(self, change: Vectors, kept: Vectors) -> Vectors:
        return {name: self.strength * vector for name, vector in change.items()}


class StaleReplay(_Adversary):
    """Sends its first upload that counted again at every trip, as if it were new."""

    kind: Literal["stale_replay"] = "stale_replay"

    def sent(self, change: Vectors, kept: Vectors) -> Vectors:
        if not kept:
            kept.update({name: vector.clone() for name, vector in change.items()})
        return {name: kept[name].clone() for name in change}


class FreeRider(_Adversary):
    """Does no work and sends zeros, to get the model for nothing."""

    kind: Literal["free_rider"] = "free_rider"

    def sent(self, change: Vectors, kept: Vectors) -> Vectors:
        return {name: torch.zeros_like(vector) for name, vector in change.items()}


class Backdoor(_Adversary):
    """Trains on some examples that have a trigger and a wrong label, and sends the upload times `strength`.

    The model is to answer with the class `target` whenever it sees the trigger, a bright square in the corner
    of an image, and otherwise as if nothing had happened. Evaluations have the metric `attack_success`.
    """

    kind: Literal["backdoor"] = "backdoor"
    strength: Strength = 1.0
    """How many times longer than what it trained."""
    target: NonNegativeInt = 0
    """The class that the trigger is to give."""
    poisoned: float = Field(default=0.5, gt=0, le=1)
    """Share of an adversary's examples that have the trigger, and `target` as their label."""
    trigger_size: PositiveInt = 3
    """Rows and columns of the square, in pixels."""

    @property
    def trigger(self) -> Trigger:
        """The pattern, and the class that it is to give."""
        return Trigger(self.trigger_size, self.target)

    def sent(self, change: Vectors, kept: Vectors) -> Vectors:
        return {name: self.strength * vector for name, vector in change.items()}


Adversaries = Annotated[
    SignFlip | Scaled | StaleReplay | FreeRider | Backdoor, Field(discriminator="kind"), by_name
]


class AdversaryLayer(UploadLayer):
    """Changes the uploads of adversaries before all other layers, as clients that lie do: privacy still clips
    them, an encoding still encodes them, and masks still hide them."""

    name: ClassVar[str] = "adversaries"

    def __init__(self, adversary: Adversaries, seed: int, must_be_finite: bool = False) -> None:
        """`must_be_finite`: whether a layer above ends the run if an upload is not finite."""
        self._adversary, self._must_be_finite = adversary, must_be_finite
        self._draws = Draws(seed, "adversary", uniform)

    def lies(self, client: int) -> bool:
        """Return whether a client is an adversary."""
        return self._draws[client] < self._adversary.share

    def client(self, upload: Upload, task: Task, memory: Vectors) -> Upload:
        assert isinstance(task.client, int), "clients are numbered in a simulation"
        if not self.lies(task.client):
            return upload
        start = task.vectors["model"]
        change = {name: start - v if name == "model" else v for name, v in upload.vectors.items()}
        kept = strip_prefix(ADVERSARY_MEMORY, memory)
        sent = self._adversary.sent(change, kept)
        memory |= {f"{ADVERSARY_MEMORY}{name}": vector for name, vector in kept.items()}
        vectors = {name: start - v if name == "model" else v for name, v in sent.items()}
        if self._must_be_finite and not all(torch.isfinite(v).all() for v in vectors.values()):
            raise RunError(
                f"trip {task.trip} of client {task.client}, which is an adversary ({self._adversary.kind}): "
                "what it sends is not finite, so that it cannot be encoded; lower adversaries.strength, or "
                "leave encodings and masks out"
            )
        return replace(upload, vectors=vectors)
