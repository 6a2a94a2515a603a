"""The aggregator: the values that bookkeeping never sees. The simulator and the server both use it."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import TypedDict

import torch
from torch import Tensor

from tardigrad.algorithms.algorithm import Individual, Metrics, SumOnly
from tardigrad.algorithms.layers import DecodingLayer, Surroundings, UploadLayer, check_layers
from tardigrad.algorithms.shared_vectors import SharedVectors
from tardigrad.algorithms.upload_buffer import BufferState, UploadBuffer, buffer_state, restored_buffer
from tardigrad.core.download_sizes import DownloadSizes
from tardigrad.core.outcomes import Accepted
from tardigrad.core.precision import at_least_float32, is_short
from tardigrad.core.situation import Situation
from tardigrad.core.state import State, tensor_of
from tardigrad.core.tensor_names import strip_prefix
from tardigrad.core.upload import (
    Member,
    Received,
    Task,
    TypedVector,
    Upload,
    Vectors,
    WeightedSum,
    size_in_bytes,
)
from tardigrad.errors import RunError


class AggregatorState(TypedDict):
    """The contents of a snapshot of an `Aggregator`, besides the tensors."""

    version: int
    numbers: dict[str, float]
    """The numbers of the algorithm's state."""
    buffers: list[BufferState]
    """The closed buffers, the oldest first, and the open one."""
    layers: dict[str, dict[str, object]]
    """The documents of the layers, by their names."""


