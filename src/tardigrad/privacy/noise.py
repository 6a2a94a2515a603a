"""The interface of all kinds of noise.

The released sum of a step is the clients' sum plus a linear combination of normal vectors, of this step and
earlier ones. An attacker who sees all steps learns at most what one Gaussian release C x + z reveals, where x
are the clients' sums, C is a matrix that depends on the kind of noise, and z is independent noise. Its
privacy depends on one number, the sensitivity: how far C x moves, in the Euclidean norm, when one client's
contributions, of norm at most 1 each, are replaced by zeros. A client takes part at most `participations`
times, in steps at least `separation` apart (the distance of steps i and j is j - i: consecutive steps are 1
apart).

C is lower triangular and the noise is Gaussian, so the result also holds if contributions depend on earlier
releases ("Improved Differential Privacy for SGD via Optimal Private Linear Operators on Adaptive
Streams", Denisov et al.).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypedDict

from torch import Tensor

from tardigrad.errors import RunError


class NoiseState(TypedDict, total=False):
    """The state of any kind of noise, which a snapshot can hold. `draw` changes it in place."""

    step: int
    """The number of steps that were drawn."""
    steps: int
    """The number of steps that the noise was planned for."""
    dimension: int
    """The length of a vector of independent noise."""
    nodes: Tensor
    """The nodes of a tree, by height."""
    buffers: Tensor
    """The buffers of BLT noise."""
    decay: list[float]
    """The constants lambda hat of BLT noise."""
    scale: list[float]
    """The constants omega hat of BLT noise."""


Normal = Callable[[int], Tensor]
"""normal(d) returns d new standard normal float32 numbers in a new tensor, which the caller may change."""


class Noise(Protocol):
    """One kind of noise.

    With noise multiplier z and clip L, the noise of a step is z L times what `draw` returns, and the whole
    run is one Gaussian mechanism with mu = sensitivity / z.
    """

    @property
    def kind(self) -> str: ...

    def sensitivity(
        self, steps: int, participations: int, separation: int, after: int | None = None
    ) -> float:
        """Return the Euclidean sensitivity of all releases of a run of `steps`, or an upper bound of it.

        With `after`, return that of the first `after` steps of this run.
        """
        ...

    def start(self, dimension: int, steps: int, participations: int, separation: int) -> NoiseState:
        """Return the state before the first step of a run of at most `steps`."""
        ...

    def draw(self, state: NoiseState, normal: Normal) -> Tensor:
        """Return the noise of the next step, for a multiplier of 1: `sum.add_(noise, alpha=z * L)`.

        The caller may change the tensor. Raise a RunError after the number of steps given to `start`.
        """
        ...

    def prefix_variance(self, t: int, steps: int, participations: int, separation: int) -> float:
        """Return the variance of a coordinate of the sum of the first t draws: the noise in the model."""
        ...


def most_participations(steps: int, participations: int, separation: int) -> int:
    """Return how often one client can take part in this many steps.

    >>> most_participations(steps=10, participations=5, separation=4)  # steps 0, 4, 8
    3
    """
    return min(participations, 1 + (steps - 1) // separation) if steps > 0 else 0


def count_step(state: NoiseState) -> int:
    """Return the number of the step that is drawn now, from 0, and advance the state to the next step."""
    step = state["step"]
    if step >= state["steps"]:
        raise RunError(
            f"privacy: noise was planned for {state['steps']} steps, and step {step + 1} was asked for; "
            "plan the run with more steps"
        )
    state["step"] = step + 1
    return step
