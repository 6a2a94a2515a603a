"""Canaries of a secure run: clients that upload their own direction, whose uploads nobody else can replace.

On a server that sees uploads, the auditor replaces those of canaries. Here the canaries are clients: they
send what the auditor gives them, through the same rounding and masks. What the auditor looks at is what is
released, which is what the server knows and what models are made of.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar

from torch import Tensor

from tardigrad.algorithms.layers import Surroundings, UploadBuffer, UploadLayer
from tardigrad.core.outcomes import Accepted
from tardigrad.core.upload import Task, Upload, Vectors
from tardigrad.privacy.guarantee import Guarantee
from tardigrad.privacy.layers.canaries import Auditor, Canaries
from tardigrad.privacy.layers.clip import ClipLayer
from tardigrad.secure.masked_grid import MaskedGridLayer
from tardigrad.secure.policy_of_run import SecureRun
from tardigrad.secure.simulated_helpers import SimulatedHelpers


class EnrolledCanaryLayer(UploadLayer):
    """Gives canaries, which are clients, what they upload."""

    name: ClassVar[str] = "enrolled canaries"

    def __init__(self, auditor: Auditor) -> None:
        self._auditor = auditor

    def begin(self, surroundings: Surroundings, extras: dict[str, int]) -> None:
        self._auditor.begin(surroundings, extras)
        self._device = surroundings.device

    def client(self, upload: Upload, task: Task, memory: Vectors) -> Upload:
        sent = self._auditor.sent_by(task.client, self._device)
        return upload if sent is None else replace(upload, vectors=sent)


class AuditedGridLayer(MaskedGridLayer):
    """A masked grid whose auditor knows what all clients but the canaries add to a sum."""

    def __init__(
        self, run: SecureRun, trip_seed: Callable[[int], int], helpers: SimulatedHelpers, auditor: Auditor
    ) -> None:
        super().__init__(run.grid, run.algorithm, trip_seed, run.guarantee, helpers, run.sealed_bytes)
        self._auditor = auditor
        self._sent: dict[int, Vectors] = {}  # of uploads that are not added yet, by trip

    def hidden(self, trip: int, codes: Vectors) -> Vectors:
        self._sent[trip] = codes
        return super().hidden(trip, codes)

    def add(self, buffer: UploadBuffer, delivery: Accepted, upload: Upload, start: Tensor) -> Upload:
        codes = self._sent.pop(delivery.trip)
        self._auditor.know(
            delivery, {name: part.double() * self.encoding.step for name, part in codes.items()}, within=False
        )
        return super().add(buffer, delivery, upload, start)


def audited_layers(
    run: SecureRun,
    guarantee: Guarantee,
    trip_seed: Callable[[int], int],
    helpers: SimulatedHelpers,
    canaries: Canaries,
) -> list[UploadLayer]:
    """Return the layers of an audited secure run. Its noise is that of all helpers together."""
    all_noise = replace(guarantee, overhead=guarantee.overhead * math.sqrt(run.secure.helper_count))
    auditor = Auditor(canaries, all_noise, ClipLayer(guarantee.clip))
    grid = AuditedGridLayer(run, trip_seed, helpers, auditor)
    return [EnrolledCanaryLayer(auditor), grid, auditor.watch]
