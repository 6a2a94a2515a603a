"""The aggregator: the values that bookkeeping never sees. Both drivers use it."""

from __future__ import annotations

import math
from copy import deepcopy
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from tardigrad.algorithms.algorithm import Individual, Metrics, SumOnly
from tardigrad.core.bookkeeping import Delivery
from tardigrad.core.momentum import State
from tardigrad.core.precision import at_least_float32, is_short
from tardigrad.core.situation import Situation
from tardigrad.core.upload import Member, Received, Task, Upload, Vectors, WeightedSum
from tardigrad.errors import RunError


class Aggregator:
    """The buffer's tensors and the algorithm's state.

    A sum-only algorithm is given the weighted sum of the buffer and nothing else; uploads are added in
    the order they were accepted, which fixes the bits.

    The state of a model in bfloat16 or float16 is kept in float32, because sums, momenta and averages lose
    small terms in short floats. What clients download, what is evaluated and what is saved has the model's
    own type. The state of a float32 or float64 model has the model's type.
    """

    sums_of_short_floats: ClassVar[torch.dtype] = torch.float32
    """The type in which the uploads of a model in short floats are added up, at least."""

    def __init__(
        self,
        algorithm: SumOnly | Individual,
        model: Tensor,
        situation: Situation,
        model_average: float | None = None,
    ) -> None:
        self.algorithm = algorithm
        self.version = 0
        self.model_average = model_average
        """Decay of the running average of models that is evaluated in place of the newest."""
        self._dtype = model.dtype
        model = at_least_float32(model)
        self.state: State = algorithm.start(model, situation)
        if model_average is not None:
            self.state["model_average"] = model.clone()
        self._sums: Vectors = {}
        self._received: list[Received] = []
        self._members: list[Member] = []

    @property
    def evaluated_model(self) -> Tensor:
        """The model that people judge by: the newest, or the running average."""
        model: Tensor = self.state["model" if self.model_average is None else "model_average"]
        return model.to(self._dtype)

    def broadcast(self) -> Vectors:
        """What a client downloads at this version."""
        vectors = self.algorithm.broadcast(self.state)
        if is_short(self._dtype):
            vectors = {n: v.to(self._dtype) if v.dtype == torch.float32 else v for n, v in vectors.items()}
        return vectors

    def empty_upload(self) -> Vectors:
        """Return zeros with the names and shapes of what a client uploads, on the model's device."""
        task = Task(-1, -1, self.version, self.broadcast(), 0.0)
        rule = self.algorithm.rule(task, {}, lr=1.0)
        vectors = rule.finish(rule.start.clone(), 1, 1.0)
        return {name: torch.zeros_like(at_least_float32(v)) for name, v in vectors.items()}

    def add(self, delivery: Delivery, upload: Upload, start: Tensor) -> None:
        """Take an accepted upload into the buffer. `start`: the model it started from."""
        assert delivery.accepted, "only accepted uploads reach the aggregator"
        assert delivery.start_version is not None
        assert delivery.staleness is not None
        member = Member(delivery.start_version, delivery.staleness, delivery.weight, delivery.mass)
        self._members.append(member)
        if isinstance(self.algorithm, Individual):
            own = {  # copies: the driver reuses the memory of an upload
                name: vector.float() if is_short(vector.dtype) else vector.clone()
                for name, vector in upload.vectors.items()
            }
            self._received.append(Received(replace(upload, vectors=own), member, start))
            return
        for name, vector in upload.vectors.items():
            if is_short(self._dtype) or is_short(vector.dtype):
                vector = vector.to(torch.promote_types(vector.dtype, self.sums_of_short_floats))
            weight = member.mass if name in self.algorithm.undiscounted else member.weight
            if name in self._sums:
                self._sums[name].add_(vector, alpha=weight)
            else:
                self._sums[name] = vector * weight

    @property
    def objection(self) -> str | None:
        """Why the model must not move again, if so."""
        return None

    def step(self) -> Metrics:
        """Turn the buffer into the next version."""
        own = self.algorithm.broadcast(self.state)
        before = [(name, vector, vector._version) for name, vector in own.items()]
        metrics = {name: float(value) for name, value in (self._move() or {}).items()}
        for name, vector, changes in before:
            if vector._version != changes:
                raise RunError(
                    f"{type(self.algorithm).__name__} changed the vector {name!r} in place at step "
                    f"{self.version + 1}, but clients still train from it; put a new tensor into the state"
                )
        self.version += 1
        self._sums, self._received, self._members = {}, [], []
        if self.model_average is not None:
            decay = self.model_average
            self.state["model_average"] = (
                decay * self.state["model_average"] + (1 - decay) * self.state["model"]
            )
        return metrics

    def held(self) -> State:
        """The state as it is before a step, for `take_back`. The model itself, which is never changed in
        place (`step` checks that), and a copy of all else: an algorithm may keep a ring of vectors."""
        others = {name: value for name, value in self.state.items() if name != "model"}
        copies = {n: v.clone() if isinstance(v, Tensor) else deepcopy(v) for n, v in others.items()}
        return {"model": self.state["model"]} | copies

    def spoilt(self, held: State) -> bool:
        """Whether something in the state is not finite that was so in `held`."""
        return any(not _finite(value) and _finite(held.get(name)) for name, value in self.state.items())

    def take_back(self, held: State) -> None:
        """Return to the state before the last step. The version and the empty buffer stay: the step has been
        counted, and the next version is the old model."""
        self.state = held

    def _move(self) -> Metrics:
        """The algorithm's own step."""
        members = tuple(self._members)
        if not members:
            return {}  # nobody joined (Poisson pace): the version counts, the model stays
        if isinstance(self.algorithm, Individual):
            return self.algorithm.step(self.state, self._received, self.version)
        divisor = sum(member.mass for member in members)
        return self.algorithm.step(self.state, WeightedSum(self._sums, members, self.version, divisor))

    def snapshot(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Everything that is needed to go on: tensors, and the rest as JSON. Write it before going on: the
        tensors are the live ones."""
        tensors, numbers = {}, {}
        for name, value in self.state.items():
            if isinstance(value, Tensor):
                tensors[f"state/{name}"] = value
            else:
                numbers[name] = value
        tensors |= {f"sum/{name}": value for name, value in self._sums.items()}
        received = []
        for index, one in enumerate(self._received):
            tensors[f"received/{index}/start"] = one.start
            tensors |= {f"received/{index}/vector/{n}": v for n, v in one.upload.vectors.items()}
            received.append([one.upload.examples, one.upload.steps, one.upload.loss])
        return tensors, {
            "version": self.version,
            "numbers": numbers,
            "members": [list(member) for member in self._members],
            "received": received,
        }

    def restore(self, tensors: dict[str, Tensor], rest: dict[str, Any]) -> None:
        """Go on from `snapshot()`."""
        self.version = rest["version"]
        device, places = self.state["model"].device, dict(self.state)
        stored = below("state/", tensors)
        for name, value in stored.items():  # some of it may stay on the CPU: small matrices do
            place = places.get(name)
            stored[name] = value.to(place.device if isinstance(place, Tensor) else device)
        self.state = dict(rest["numbers"]) | stored
        tensors = {n: v.to(device) for n, v in tensors.items() if n.startswith(("sum/", "received/"))}
        self._sums = below("sum/", tensors)
        self._members = [Member(*row) for row in rest["members"]]
        self._received = [
            Received(
                Upload(below(f"received/{i}/vector/", tensors), *row),
                self._members[i],
                tensors[f"received/{i}/start"],
            )
            for i, row in enumerate(rest["received"])
        ]


def _finite(value: Any) -> bool:
    if isinstance(value, Tensor):
        return bool(torch.isfinite(value).all())
    if isinstance(value, list | tuple):
        return all(_finite(one) for one in value)
    return math.isfinite(value) if isinstance(value, float) else True


def below(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors whose names begin so, without the beginning."""
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
