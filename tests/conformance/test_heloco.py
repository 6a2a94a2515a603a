"""HeLoCo (Al Asif et al.): blocks that go against the momentum are shortened, others turned toward it."""

import numpy as np
import pytest
import torch
from problem import SIZE, assert_same, naive_models, run_package
from torch import nn

import tardigrad as td

CUT = 2
"""The parameters of the model below are two tensors, of 2 and of 4 numbers."""


class TwoTensors(nn.Module):
    def __init__(self, x):
        super().__init__()
        self.head, self.tail = nn.Parameter(x[:CUT].clone()), nn.Parameter(x[CUT:].clone())

    def forward(self, rows):
        return rows[:, :CUT] @ self.head + rows[:, CUT:] @ self.tail


def corrected(delta, m, o, seen):
    """One block, as the paper has it."""
    if not m.any():
        return delta
    length, other = np.sqrt(delta @ delta), np.sqrt(m @ m)
    u, v = delta / length, m / other
    c = u @ v
    conf = length / (length + o["kappa"] * other + 1e-8)
    if c >= o["c_ok"]:
        seen.add("kept")
        return delta
    if c < 0:
        beta = o["k_s"] * -c * conf
        seen.add("shrunk" if beta < o["most_shrink"] else "shrunk at most")
        beta = min(beta, o["most_shrink"])
        along = (delta @ v) * v  # what goes against the momentum
        return delta - beta * along
    seen.add("turned")
    if o.get("turn") == "continuous":
        f = (o["c_ok"] - c) / (o["c_ok"] - o["c_bad"])
    else:
        f = 1 - c
    share = min(1.0, o["k_d"] * f * conf)
    mixed = (1 - share) * u + share * v
    return mixed / np.sqrt(mixed @ mixed) * length


def naive(lr, beta, size, options, seen, blocks):
    m = [np.zeros(SIZE)]

    def move(x, buffer):
        total = np.zeros(SIZE)
        for _, _, delta in buffer:
            for part in blocks:
                total[part] += corrected(delta[part], m[-1][part], options, seen)
        g = total / size
        m.append(beta * m[-1] + (1 - beta) * g)
        return x - lr * (g + beta * m[-1])

    return naive_models(move, size, ahead=lambda x: x - lr * beta * m[-1])


OPTIONS = {"c_ok": 0.6, "k_s": 3.0, "most_shrink": 0.4, "k_d": 1.5, "kappa": 0.5}
CASES = {
    "paper": (OPTIONS, 1),
    "continuous": (OPTIONS | {"turn": "continuous", "c_bad": -0.3}, 1),
    "a buffer of three": (OPTIONS, 3),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("case", CASES)
def test_heloco_follows_the_paper(case, dtype):
    options, size = CASES[case]
    seen = set()
    theirs = naive(0.15, 0.7, size, options, seen, [slice(0, CUT), slice(CUT, SIZE)])
    models, simulation = run_package(
        td.HeLoCo(lr=0.15, beta=0.7, **options), dtype, size=size, module=TwoTensors
    )
    assert_same(models, theirs, dtype)
    assert simulation.aggregator.state["blocks"].tolist() == [CUT, SIZE - CUT]
    assert seen >= {"kept", "shrunk", "turned"}


def test_every_case_of_a_block_occurs():
    seen = set()
    naive(0.15, 0.7, 1, OPTIONS, seen, [slice(0, CUT), slice(CUT, SIZE)])
    assert seen == {"kept", "shrunk", "shrunk at most", "turned"}


def test_blocks_matter():
    whole, _ = run_package(td.HeLoCo(lr=0.15, **OPTIONS), torch.float64, size=1)
    parts, _ = run_package(td.HeLoCo(lr=0.15, **OPTIONS), torch.float64, size=1, module=TwoTensors)
    assert np.abs(whole[-1] - parts[-1]).max() > 1e-6


def test_without_corrections_it_is_momentum_look_ahead_from_ahead():
    ours, _ = run_package(td.HeLoCo(lr=0.15, k_s=0.0, k_d=0.0), torch.float64, size=1)
    theirs, _ = run_package(td.MomentumLookAhead(lr=0.15, start_ahead=True), torch.float64, size=1)
    assert_same(ours, theirs, torch.float64)
