"""What every kind of noise can do.

Each step's released sum is the clients' sum and a mix of normal vectors, this step's and earlier ones'. An
attacker who sees all steps learns at most what one Gaussian release C x + z tells, where x are the clients'
sums, C is a matrix of the kind of noise and z is independent noise. Its privacy depends on one number, the
sensitivity: how far C x moves, in the Euclidean norm, when one client's contributions, of norm at most 1
each, are replaced by zeros. A client takes part at most `participations` times, in steps at least
`separation` apart (counted j - i: consecutive steps are 1 apart).

C is lower triangular and the noise is Gaussian, so it does not matter that contributions depend on what was
released before ("Improved Differential Privacy for SGD via Optimal Private Linear Operators on Adaptive
Streams", Denisov et al.).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from torch import Tensor

from tardigrad.errors import RunError

NoiseState = dict[str, Any]
"""Tensors and JSON numbers by name, so that a snapshot can hold it. Changed in place by `draw`."""

Normal = Callable[[int], Tensor]
"""normal(d): d fresh standard normal float32 numbers in a new tensor, which is then the caller's."""


class Noise(Protocol):
    """One kind of noise. With noise multiplier z and clip L the noise of a step is z L times what `draw`
    gives, and the whole run is one Gaussian mechanism with mu = sensitivity / z."""

    @property
    def kind(self) -> str: ...

    def sensitivity(
        self, steps: int, participations: int, separation: int, after: int | None = None
    ) -> float:
        """Euclidean sensitivity of a run of `steps`, all releases together, or an upper bound of it.

        `after` gives that of its first so many steps: what has been spent so far.
        """
        ...

    def start(self, dimension: int, steps: int, participations: int, separation: int) -> NoiseState:
        """The state before the first step of a run of at most `steps`."""
        ...

    def draw(self, state: NoiseState, normal: Normal) -> Tensor:
        """What to add to the sum of this step, for a multiplier of 1: `sum.add_(noise, alpha=z * L)`.

        The tensor is the caller's. A step more than `start` was told raises RunError.
        """
        ...

    def prefix_variance(self, t: int, steps: int, participations: int, separation: int) -> float:
        """Variance of each coordinate of the first t draws' sum: the noise in the model after t steps."""
        ...


def most_participations(steps: int, participations: int, separation: int) -> int:
    """How often one client can take part in this many steps.

    >>> most_participations(steps=10, participations=5, separation=4)  # steps 0, 4, 8
    3
    """
    return min(participations, 1 + (steps - 1) // separation) if steps > 0 else 0


def count_step(state: NoiseState) -> int:
    """The number of the step that is drawn now, from 0; the next call's is one more."""
    step: int = state["step"]
    if step >= state["steps"]:
        raise RunError(
            f"privacy: noise was planned for {state['steps']} steps, and step {step + 1} was asked for; "
            "plan the run with more steps"
        )
    state["step"] = step + 1
    return step
