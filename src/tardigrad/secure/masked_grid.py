"""The masked grid layer: uploads are codes on the common grid plus masks, and only their sum is unmasked.

On a server, a link to the helpers gives the layer the sum of what they release for a closed buffer. In a
simulation, the layer asks simulated helpers. Each buffer is named by the version that its step starts from.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import ClassVar, cast

import numpy as np
import torch
from blake3 import blake3
from torch import Tensor

from tardigrad.algorithms.algorithm import Algorithm, Metrics
from tardigrad.algorithms.layers import UploadBuffer
from tardigrad.core.outcomes import Accepted
from tardigrad.core.upload import Task, TypedVector, Upload, Vectors, WeightedSum
from tardigrad.encodings.common_grid import Grid
from tardigrad.encodings.layer import GridLayer
from tardigrad.privacy.guarantee import Guarantee
from tardigrad.privacy.layers.central_noise import BUDGET
from tardigrad.secure.masks import SALT, UNSIGNED, Codes, salted
from tardigrad.secure.simulated_helpers import SimulatedHelpers

log = logging.getLogger("tardigrad.secure")


class MaskedGridLayer(GridLayer):
    """The server's half of a secure run; in a simulation, also the halves of clients and helpers."""

    name: ClassVar[str] = "masked grid"

    def __init__(
        self,
        encoding: Grid,
        algorithm: Algorithm,
        trip_seed: Callable[[int], int],
        guarantee: Guarantee | None = None,
        helpers: SimulatedHelpers | None = None,
        sealed_bytes: int = 0,
    ) -> None:
        """Create the layer.

        `guarantee`: of a private run; the helpers add its noise. `helpers`: of a simulation. `sealed_bytes`:
        how many bytes the envelopes of an upload have.
        """
        super().__init__(encoding, algorithm, trip_seed)
        self.guarantee, self._helpers = guarantee, helpers
        self.wire = replace(GridLayer.wire, extra_bytes=sealed_bytes)
        self._digests: dict[int, bytes] = {}  # of the masked sums of closed buffers
        self._released: dict[int, Codes | None] = {}  # what the helpers released for closed buffers
        self._total: tuple[int, Codes] | None = None  # of the last step, until it has a receipt
        self._beyond = 0  # coordinates of the last total that no honest clients can have made
        self._notify: Callable[[], None] = lambda: None

    # -- the client's half, in a simulation --------------------------------------------------------

    def client(self, upload: Upload, task: Task, memory: Vectors) -> Upload:
        upload = super().client(upload, task, memory)
        vectors = self.hidden(task.trip, upload.vectors)
        return replace(upload, vectors=vectors, examples=1, steps=1, loss=0.0)  # nothing else is told

    def hidden(self, trip: int, codes: Vectors) -> Vectors:
        """Return the codes of an upload with their masks."""
        return salted(codes) if self._helpers is None else self._helpers.masked(trip, codes)

    # -- the server's half -------------------------------------------------------------------------

    def layout(self, lengths: dict[str, int]) -> tuple[TypedVector, ...]:
        return (*super().layout(lengths), SALT)

    def upload_objection(self, vectors: Vectors) -> str | None:
        return None  # all values are possible under a mask

    def add(self, buffer: UploadBuffer, delivery: Accepted, upload: Upload, start: Tensor) -> Upload:
        if self._helpers is not None:
            self._helpers.admit(delivery.trip, delivery.staleness)
        return upload

    def closed(self, buffer: UploadBuffer, version: int) -> None:
        masked_sum = self._masked_sum(buffer.sums)
        self._digests[version] = blake3(masked_sum.tobytes()).digest()
        if self._helpers is not None:
            self.unmask(version, self._helpers.close(version))

    def masked_digest(self, version: int) -> bytes:
        """Return BLAKE3 of the masked sum of a closed buffer, as little-endian integers."""
        return self._digests[version]

    def unmask(self, version: int, masks: Codes | None) -> None:
        """Give the sum of what all helpers released for a closed buffer; None if it was abandoned."""
        self._released[version] = masks
        self._notify()

    def ready(self, version: int) -> bool:
        return version in self._released

    def notify(self, ready: Callable[[], None]) -> None:
        self._notify = ready

    def release(self, buffer: UploadBuffer, total: WeightedSum) -> WeightedSum:
        version = total.version
        masks, self._beyond = self._released.pop(version), 0
        del self._digests[version]
        if masks is None:
            self._total = None
            return replace(total, sums={})  # abandoned: the version counts, the model stays
        codes = self._masked_sum(total.sums)
        codes -= masks
        if self._helpers is None:
            self._total = (version, codes)
        signed = codes.view(f"<i{codes.itemsize}")
        self._check(signed, version)
        parts = torch.from_numpy(signed.astype(np.int64)).split(list(self.lengths.values()))
        unmasked = {name: part.to(self._device) for name, part in zip(self.lengths, parts, strict=True)}
        return super().release(buffer, replace(total, sums=unmasked))

    def _masked_sum(self, sums: Mapping[str, Tensor]) -> Codes:
        """Return the weighted sums of all vectors, one after the other, modulo 2^bits."""
        dtype = np.dtype(UNSIGNED[self.encoding.bits]).newbyteorder("<")
        return np.concatenate([sums[name].cpu().numpy().astype(dtype) for name in self.lengths])

    def _check(self, total: np.ndarray, version: int) -> None:
        """Count the coordinates that uploads within the limit cannot sum up to, whatever the noise: some
        upload was beyond the limit, or the sum has wrapped around."""
        bound = 2 ** (self.encoding.bits - 1) - spare(self.encoding.bits)
        self._beyond = int(np.count_nonzero(total > bound) + np.count_nonzero(total < -bound))
        if self._beyond:
            log.warning(
                "%d numbers of the sum of version %d are larger than its uploads can make them; a client has "
                "sent codes beyond the limit", self._beyond, version + 1, extra={"event": "beyond"},
            )  # fmt: skip

    def released_total(self, version: int) -> Codes | None:
        """Return the unmasked sum of the step from this version, modulo 2^bits, for the helpers to repeat the
        step; None if it was abandoned or has a receipt."""
        return self._total[1] if self._total is not None and self._total[0] == version else None

    def receipted(self, version: int) -> None:
        """Note that the step from this version has its receipts."""
        if self._total is not None and self._total[0] <= version:
            self._total = None

    def objection(self, version: int) -> str | None:
        return BUDGET if self.guarantee is not None and version >= self.guarantee.allowed else None

    def moved(self, buffer: UploadBuffer, total: WeightedSum) -> Metrics:
        metrics: Metrics = {}
        if self.guarantee is not None and self.guarantee.noise_multiplier > 0:
            metrics["epsilon"] = self.guarantee.spent(total.version + 1)
        if self._beyond:
            metrics["beyond_limit"] = float(self._beyond)
        return metrics

    # -- snapshots ---------------------------------------------------------------------------------

    def snapshot(self) -> tuple[dict[str, Tensor], dict[str, object]]:
        tensors = {
            f"released/{version}": _tensor(masks)
            for version, masks in self._released.items()
            if masks is not None
        }
        document: dict[str, object] = {
            "digests": {str(version): digest.hex() for version, digest in self._digests.items()},
            "abandoned": [version for version, masks in self._released.items() if masks is None],
        }
        if self._total is not None:
            document["total"], tensors["total"] = self._total[0], _tensor(self._total[1])
        if self._helpers is not None:
            more, document["helpers"] = self._helpers.snapshot()
            tensors |= more
        return tensors, document

    def restore(self, tensors: dict[str, Tensor], document: dict[str, object]) -> None:
        digests = cast(dict[str, str], document["digests"])
        self._digests = {int(version): bytes.fromhex(digest) for version, digest in digests.items()}
        self._released = dict.fromkeys(cast(list[int], document["abandoned"]))
        for name, tensor in tensors.items():
            if name.startswith("released/"):
                self._released[int(name.removeprefix("released/"))] = self._codes(tensor)
        total = cast(int | None, document.get("total"))
        self._total = None if total is None else (total, self._codes(tensors["total"]))
        if self._helpers is not None:
            self._helpers.restore(tensors, document["helpers"])

    def _codes(self, tensor: Tensor) -> Codes:
        return tensor.cpu().numpy().view(UNSIGNED[self.encoding.bits])


def spare(bits: int) -> int:
    """Return how far sums stay below 2^(bits - 1) besides their noise, so that one that has wrapped around is
    noticed.

    >>> spare(32) / 2**31
    0.125
    """
    return 1 << (bits - 4)


def _tensor(codes: Codes) -> Tensor:
    return torch.from_numpy(codes.view(f"<i{codes.itemsize}"))
