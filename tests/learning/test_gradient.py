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


def walk(name, trace):
    """Losses and gradients of 30 steps, on batches of two sizes."""
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
        loss = compute(x, y)
        seen.append((loss, flat.gradient.clone()))
        with torch.no_grad():
            flat.vector.sub_(flat.gradient, alpha=0.1)
    return seen, compute


@pytest.mark.parametrize("name", MODULES)
def test_traced_gradient_has_the_bits_of_the_eager_one(name, monkeypatch):
    monkeypatch.setattr(gradient, "TRACE_AFTER", 3)
    eager, _ = walk(name, trace=False)
    traced, compute = walk(name, trace=True)
    for (a_loss, a), (b_loss, b) in zip(eager, traced):
        assert a_loss == b_loss
        assert torch.equal(a, b)
    used = any(graph is not None for graph in compute._graphs.values())
    if name == "mlp":
        assert used, "nothing was traced, so nothing was tested"
    if name in ("branching", "dropout"):
        assert not used