class Aggregator:
    """The tensors of the buffer and the state of the algorithm.

    A sum-only algorithm is given the weighted sum of the buffer and nothing else. Uploads are added in the
    order in which they were accepted, which determines the bits. The layers may change uploads and their sum
    on the way to the algorithm.

    The state of a model in bfloat16 or float16 is kept in float32, because sums, momenta and averages lose
    small terms in short floats. The model that is downloaded, evaluated or saved has its own type. The state
    of a float32 or float64 model has the model's type.
    """

    def __init__(
        self,
        algorithm: SumOnly | Individual,
        model: Tensor,
        situation: Situation,
        model_average: float | None = None,
        layers: Sequence[UploadLayer] = (),
        shared: SharedVectors | None = None,
    ) -> None:
        """`shared`: what clients download, if it is not exactly the algorithm's broadcast."""
        self.algorithm = algorithm
        self.layers = tuple(layers)
        check_layers(
            self.layers,
            isinstance(algorithm, SumOnly),
            algorithm.name,
        )
        self.version = 0
        self.model_average = model_average
        """Decay of the running average of models that is evaluated in place of the newest."""
        self._dtype = model.dtype
        model = at_least_float32(model)
        self.state: State = algorithm.start(model, situation)
        if model_average is not None:
            self.state["model_average"] = model.clone()
        self._shared = shared
        self._sum_dtype = torch.float32
        self._extras: dict[str, int] = {}
        for layer in self.layers:
            self._extras |= layer.extras(situation)
            self._sum_dtype = torch.promote_types(self._sum_dtype, layer.sums_of_short_floats)
        self._decoder = next((layer for layer in self.layers if isinstance(layer, DecodingLayer)), None)
        self._adds_pieces, self._device = True, model.device
        self._wide = torch.promote_types(model.dtype, self._sum_dtype)
        if self.layers:
            shapes = {name: vector.shape for name, vector in self._upload_of_rule().items()}
            self._lengths = {name: shape.numel() for name, shape in shapes.items()}
            whole = isinstance(algorithm, Individual) or any(layer.needs_vectors for layer in self.layers)
            whole = whole or "model" in shapes  # which is decoded as a change from the start
            self._adds_pieces = not whole
            surroundings = Surroundings(algorithm, situation, shapes, self._dtype, model.device, whole)
            for layer in self.layers:
                layer.begin(surroundings, self._extras)
        self.broadcast()  # the first version is shared before any step
        self._open = self._new_buffer()
        self._closed: deque[UploadBuffer] = deque()  # full, and not yet turned into a version

    def _new_buffer(self) -> UploadBuffer:
        return UploadBuffer(extras={name: torch.zeros(size) for name, size in self._extras.items()})

    @property
    def evaluated_model(self) -> Tensor:
        """The model that is evaluated: the newest one, or the running average."""
        return tensor_of(self.state, "model" if self.model_average is None else "model_average").to(
            self._dtype
        )

    def broadcast(self) -> Vectors:
        """Return what a client downloads at this version."""
        vectors = self.algorithm.broadcast(self.state)
        if is_short(self._dtype):
            vectors = {n: v.to(self._dtype) if v.dtype == torch.float32 else v for n, v in vectors.items()}
        return vectors if self._shared is None else self._shared.at(self.version, vectors)

    def difference(self) -> Vectors:
        """Return what leads from the broadcast of the version before to that of this version, as it is sent;
        nothing if versions travel whole."""
        return {} if self._shared is None else self._shared.difference

    def download_layout(self) -> tuple[TypedVector, ...] | None:
        """Return how whole versions travel, or None if they do as they are."""
        return None if self._shared is None else self._shared.layout()

    def download_sizes(self) -> DownloadSizes:
        """Return the sizes of what clients download."""
        if self._shared is not None:
            return self._shared.download_sizes()
        return DownloadSizes(size_in_bytes(self.broadcast()))

    def empty_upload(self) -> Vectors:
        """Return zeros with the names and shapes of what a client uploads, on the model's device."""
        vectors = self._upload_of_rule()
        return {name: torch.zeros_like(at_least_float32(v)) for name, v in vectors.items()}

    def _upload_of_rule(self) -> Vectors:
        """Return what a client would upload that has made no step, before any layer."""
        task = Task(-1, -1, self.version, self.broadcast(), 0.0)
        rule = self.algorithm.rule(task, {}, lr=1.0)
        return rule.finish(rule.start.clone(), 1, 1.0)

    def upload_layout(self) -> tuple[TypedVector, ...]:
        """Return the names, types and lengths of the vectors of an upload as they travel."""
        vectors = self._upload_of_rule()
        if self._decoder is not None:
            return self._decoder.layout({name: vector.numel() for name, vector in vectors.items()})
        dtype = self._dtype if is_short(self._dtype) else None
        return tuple(
            TypedVector(
                name, str(dtype or at_least_float32(vector[:0]).dtype).removeprefix("torch."), vector.numel()
            )
            for name, vector in vectors.items()
        )

    def add(self, delivery: Accepted, upload: Upload, start: Tensor) -> None:
        """Add an accepted upload to the buffer. `start`: the model that it started from."""
        assert isinstance(delivery, Accepted), "only accepted uploads reach the aggregator"
        buffer = self._open
        for layer in self.layers:
            upload = layer.add(buffer, delivery, upload, start)
        member = Member(delivery.ticket.version, delivery.staleness, delivery.weight, delivery.mass)
        buffer.members.append(member)
        if isinstance(self.algorithm, Individual):
            own = {  # copied, because the driver reuses the memory of an upload
                name: vector.float() if is_short(vector.dtype) else vector.clone()
                for name, vector in upload.vectors.items()
            }
            client = delivery.ticket.client
            buffer.received.append(Received(replace(upload, vectors=own), member, start, client))
            return
        if self._decoder is not None and self._adds_pieces:
            self._add_pieces(buffer, self._decoder, upload.vectors, member)
            return
        for name, vector in upload.vectors.items():
            if is_short(self._dtype) or is_short(vector.dtype):
                vector = vector.to(torch.promote_types(vector.dtype, self._sum_dtype))
            weight = self._weight(name, member)
            if name in buffer.sums:
                buffer.sums[name].add_(vector, alpha=weight)
            else:
                buffer.sums[name] = vector * weight

    def _weight(self, name: str, member: Member) -> float:
        return member.mass if name in self.algorithm.undiscounted else member.weight

    def _add_pieces(
        self, buffer: UploadBuffer, decoder: DecodingLayer, vectors: Vectors, member: Member
    ) -> None:
        """Add an encoded upload to the sums, without ever holding a decoded whole."""
        for name, first, piece in decoder.summands(vectors):
            if name not in buffer.sums:
                wide = torch.promote_types(piece.dtype, self._wide) if piece.is_floating_point() else None
                buffer.sums[name] = torch.zeros(
                    self._lengths[name], dtype=wide or piece.dtype, device=self._device
                )
            place = buffer.sums[name][first : first + len(piece)]
            place.add_(piece.to(place.device), alpha=decoder.factor(self._weight(name, member)))

    @property
    def objection(self) -> str | None:
        """Why the model must not move again, or None if it may."""
        reasons = (layer.objection(self.version) for layer in self.layers)
        return next((reason for reason in reasons if reason is not None), None)

    def close(self) -> None:
        """Close the full buffer. It waits for its step, and later uploads go into the next buffer."""
        version = self.version + len(self._closed)
        self._closed.append(self._open)
        for layer in self.layers:
            layer.closed(self._open, version)
        self._open = self._new_buffer()

    @property
    def waiting(self) -> int:
        """How many buffers are closed and not yet turned into versions."""
        return len(self._closed)

    @property
    def ready(self) -> bool:
        """Whether the oldest closed buffer can be turned into a version now."""
        return bool(self._closed) and all(layer.ready(self.version) for layer in self.layers)

    def notify(self, ready: Callable[[], None]) -> None:
        """Have `ready` called, from any thread, whenever a step that had to wait can be made."""
        for layer in self.layers:
            layer.notify(ready)

    def step(self) -> Metrics:
        """Make the next version from the oldest closed buffer, or from the open one if none is closed."""
        if not self._closed:
            self.close()
        own = self.algorithm.broadcast(self.state)
        before = [(name, vector, vector._version) for name, vector in own.items()]
        metrics = {name: float(value) for name, value in self._move(self._closed.popleft()).items()}
        for name, vector, changes in before:
            if vector._version != changes:
                raise RunError(
                    f"{type(self.algorithm).__name__} changed the vector {name!r} in place at step "
                    f"{self.version + 1}, but clients still train from it; put a new tensor into the state"
                )
        self.version += 1
        if self.model_average is not None:
            decay = self.model_average
            self.state["model_average"] = (
                decay * self.state["model_average"] + (1 - decay) * self.state["model"]
            )
        return metrics

    def held(self) -> State:
        """Return the state before a step, for `take_back`. The model is not copied, because it is never
        changed in place (`step` checks that). All else is copied: an algorithm may keep a ring of vectors."""
        others = {name: value for name, value in self.state.items() if name != "model"}
        copies = {n: v.clone() if isinstance(v, Tensor) else deepcopy(v) for n, v in others.items()}
        return {"model": self.state["model"]} | copies

    def spoilt(self, held: State) -> bool:
        """Return whether a value of the state is not finite that was finite in `held`."""
        return any(not _finite(value) and _finite(held.get(name)) for name, value in self.state.items())

    def take_back(self, held: State) -> None:
        """Go back to the state before the last step. The step still counts: the version stays, and its model
        is the old one."""
        self.state = held

    def _move(self, buffer: UploadBuffer) -> Metrics:
        """Make the algorithm's step from what the layers release."""
        members = tuple(buffer.members)
        total = WeightedSum(buffer.sums, members, self.version, sum(member.mass for member in members))
        metrics: Metrics = {}
        if isinstance(self.algorithm, Individual):
            if not members:
                return {}
            metrics = self._told(self.algorithm.step(self.state, buffer.received, self.version))
        else:
            for layer in self.layers:
                total = layer.release(buffer, total)
            if not total.sums:
                return {}  # no client joined (Poisson pace): the version counts, the model stays
            metrics = self._told(self.algorithm.step(self.state, total))
        for layer in self.layers:
            metrics |= layer.moved(buffer, total)
        return metrics

    def _told(self, metrics: object) -> dict[str, float]:
        """Return what a step returned, which may be the mistake of the author of an algorithm."""
        if metrics is None:
            return {}
        if not isinstance(metrics, Mapping):
            name = type(self.algorithm).__name__
            raise RunError(f"{name}.step must return a dict of metrics or None, not {metrics!r:.60}")
        return dict(metrics)

    # -- snapshots ---------------------------------------------------------------------------------

    def snapshot(self) -> tuple[dict[str, Tensor], AggregatorState]:
        """Return everything that is needed to continue: tensors, and the rest as JSON. Write it before the
        run goes on, because the tensors are not copied."""
        tensors: dict[str, Tensor] = {}
        numbers: dict[str, float] = {}
        for name, value in self.state.items():
            if isinstance(value, Tensor):
                tensors[f"state/{name}"] = value
            else:
                numbers[name] = value
        if self._shared is not None:
            tensors |= {f"shared/{name}": value for name, value in self.broadcast().items()}
        buffers = []
        for index, buffer in enumerate([*self._closed, self._open]):
            more, document = buffer_state(buffer)
            tensors |= {f"buffer/{index}/{name}": value for name, value in more.items()}
            buffers.append(document)
        layers = {}
        for layer in self.layers:
            more, layers[layer.name] = layer.snapshot()
            tensors |= {f"layer/{layer.name}/{name}": value for name, value in more.items()}
        return tensors, {"version": self.version, "numbers": numbers, "buffers": buffers, "layers": layers}

    def restore(self, tensors: dict[str, Tensor], rest: AggregatorState) -> None:
        """Continue from a `snapshot()`."""
        self.version = rest["version"]
        device, places = tensor_of(self.state, "model").device, self.state
        stored = strip_prefix("state/", tensors)
        for name, value in stored.items():  # small matrices may stay on the CPU
            place = places.get(name)
            stored[name] = value.to(place.device if isinstance(place, Tensor) else device)
        self.state = {**rest["numbers"], **stored}
        if self._shared is not None:
            shared = strip_prefix("shared/", tensors)
            names = self.algorithm.broadcast(self.state)  # a file has another order
            self._shared.restore(self.version, {name: shared[name].to(device) for name in names})
        *closed, self._open = (
            restored_buffer(strip_prefix(f"buffer/{index}/", tensors), document, device)
            for index, document in enumerate(rest["buffers"])
        )
        self._closed = deque(closed)
        for layer in self.layers:
            layer.restore(strip_prefix(f"layer/{layer.name}/", tensors), rest["layers"][layer.name])


def _finite(value: object) -> bool:
    if isinstance(value, Tensor):
        ends = torch.aminmax(value) if value.numel() else ()  # needs no memory; NaN is passed on
        return all(bool(torch.isfinite(end)) for end in ends)
    if isinstance(value, list | tuple):
        return all(_finite(one) for one in value)
    return math.isfinite(value) if isinstance(value, float) else True
