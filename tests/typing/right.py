"""Typical code of users, in which mypy --strict and pyright must find no error. It is checked, not run."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

import tardigrad as td
from tardigrad.core.state import State
from tardigrad.core.upload import WeightedSum


class Mean(td.SumOnly):
    """An algorithm of one's own."""

    lr: float = 1.0

    def step(self, state: State, buffer: WeightedSum) -> dict[str, float]:
        return {}


config = td.Config(
    seed=1,
    algorithm=td.FedBuff(lr=0.5, momentum=td.HeavyBall(beta=0.9), staleness=td.Polynomial(a=0.5)),
    data=td.Digits(partition=td.Dirichlet(clients=20, alpha=0.3)),
    model=td.MLP(hidden=(64,)),
    local=td.Local(epochs=1, lr=0.1, schedule=td.Cosine(steps=100)),
    pace=td.Asynchronous(concurrency=10),
    buffer=td.Buffer(size=5),
    delay=td.LogNormal(spread=1.0),
    privacy=td.Participation(epsilon=4.0, delta=1e-6, clip=0.5, participations=8, separation=10),
    device=td.Device(kind="cpu"),
    stop=td.Stop(trips=500),
    evaluation=td.Evaluation(every_trips=50),
    service=td.ServiceSettings(),
)
again: td.Config = td.load_config(Path("run.toml"), ["local.lr=0.1"])
rate: float = config.local.lr
limit: int | None = config.stop.trips

module = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 2))
tensors = (torch.zeros(10, 20), torch.zeros(10, dtype=torch.long))
arrays = (np.zeros((10, 20)), np.zeros(10, dtype=int))
result = td.run(
    model=module,
    clients={"a": tensors, "b": arrays},
    test=tensors,
    algorithm=td.FedAvg(lr=1.0),
    pace=td.Synchronous(cohort=2),
    stop=td.Stop(steps=3, accuracy=0.9),
    workers="auto",
    out=Path("runs/first"),
    progress=True,
)
short = td.run(
    config, algorithm="fedasync", stop={"trips": 20}, delay={"kind": "uniform", "low": 1.0}, privacy=None
)
own = td.run(algorithm=Mean(lr=0.5), model=td.FedBuffCNN(), data="cifar10", out="runs/own", resume=True)

accuracy: float | None = result.accuracy
state: dict[str, Tensor] = result.model
module.load_state_dict(result.model)
losses: list[float | None] = [evaluation.metric("loss") for evaluation in result.history]

served: td.Result | None = td.serve(
    config, out="live", model=module, endpoint=td.Endpoint(port=7433), stop=td.Stop(steps=10)
)
compared = td.compare(
    {"FedBuff": td.Config(algorithm=td.FedBuff()), "own": {"algorithm": Mean(), "buffer": {"size": 5}}},
    base={"local": td.Local(lr=0.1)},
    model=module,
    clients={"a": tensors},
    seeds=[0, 1],
    out="runs/compared",
)
failed: dict[str, list[str]] = compared.failed
tuned: td.Tuned = td.tune("compare.toml", settings=td.Tune(trials=5), out=Path("runs/tuned"))
page: Path = td.report([compared.out, "runs/first"]).page
result.plot("curves.png", metrics=["loss"])

try:
    td.Local(lr=-1.0)
except td.ConfigError as error:
    print(error)
