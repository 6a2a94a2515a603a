"""Tree noise: "Practical and Private (Deep) Learning without Sampling or Shuffling" (Kairouz et al.).

The steps are the leaves of a binary tree. Every node has noise of its own, drawn at the last step below it.
The noise of a prefix of t steps is the sum over the nodes that cover it, one for each set bit of t, so it
grows with the logarithm of t. A step adds the difference between the noise of two consecutive prefixes: the
residual.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import PositiveInt
from torch import Tensor

from tardigrad.core.setting import Setting
from tardigrad.privacy.noise import NoiseState, Normal, count_step, most_participations

Gains = NDArray[np.float64]
"""The largest sum of squares that m participations can produce, at index m."""


class Tree(Setting):
    """Tree noise, as in DP-FTRL.

    The state has one node for each height: after t steps of a tree, those at the set bits of t are in use.
    """

    kind: Literal["tree"] = "tree"
    honaker: bool = True
    """Combine a node's noise with that of the nodes below it, which reduces the variance of a node of height
    h from 1 to 1 / (2 - 2^-h) (Honaker's estimate from below)."""
    restart_every: PositiveInt | None = None
    """Begin a new tree after so many steps: less sensitivity to clients that return, but more noise."""

    def sensitivity(
        self, steps: int, participations: int, separation: int, after: int | None = None
    ) -> float:
        """Return an upper bound: the root of the sum, over nodes, of (participations below the node)^2.

        All nodes have noise of the same size, so the tree is one Gaussian release of all node sums. The bound
        respects the separation within each block, and between blocks only through the totals. It is reached
        where the separation is a power of two.
        """
        steps = steps if after is None else after
        most = most_participations(steps, participations, separation)
        if most == 0:
            return 0.0
        length = min(self.restart_every or steps, steps)
        whole, rest = divmod(steps, length)
        gains = _repeat(_forest(length, most, separation), whole, most)
        if rest:
            gains = _join(gains, _forest(rest, most, separation), most)
        return math.sqrt(float(gains.max()))

    def start(self, dimension: int, steps: int, participations: int, separation: int) -> NoiseState:
        length = min(self.restart_every or steps, steps)
        return {
            "nodes": torch.zeros(length.bit_length(), dimension),  # ceil(log2(length + 1)) vectors
            "step": 0,
            "steps": steps,
        }

    def draw(self, state: NoiseState, normal: Normal) -> Tensor:
        """Add the new node and subtract the nodes that it covers; all others are in both prefixes."""
        step = count_step(state)
        t = step % self.restart_every if self.restart_every else step
        nodes = state["nodes"]
        dimension = nodes.shape[1]
        node = normal(dimension)
        height = 0
        gone: Tensor | None = None
        while t >> height & 1:  # the left sibling is complete, so the parent is complete now
            left = nodes[height]
            if gone is None:
                gone = left * -self._share(height)
            else:
                gone.add_(left, alpha=-self._share(height))
            parent = normal(dimension)
            if self.honaker:
                parent.add_(left, alpha=0.5).add_(node, alpha=0.5)
            node = parent
            height += 1
        nodes[height] = node
        if gone is None:
            return node.mul_(self._share(height))
        return gone.add_(node, alpha=self._share(height))

    def prefix_variance(self, t: int, steps: int, participations: int, separation: int) -> float:
        whole, rest = divmod(t, self.restart_every) if self.restart_every else (0, t)
        return whole * self._variance(self.restart_every or 0) + self._variance(rest)

    def _variance(self, t: int) -> float:
        """Return the variance of the noise after t steps of one tree: one node for each set bit."""
        return sum(self._share(height) for height in range(t.bit_length()) if t >> height & 1)

    def _share(self, height: int) -> float:
        """Return 1 / (2 - 2^-height): the factor that makes Honaker's sum an estimate, and also its
        variance."""
        return 1 / (2 - 0.5**height) if self.honaker else 1.0


@lru_cache(maxsize=256)
def _forest(steps: int, most: int, separation: int) -> Gains:
    """Return the gains of all nodes completed within `steps`.

    These are complete trees, one for each set bit, the smallest at the end.
    """
    gains = np.zeros(1)
    tree = np.array([0.0, 1.0])  # a leaf: one participation at most
    for height in range(steps.bit_length()):
        if height:
            tree = _join(tree, tree, most_participations(2**height, most, separation))
            tree = tree + np.arange(len(tree)) ** 2.0
        if steps >> height & 1:
            block = steps & (2 ** (height + 1) - 1)  # this tree and the smaller ones after it
            gains = _join(gains, tree, most_participations(block, most, separation))
    return gains


def _join(a: Gains, b: Gains, most: int) -> Gains:
    """Return the gains of two adjacent parts, over all ways to divide the participations."""
    size = min(len(a) + len(b) - 2, most) + 1
    joined = np.zeros(size)
    for i, gain in enumerate(a[:size]):
        end = min(len(b), size - i)
        np.maximum(joined[i : i + end], gain + b[:end], out=joined[i : i + end])
    return joined


def _repeat(part: Gains, times: int, most: int) -> Gains:
    """Return the gains of `times` equal adjacent parts, by doubling."""
    gains = np.zeros(1)
    while times:
        if times & 1:
            gains = _join(gains, part, most)
        times >>= 1
        if times:
            part = _join(part, part, most)
    return gains
