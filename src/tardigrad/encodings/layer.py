"""The encoding layer: clients encode their uploads, and the server decodes them when it adds them up."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from tardigrad.algorithms.algorithm import Algorithm
from tardigrad.algorithms.layers import ENCODING_MEMORY, DecodingLayer, Surroundings, UploadBuffer, Wire
from tardigrad.core.joint_clip import clipped
from tardigrad.core.outcomes import Accepted
from tardigrad.core.upload import Task, TypedVector, Upload, Vectors, WeightedSum
from tardigrad.encodings.common_grid import Grid
from tardigrad.encodings.encoding import Encoding, encoding_random
from tardigrad.encodings.float32 import Float32
from tardigrad.errors import ConfigError, RunError

MEMORY = ENCODING_MEMORY
"""The prefix of the names under which a client remembers encoding errors, one for each vector."""
EXACT = 1 - 1e-9
"""Norms of codes stay below their bound by this factor, so that the rounding of sums does not matter."""


class EncodingLayer(DecodingLayer):
    """Encodes each upload on the client.

    Where the model itself is uploaded, its change from the start is encoded, which is far smaller.
    """

    name: ClassVar[str] = "encoding"
    wire: Wire = Wire(dtype="encoded")

    def __init__(
        self,
        encoding: Encoding,
        algorithm: Algorithm,
        trip_seed: Callable[[int], int],
        feedback: bool = True,
        private: bool = False,
    ) -> None:
        """Create the layer.

        `trip_seed` returns the seed that a trip is trained with. `feedback`: whether vectors that change what
        the server knows of clients' memories get error feedback in any case: the server adds these changes
        up, so that what is lost of one would be missing for ever. `private`: an upload that cannot be encoded
        or decoded counts as zeros, because in a private run no upload is refused by its values.
        """
        self.encoding, self._trip_seed, self._private = encoding, trip_seed, private
        self._always = algorithm.undiscounted if feedback else frozenset()

    @property
    def kind(self) -> str:
        return str(getattr(self.encoding, "kind", self.name))

    def remembers(self, name: str) -> bool:
        """Return whether clients remember what was lost of this vector."""
        return self.encoding.feeds_back or name in self._always

    def begin(self, surroundings: Surroundings, extras: dict[str, int]) -> None:
        self.lengths = {name: shape.numel() for name, shape in surroundings.shapes.items()}
        self._whole, self._device = surroundings.whole, surroundings.device

    # -- the client's half -------------------------------------------------------------------------

    def client(self, upload: Upload, task: Task, memory: Vectors) -> Upload:
        random = encoding_random(self._trip_seed(task.trip))
        parts: Vectors = {}
        for name, vector in upload.vectors.items():
            change = vector - task.vectors["model"] if name == "model" else vector
            change = change.cpu().float()
            encoding, kept = self.encoding, MEMORY + name
            if self.remembers(name):
                encoding = encoding.feeding_back()
                if kept in memory:
                    change = change + memory[kept].to(change.device)
            if not torch.isfinite(change).all():
                if not self._private:
                    raise RunError(
                        f"trip {task.trip} of client {task.client}: the upload is not finite, so that it "
                        "cannot be encoded; lower local.lr or the algorithm's learning rate"
                    )
                change = torch.zeros_like(change)
            made = encoding.encode(name, change, random)
            if self.remembers(name):
                lost = change - encoding.decode(name, made, len(change))
                memory[kept] = lost if torch.isfinite(lost).all() else torch.zeros_like(lost)
            parts |= made
        return replace(upload, vectors=parts)

    # -- the server's half -------------------------------------------------------------------------

    def layout(self, lengths: dict[str, int]) -> tuple[TypedVector, ...]:
        return tuple(part for name, n in lengths.items() for part in self.encoding.layout(name, n))

    def upload_objection(self, vectors: Vectors) -> str | None:
        found = (self.encoding.objection(name, vectors, n) for name, n in self.lengths.items())
        return next((reason for reason in found if reason is not None), None)

    def pieces(self, vectors: Vectors) -> Iterator[tuple[str, int, Tensor]]:
        for name, length in self.lengths.items():
            for first, piece in self.encoding.pieces(name, vectors, length):
                yield name, first, piece

    def norms(self, vectors: Vectors) -> Iterator[float]:
        for name, length in self.lengths.items():
            yield from self.encoding.norms(name, vectors, length)

    def add(self, buffer: UploadBuffer, delivery: Accepted, upload: Upload, start: Tensor) -> Upload:
        """Decode the upload if a layer or the algorithm needs it whole; else the aggregator adds up its
        pieces."""
        if self._private and self.upload_objection(upload.vectors) is not None:
            upload = replace(upload, vectors=self._zeros())
        if not self._whole:
            return upload
        vectors = {
            name: self.encoding.decode(name, upload.vectors, n).to(self._device)
            for name, n in self.lengths.items()
        }
        if "model" in vectors:
            vectors["model"] = start + vectors["model"]
        return replace(upload, vectors=vectors)

    def _zeros(self) -> Vectors:
        """Return an encoded upload of zeros."""
        random = encoding_random(0)
        made = (self.encoding.encode(name, torch.zeros(n), random) for name, n in self.lengths.items())
        return {name: part for parts in made for name, part in parts.items()}


class GridLayer(EncodingLayer):
    """Encodes each upload on the common grid, and decodes the sum of a buffer."""

    name: ClassVar[str] = "grid"
    wire: Wire = Wire(dtype="encoded", common_scale=True)
    needs_only_sums: ClassVar[bool] = True

    encoding: Grid

    def begin(self, surroundings: Surroundings, extras: dict[str, int]) -> None:
        super().begin(surroundings, extras)
        if surroundings.whole:
            raise ConfigError(
                f"encoding.kind: {surroundings.algorithm.name} needs each upload as a whole, and on the "
                "common grid only sums are decoded; use another encoding, such as 'int8'"
            )
        self._sums = torch.promote_types(surroundings.dtype, torch.float32)

    def remembers(self, name: str) -> bool:
        """Return whether clients remember what was lost of this vector: not if it is clipped, because an
        upload that is always longer than the clip would lose more and more."""
        return self.encoding.clip is None and super().remembers(name)

    def client(self, upload: Upload, task: Task, memory: Vectors) -> Upload:
        grid = self.encoding
        if grid.clip is None:
            return super().client(upload, task, memory)
        whole = {name: vector.cpu().float() for name, vector in upload.vectors.items()}
        short, _ = clipped(whole, grid.clip)
        random = encoding_random(self._trip_seed(task.trip))
        bound = grid.norm(sum(vector.numel() for vector in short.values()))
        assert bound is not None, "there is a clip"
        while True:
            made = (grid.encode(name, vector, random) for name, vector in short.items())
            parts = {name: part for each in made for name, part in each.items()}
            if joint_norm(parts) <= bound * EXACT:
                return replace(upload, vectors=parts)

    def summands(self, vectors: Vectors) -> Iterator[tuple[str, int, Tensor]]:
        for name, length in self.lengths.items():
            for first, piece in self.encoding.integers(name, vectors, length):
                yield name, first, piece

    def factor(self, weight: float) -> int:
        factor = weight * self.encoding.denominator
        assert factor == int(factor) <= self.encoding.denominator, "weights are rounded by bookkeeping"
        return int(factor)

    def release(self, buffer: UploadBuffer, total: WeightedSum) -> WeightedSum:
        sums = {
            name: self.encoding.decode_sum(total_of).to(self._sums) for name, total_of in total.sums.items()
        }
        return replace(total, sums=sums)


def joint_norm(codes: Vectors) -> float:
    """Return the Euclidean norm of all codes of an upload."""
    return math.hypot(*(float(torch.linalg.vector_norm(part.double())) for part in codes.values()))


def encoding_layers(
    encoding: Encoding,
    algorithm: Algorithm,
    trip_seed: Callable[[int], int],
    feedback: bool = True,
    private: bool = False,
) -> list[EncodingLayer]:
    """Return the layer of an encoding; none for float32, which changes nothing."""
    if isinstance(encoding, Float32):
        return []
    kind = GridLayer if isinstance(encoding, Grid) else EncodingLayer
    return [kind(encoding, algorithm, trip_seed, feedback, private)]
