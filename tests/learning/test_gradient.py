"""A traced gradient has the same bits as the eager one."""

import pytest
import torch
from torch import nn

from tardigrad.learning import gradient
from tardigrad.learning.flat import FlatModule
from tardigrad.learning.gradient import Gradient
from tardigrad.learning.heads import MultiClass


class Branching(nn.Module):
    """Uses one of two layers, depending on the data."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x):
        return self.a(x) if x.sum() > 0 else self.b(x)


class Tied(nn.Module):
    """Uses one matrix twice."""

    def __init__(self):
        super().__init__()
        self.inside = nn.Linear(4, 4)
        self.again = nn.Linear(4, 4, bias=False)
        self.again.weight = self.inside.weight
        self.out = nn.Linear(4, 3)

    def forward(self, x):
        return self.out(torch.tanh(self.again(torch.tanh(self.inside(x)))))


MODULES = {
    "mlp": lambda: nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)),
    "norm": lambda: nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 3)),
    "branching": Branching,
    "tied": Tied,
    "dropout": lambda: nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3)),
}


def walk(name, trace, at_once=False):
    """Losses of 30 steps on batches of two sizes, and the gradients; if `at_once`, the models after them."""
    torch.manual_seed(0)
    flat = FlatModule(MODULES[name]())
    flat.module.train()
    compute = Gradient(flat, MultiClass(), trace=trace)
    data = torch.Generator().manual_seed(1)
    torch.manual_seed(5)
    seen = []
    for step in range(30):
        n = 3 if step % 4 == 3 else 6
        x, y = torch.randn(n, 4, generator=data), torch.randint(3, (n,), generator=data)
        if at_once:
            with torch.no_grad():
                seen.append((compute.step(x, y, 0.137), flat.vector.clone()))
            continue
        loss = compute(x, y)
        seen.append((loss, flat.gradient.clone()))
        with torch.no_grad():
            flat.vector.sub_(flat.gradient, alpha=0.1)
    return seen, compute


@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize("name", MODULES)
def test_traced_gradient_has_the_bits_of_the_eager_one(name, at_once, monkeypatch):
    monkeypatch.setattr(gradient, "TRACE_AFTER", 3)
    eager, _ = walk(name, False, at_once)
    traced, compute = walk(name, True, at_once)
    for (a_loss, a), (b_loss, b) in zip(eager, traced):
        assert a_loss == b_loss
        assert torch.equal(a, b)
    used = any(graph is not None for graph in compute._graphs.values())
    if name == "mlp":
        assert used, "nothing was traced, so nothing was tested"
    if name in ("branching", "dropout"):
        assert not used


def test_a_graph_whose_steps_would_have_other_bits_is_not_used(monkeypatch):
    monkeypatch.setattr(gradient, "TRACE_AFTER", 3)
    monkeypatch.setattr(Gradient, "_moves_alike", lambda self, slopes: False)
    _, compute = walk("mlp", True)
    assert set(compute._graphs.values()) == {None}
