"""The helper's repetition of the server's steps: a version must be the step of the one before it.

It shows that there is one history of versions, made of the released sums. It does not show that the sums are
honest.
"""

from __future__ import annotations

import json
from typing import ClassVar, cast

import numpy as np
import torch
from pydantic import TypeAdapter, ValidationError
from torch import Tensor

from tardigrad.algorithms.aggregator import Aggregator, AggregatorState
from tardigrad.algorithms.algorithm import SumOnly
from tardigrad.algorithms.layers import Surroundings, UploadBuffer, UploadLayer
from tardigrad.algorithms.registry import BuiltIn
from tardigrad.core.upload import Member, Vectors, WeightedSum
from tardigrad.errors import ConfigError
from tardigrad.secure.batches import AdmittedUpload
from tardigrad.secure.policy import CodedVector, Policy
from tardigrad.secure.stored_state import from_bytes, to_bytes

OF_CHANGE = 1e-4
OF_VALUE = 4
"""A number of a version may differ from the repetition by `OF_CHANGE` times the largest change that the step
makes, plus `OF_VALUE` rounding errors of the largest number: other machines compute other last bits."""
SIGNED = {8: np.int8, 16: np.int16, 32: np.int32}


def algorithm_of(settings: str) -> SumOnly:
    """Return the algorithm that the settings of a policy name; raise a ConfigError if a helper cannot repeat
    its steps."""
    try:
        document = json.loads(settings)
        table = document["algorithm"]
        if ":" in str(table.get("kind")):
            raise ConfigError(
                f"the run has an algorithm of its own ({table['kind']}), whose steps a helper cannot repeat; "
                "use one that is built in"
            )
        algorithm = TypeAdapter(BuiltIn).validate_python(table)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, ValidationError) as error:
        said = " ".join(str(error).split())[:300]
        raise ConfigError(
            f"the settings in the policy cannot be read ({said}); is the server newer?"
        ) from None
    if not isinstance(algorithm, SumOnly):
        raise ConfigError(
            f"{algorithm.name} looks at every upload by itself, but only sums are released; use an algorithm "
            "that needs only the sum, such as 'fedbuff'"
        )
    if "broadcast" in document:
        raise ConfigError("versions of a secure run travel as they are; leave the encoding of downloads out")
    return algorithm


class _ReleasedSumLayer(UploadLayer):
    """Gives the algorithm a sum that was released, in the place of an empty buffer."""

    name: ClassVar[str] = "released sum"
    needs_only_sums: ClassVar[bool] = True
    total: WeightedSum | None = None

    def begin(self, surroundings: Surroundings, extras: dict[str, int]) -> None:
        self.lengths = {name: shape.numel() for name, shape in surroundings.shapes.items()}
        self.dtype = torch.promote_types(surroundings.dtype, torch.float32)

    def release(self, buffer: UploadBuffer, total: WeightedSum) -> WeightedSum:
        return total if self.total is None else self.total


