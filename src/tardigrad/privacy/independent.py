"""Independent noise: the noise of each step is independent of that of all others."""

from __future__ import annotations

import math
from typing import Literal

from torch import Tensor

from tardigrad.core.setting import Setting
from tardigrad.privacy.noise import NoiseState, Normal, count_step, most_participations


class Independent(Setting):
    """Fresh Gaussian noise in each step: C is the identity.

    The noise in the model grows with the root of the number of steps, so this kind is worthwhile only where
    sampling amplifies privacy (the Poisson mode).
    """

    kind: Literal["independent"] = "independent"

    def sensitivity(
        self, steps: int, participations: int, separation: int, after: int | None = None
    ) -> float:
        return math.sqrt(most_participations(steps if after is None else after, participations, separation))

    def start(self, dimension: int, steps: int, participations: int, separation: int) -> NoiseState:
        return {"dimension": dimension, "step": 0, "steps": steps}

    def draw(self, state: NoiseState, normal: Normal) -> Tensor:
        count_step(state)
        return normal(state["dimension"])

    def prefix_variance(self, t: int, steps: int, participations: int, separation: int) -> float:
        return float(t)
