"""The situation: what an algorithm may know of a run before it starts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Situation:
    """The numbers that some algorithms derive their settings from."""

    population: int
    """How many clients there are."""
    buffer: int | None = None
    """How many uploads make a step (K), or None if the number varies."""
    staleness_bound: int | None = None
    """The greatest staleness that is accepted, or None if there is no bound."""
    steps: int | None = None
    """How many steps the run will make, or None if that is not known."""
    local_steps: float = 1.0
    """The mean number of local steps in a trip."""
    examples: int | None = None
    """How many examples all clients have together if clients weigh by them, or None if they weigh the
    same."""
    blocks: tuple[int, ...] = ()
    """The sizes of the model's parameter tensors, in the order of the flat vector; empty if they are not
    known."""

    @property
    def mass(self) -> int:
        """The weight of all clients together: their examples, or their number if they weigh the same."""
        return self.population if self.examples is None else self.examples