class StepRepetition:
    """The algorithm's state, as the helper computes it."""

    def __init__(self, policy: Policy, model: Tensor) -> None:
        """`model`: of version 0, or any of its length and type if `restore` follows. Raise a ConfigError if
        the policy does not fit the algorithm."""
        self._policy, self._layer, self._start = policy, _ReleasedSumLayer(), model
        algorithm = algorithm_of(policy.settings)
        self._aggregator = Aggregator(algorithm, model, policy.facts.situation(), layers=[self._layer])
        expected = [(name, n, name not in algorithm.undiscounted) for name, n in self._layer.lengths.items()]
        found = [(_upload_name(one), one.length, one.discounted) for one in policy.vectors]
        if found != expected:
            raise ConfigError(
                f"{algorithm.name} uploads {expected} (name, length, whether it is discounted), but the "
                f"policy says {found}"
            )
        if policy.staleness != algorithm.law:
            raise ConfigError(
                f"the policy weighs late uploads by {policy.staleness!r}, but {algorithm.name} does by "
                f"{algorithm.law!r}"
            )

    def broadcast(self) -> Vectors:
        """Return the version as the helper has computed it."""
        return self._aggregator.broadcast()

    def step(self, total: np.ndarray, members: list[AdmittedUpload]) -> Vectors:
        """Make the step from a released sum of codes, and return the new version."""
        policy = self._policy
        parts = torch.from_numpy(total.view(SIGNED[policy.bits])).split(list(policy.lengths))
        unit = policy.step / policy.denominator
        sums = {
            _upload_name(vector): part.double().mul_(unit).to(self._layer.dtype)
            for vector, part in zip(policy.vectors, parts, strict=True)
        }
        rows = tuple(
            Member(one.version, one.staleness, one.weight / policy.denominator, 1.0) for one in members
        )
        self._layer.total = WeightedSum(sums, rows, self._aggregator.version, float(len(rows)))
        held = self._held = self._aggregator.held()
        self._aggregator.step()
        self._layer.total = None
        if self._aggregator.spoilt(held):  # the server discards such a step, too
            self._aggregator.take_back(held)
        return self.broadcast()

    def take_back(self) -> None:
        """Go back to the version before the last step, as if it had not been made."""
        self._aggregator.take_back(self._held)
        self._aggregator.version -= 1

    def skip(self) -> None:
        """Count a version whose batch was abandoned: the model stays as it was."""
        self._aggregator.step()

    def adopt(self, vectors: Vectors) -> None:
        """Go on from the server's version, whose last bits may be others. What is computed from the state
        whenever it is sent, and what has another precision in the state, stays as it is."""
        state = self._aggregator.state
        own = self._aggregator.algorithm.broadcast(state)
        for key, value in list(state.items()):
            for name, sent in vectors.items():
                same = own.get(name) is value and sent.dtype == own[name].dtype
                if same and not torch.equal(own[name], sent):
                    state[key] = sent.clone()

    def to_bytes(self) -> bytes:
        """Return the state, to be stored."""
        tensors, document = self._aggregator.snapshot()
        return to_bytes(tensors | {"start": self._start[:0]}, {"length": len(self._start), **document})


def _upload_name(vector: CodedVector) -> str:
    """Return the name of a vector before it was encoded."""
    return vector.name.removesuffix("/codes")


def begun_repetition(policy: Policy, vectors: Vectors) -> StepRepetition:
    """Return the repetition before the first step, from version 0 as clients download it. Raise a ConfigError
    if that is not what the policy's algorithm begins with."""
    model = vectors.get("model", torch.zeros(0, dtype=torch.int8))
    if model.dim() != 1 or not model.is_floating_point():
        raise ConfigError("version 0 must have a flat vector of floats called model")
    try:
        repetition = StepRepetition(policy, model)
        start = repetition.broadcast()
        fault = difference(vectors, start, start)
    except (ValueError, RuntimeError, ArithmeticError) as error:  # whatever the server's settings lead to
        said = " ".join(str(error).split())[:300]
        raise ConfigError(f"the algorithm does not begin with the policy's settings ({said})") from None
    if fault is not None:
        raise ConfigError(f"version 0 does not belong to the algorithm: {fault}")
    repetition.adopt(vectors)
    return repetition


def stored_repetition(policy: Policy, content: bytes) -> StepRepetition:
    """Return the repetition from its `to_bytes()`."""
    tensors, document = from_bytes(content)
    model = tensors.pop("start").new_zeros(cast(int, document.pop("length")))
    repetition = StepRepetition(policy, model)
    repetition._aggregator.restore(tensors, cast(AggregatorState, document))
    return repetition


def difference(sent: Vectors, repeated: Vectors, before: Vectors) -> str | None:
    """Return how a version that was sent differs from the repeated step, or None if it does not beyond the
    tolerance.

    >>> old, new = {"model": torch.zeros(3)}, {"model": torch.ones(3)}
    >>> difference({"model": torch.tensor([1.0, 1.0, 1.0 + 1e-6])}, new, old)
    >>> difference({"model": torch.tensor([1.0, 1.0, 1.1])}, new, old)
    'a number of model differs by 0.1, and at most 0.0001 are allowed'
    """
    if list(sent) != list(repeated):
        return f"it has {list(sent)}, and should have {list(repeated)}"
    for name, vector in sent.items():
        expected = repeated[name]
        if (vector.dtype, vector.shape) != (expected.dtype, expected.shape):
            return f"{name} should have {expected.numel()} numbers of {expected.dtype}"
        if torch.equal(vector, expected):
            continue
        change = float((expected - before[name]).abs().max())
        rounding = torch.finfo(expected.dtype).eps * float(expected.abs().max())
        allowed = OF_CHANGE * change + OF_VALUE * rounding
        found = float((vector - expected).abs().max())
        if not found <= allowed:
            return f"a number of {name} differs by {found:.3g}, and at most {allowed:.3g} are allowed"
    return None
