"""Secure runs together with other parts of a run: adapters and personal parts."""

import pytest
import torch
from torch import nn

import tardigrad as td
from tardigrad.experiments.config.schema import Config
from tardigrad.experiments.runs.simulation_assembly import build

COMMON = {
    "buffer": {"size": 4, "once_per_client": True},
    "pace": td.Asynchronous(concurrency=6),
    "stop": td.Stop(steps=3),
}


class Adapted(nn.Module):
    """A frozen layer with a trained update of rank 2 (LoRA)."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3).requires_grad_(False)
        self.down, self.up = nn.Linear(4, 2, bias=False), nn.Linear(2, 3, bias=False)

    def forward(self, x):
        return self.layer(x) + self.up(self.down(x))


def normalised():
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))


@pytest.mark.parametrize(
    ("make", "local", "uploaded"),
    [
        (Adapted, td.Local(), 4 * 2 + 2 * 3),
        (normalised, td.Local(batch_norm="client"), 5 * 6 + 7 * 3),
        (normalised, td.Local(batch_norm="client", personal=("3.*",)), 5 * 6),
    ],
    ids=["adapters", "fedbn", "fedbn and a personal head"],
)
@pytest.mark.parametrize("algorithm", ["fedbuff", "scaffold"])
def test_parts_of_a_model_have_the_bits_of_the_plain_grid_run(make, local, uploaded, algorithm):
    torch.manual_seed(0)
    module = make()
    data = {n: (torch.randn(8, 4), torch.arange(8) % 3) for n in range(12)}
    common = COMMON | {"local": local, "algorithm": algorithm}
    if algorithm == "scaffold":
        common |= {"pace": td.Synchronous(cohort=4), "buffer": {"once_per_client": True}}
    masked = build(Config(secure={}, **common), module, data)
    plain = build(Config(encoding=masked.config.encoding, **common), module, data)
    for simulation in (masked, plain):
        list(simulation.engine.run())
    assert len(masked.model) == uploaded
    assert masked.model.equal(plain.model)
