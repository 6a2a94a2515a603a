"""Algorithms: a server half (start, broadcast, step) and a client half (the rule).

To write an algorithm, subclass `SumOnly`, or `Individual` if it needs every upload by itself:

>>> class Mean(SumOnly):
...     lr: float = 1.0
...
...     def step(self, state, buffer):
...         state["model"] = state["model"] - self.lr * buffer.mean()
...         return {}
>>> Mean(lr=0.5)
Mean(lr=0.5)
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from torch import Tensor

from tardigrad.core.bookkeeping import Buffer
from tardigrad.core.pace import Asynchronous, Pace, Poisson, Synchronous
from tardigrad.core.renamed import renamed_keyword
from tardigrad.core.setting import Setting
from tardigrad.core.situation import Situation
from tardigrad.core.staleness import Constant, StalenessLaw
from tardigrad.core.state import State, tensor_of
from tardigrad.core.upload import Received, Task, Vectors, WeightedSum
from tardigrad.errors import ConfigError

Metrics = dict[str, float]
"""Numbers that an algorithm reports of one step, by name; they are written to the event of the step."""


class Rule:
    """The client half of an algorithm, for one trip: where training starts, in which direction it steps, what
    the client uploads and what it remembers.

    This class follows the gradient. Algorithms with a client half of their own override what differs.

    >>> import torch
    >>> rule = Rule(Task(0, "ann", 0, {"model": torch.zeros(2)}), memory={}, lr=0.1)
    >>> rule.finish(end=torch.tensor([1.0, -2.0]), steps=5, lr_sum=0.5)
    {'delta': tensor([-1.,  2.])}
    """

    def __init__(self, task: Task, memory: Vectors, lr: float) -> None:
        self.start: Tensor = task.vectors["model"]
        self.lr = lr
        self.memory: Vectors = memory
        """The client's memory after `finish`; the driver commits it only if the upload was accepted."""

    def direction(self, gradient: Tensor, x: Tensor) -> Tensor:
        """Return the direction of the step from x, which is `x -= lr * direction`; another optimiser than SGD
        takes it as its gradient. It may overwrite `gradient`."""
        return gradient

    @renamed_keyword("path", "lr_sum")
    def finish(self, end: Tensor, steps: int, lr_sum: float) -> Vectors:
        """Return what to upload. `lr_sum`: the sum of the learning rates of all steps."""
        return {"delta": self.start - end}


class Algorithm(Setting):
    """The base of `SumOnly` and `Individual`."""

    synchronous: ClassVar[bool] = False
    """Whether it works in rounds, without staleness."""
    remembers: ClassVar[bool] = False
    """Whether its clients keep a memory between trips."""
    single_upload: ClassVar[bool] = False
    """Whether every upload moves the model, so that K is 1."""
    undiscounted: ClassVar[frozenset[str]] = frozenset()
    """Uploaded vectors that are not discounted by staleness: the changes of what clients remember. A client
    replaces what it remembers completely, so the server must add the whole change."""
    default_buffer: ClassVar[int] = 10
    """The value of buffer.size if the config has none."""
    uses_local_steps: ClassVar[bool] = False
    """Whether its settings follow from how many local steps a trip takes."""
    tuning_space: ClassVar[dict[str, dict[str, object]]] = {}
    """Dimensions that `tardigrad tune` searches for this algorithm, by dotted key, in addition to `local.lr`;
    written as in `[tune.spaces]` of a comparison."""
    uses_member_count: ClassVar[bool] = False
    """Whether it uses how many uploads a step has, or how stale they are. An algorithm whose clients remember
    something does in any case."""

    @property
    def name(self) -> str:
        """The name of the algorithm in messages."""
        return getattr(self, "kind", type(self).__name__)

    def default_pace(self, population: int) -> Pace:
        """Return the pace of a config that names none."""
        if self.synchronous:
            return Synchronous(cohort=min(10, population))
        return Asynchronous(concurrency=min(100, population))

    def check_pace(self, pace: Pace, buffer: Buffer) -> None:
        """Raise a ConfigError if the algorithm does not work at this pace."""
        if self.synchronous and not (
            isinstance(pace, Synchronous) or (isinstance(pace, Poisson) and buffer.size is None)
        ):
            raise ConfigError(
                f"pace.kind: {self.name} works in rounds and needs the pace 'synchronous' (or 'poisson' "
                f"without buffer.size), not {pace.kind!r}; for buffered asynchronous training use "
                "algorithm.kind 'fedbuff', which takes the same momentum and preconditioners"
            )

    def check_population(self, population: int) -> None:
        """Raise a ConfigError if the algorithm does not work with this many clients."""

    def caution(self, situation: Situation, lr: float) -> str | None:
        """Return what to tell the user of a run that is allowed, or None. `lr`: local.lr."""
        return None

    @property
    def uses_versions(self) -> bool:
        """Whether it uses which versions the uploads of a buffer started from."""
        return False

    @property
    def oracle(self) -> bool:
        """Whether it uses what only a simulation can know; all results say so."""
        return False

    @property
    def opening(self) -> bool:
        """Whether all clients take part in the first step, once each."""
        return False

    @property
    def averages_memories(self) -> bool:
        """Whether the server keeps the mean over all clients of what they remember. If clients weigh by their
        examples, it must know how many examples all of them have together."""
        return False

    @property
    def assumes_sgd(self) -> str | None:
        """Why its rule works only with plain SGD, as a clause that follows "because"; None if it works with
        every `local.optimiser`."""
        return None

    @property
    def changes_training(self) -> bool:
        """Whether clients must train otherwise than from the model along their gradients, so that code which
        knows nothing of the algorithm cannot train for it."""
        return type(self).rule is not Algorithm.rule

    @property
    def default_staleness_bound(self) -> int | None:
        """The value of buffer.staleness_bound if the config has none."""
        return None

    @property
    def law(self) -> StalenessLaw:
        """The law by which stale uploads are discounted."""
        return Constant()

    def start(self, model: Tensor, situation: Situation) -> State:
        """Return the state at version 0. Steps replace its `model` and never change it in place."""
        return {"model": model}

    def broadcast(self, state: State) -> Vectors:
        """Return what a client downloads at this version."""
        return {"model": tensor_of(state, "model")}

    def rule(self, task: Task, memory: Vectors, lr: float) -> Rule:
        """Return the client half, for one trip."""
        return Rule(task, memory, lr)


class SumOnly(Algorithm):
    """An algorithm that needs only the weighted sum of a buffer. It works with central privacy and can work
    with secure aggregation."""

    @abstractmethod
    def step(self, state: State, buffer: WeightedSum) -> Metrics:
        """Make a step: put the next `model` into `state`, and return metrics."""


class Individual(Algorithm):
    """An algorithm that needs every upload of a buffer by itself. It is refused if uploads are masked."""

    @abstractmethod
    def step(self, state: State, buffer: Sequence[Received], version: int) -> Metrics:
        """Make a step: put the next `model` into `state`, and return metrics."""
