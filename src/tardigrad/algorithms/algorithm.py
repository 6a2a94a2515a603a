"""What an algorithm is: a server half (start, broadcast, step) and a client half (its rule)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from torch import Tensor

from tardigrad.core.bookkeeping import Buffer
from tardigrad.core.pace import Asynchronous, Pace, Poisson, Synchronous
from tardigrad.core.setting import Setting
from tardigrad.core.situation import Situation
from tardigrad.core.staleness import Constant, StalenessLaw
from tardigrad.core.state import State, tensor_of
from tardigrad.core.upload import Received, Task, Vectors, WeightedSum
from tardigrad.errors import ConfigError

Metrics = dict[str, float]
"""What an algorithm tells of one step, for the events."""


class Rule:
    """One trip of a client: where it starts, which direction it steps in, what it uploads and remembers.

    This one is plain SGD; algorithms with a client half of their own override what differs.
    """

    def __init__(self, task: Task, memory: Vectors, lr: float) -> None:
        self.start: Tensor = task.vectors["model"]
        self.lr = lr
        self.memory: Vectors = memory
        """What the client keeps, after `finish`; the driver commits it only if the upload counted."""

    def direction(self, gradient: Tensor, x: Tensor) -> Tensor:
        """Which way to step from x (the step is `x -= lr * direction`). May reuse `gradient`'s memory."""
        return gradient

    def finish(self, end: Tensor, steps: int, path: float) -> Vectors:
        """What to upload. `path`: the sum of the learning rates of all steps taken."""
        return {"delta": self.start - end}


class Algorithm(Setting):
    """The base of `SumOnly` and `Individual`."""

    synchronous: ClassVar[bool] = False
    """Whether it is defined by rounds, without staleness."""
    remembers: ClassVar[bool] = False
    """Whether its clients keep a memory between trips."""
    single_upload: ClassVar[bool] = False
    """Whether every upload moves the model, so that K is 1."""
    undiscounted: ClassVar[frozenset[str]] = frozenset()
    """Uploaded vectors that are not discounted by staleness: the changes of what clients remember. Every
    client replaces what it remembers in full, so the server must add the change in full."""
    default_buffer: ClassVar[int] = 10
    """K where the config names none."""
    uses_local_steps: ClassVar[bool] = False
    """Whether its settings follow from how many local steps a trip takes."""
    uses_member_count: ClassVar[bool] = False
    """Whether it uses how many uploads a step has, or how stale they are. An algorithm whose clients remember
    something does in any case."""

    @property
    def name(self) -> str:
        """How the algorithm is called in messages."""
        return getattr(self, "kind", type(self).__name__)

    def default_pace(self, population: int) -> Pace:
        """The pace where the config names none."""
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

    @property
    def uses_versions(self) -> bool:
        """Whether it uses which versions the uploads of a buffer started from."""
        return False

    @property
    def oracle(self) -> bool:
        """Whether it uses what only a simulation can know; every output says so."""
        return False

    @property
    def opening(self) -> bool:
        """Whether all clients take part in the first step, once each."""
        return False

    @property
    def averages_memories(self) -> bool:
        """Whether the server keeps the mean over all clients of what they remember: where clients weigh by
        their examples it must know how many examples all of them have together."""
        return False

    @property
    def default_staleness_bound(self) -> int | None:
        """buffer.staleness_bound where the config names none."""
        return None

    @property
    def law(self) -> StalenessLaw:
        """How stale uploads are discounted."""
        return Constant()

    def start(self, model: Tensor, situation: Situation) -> State:
        """The state at version 0. Its `model` is replaced at each step, never changed in place."""
        return {"model": model}

    def broadcast(self, state: State) -> Vectors:
        """What a client downloads now."""
        return {"model": tensor_of(state, "model")}

    def rule(self, task: Task, memory: Vectors, lr: float) -> Rule:
        """The client half, for one trip."""
        return Rule(task, memory, lr)


class SumOnly(Algorithm):
    """Needs only the weighted sum of a buffer: fits secure aggregation and central privacy."""

    @abstractmethod
    def step(self, state: State, buffer: WeightedSum) -> Metrics:
        """Move the model: put the next `model` into `state`."""


class Individual(Algorithm):
    """Needs every upload of a buffer by itself; refused where uploads are masked."""

    @abstractmethod
    def step(self, state: State, buffer: Sequence[Received], version: int) -> Metrics:
        """Move the model: put the next `model` into `state`."""
