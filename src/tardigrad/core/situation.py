"""What an algorithm may know of a run before it starts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Situation:
    """The numbers that some algorithms derive their settings from."""

    population: int
    """How many clients there are."""
    buffer: int | None = None
    """Uploads that make a step (K), where that number is fixed."""
    staleness_bound: int | None = None
    """The greatest staleness that is accepted, where there is a bound."""
    steps: int | None = None
    """How many steps the run will make, where that is known."""
    local_steps: float = 1.0
    """Minibatch steps of an average trip."""
    examples: int | None = None
    """How many examples all clients have together, where clients weigh by them; None where they weigh the
    same."""

    @property
    def mass(self) -> int:
        """What all clients together weigh: their examples, or, where they weigh the same, their number."""
        return self.population if self.examples is None else self.examples
