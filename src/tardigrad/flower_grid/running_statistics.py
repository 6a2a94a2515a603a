"""Running statistics of normalisation layers, which pass beside the aggregator."""

from __future__ import annotations

from torch import Tensor

from tardigrad.core.tensor_names import strip_prefix
from tardigrad.flower_grid.named_arrays import ArraysModule


class RunningStatistics:
    """The statistics of each version: the mean of those that came with the uploads of its buffer.

    They are no part of the model: momentum, staleness and learning rates of the server do not apply to them,
    because a variance has to stay positive. An upload has the weight of its mass.
    """

    def __init__(self, module: ArraysModule) -> None:
        self._module = module
        self._sums: dict[str, Tensor] = {}
        self._mass = 0.0

    def add(self, statistics: dict[str, Tensor], mass: float) -> None:
        """Add those of an accepted upload."""
        for name, value in statistics.items():
            self._sums[name] = self._sums.get(name, 0.0) + mass * value.double()
        self._mass += mass

    def step(self) -> None:
        """Give the module the statistics of the next version."""
        for name, total in self._sums.items():
            own = self._module.others
            own[name] = (total / self._mass).to(own[name].dtype)
        self._sums, self._mass = {}, 0.0

    def snapshot(self) -> tuple[dict[str, Tensor], float]:
        """Return everything that is needed to continue: tensors, and the mass of the buffer."""
        tensors = {f"statistics/{name}": self._module.others[name] for name in self._module.statistics}
        return tensors | {f"statistics_sums/{name}": value for name, value in self._sums.items()}, self._mass

    def restore(self, tensors: dict[str, Tensor], mass: float) -> None:
        """Continue from a `snapshot()`."""
        self._module.others |= strip_prefix("statistics/", tensors)
        self._sums, self._mass = strip_prefix("statistics_sums/", tensors), mass
