"""Tree noise: its sensitivity in long runs, and Honaker's estimate."""

import pytest
import torch

from tardigrad.privacy.normal import Seeded
from tardigrad.privacy.tree import Tree


def test_tree_sensitivity_of_long_runs():
    assert Tree().sensitivity(2048, 1, 1) ** 2 == pytest.approx(12)
    assert Tree().sensitivity(2048, 4, 512) ** 2 == pytest.approx(64)
    assert Tree().sensitivity(2048, 8, 256) ** 2 == pytest.approx(184)
    assert Tree(restart_every=512).sensitivity(2048, 1, 1) ** 2 == pytest.approx(10)
    assert Tree(restart_every=512).sensitivity(2048, 4, 512) ** 2 == pytest.approx(40)


def test_honaker_is_the_published_stack():
    # Push (0, z); while the two top heights are equal, pop both and push (h + 1, z + (l + r) / 2).
    noise, state, total = Tree(), Tree().start(3, 40, 1, 1), torch.zeros(3)
    stack = []
    for t in range(40):
        total += noise.draw(state, Seeded(t))
        normal = Seeded(t)
        stack.append((0, normal(3)))
        while len(stack) > 1 and stack[-1][0] == stack[-2][0]:
            (height, right), (_, left) = stack.pop(), stack.pop()
            stack.append((height + 1, normal(3) + (left + right) / 2))
        prefix = sum(value / (2 - 2.0**-height) for height, value in stack)
        torch.testing.assert_close(total, prefix, atol=1e-5, rtol=1e-5)
