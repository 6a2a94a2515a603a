"""The common job in Flower's simulator: synchronous FedAvg, cohorts of 50, two processes.

python with_flower.py "MLP, batch 50" 150
"""

from __future__ import annotations

import functools
import json
import os
import sys
import time
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from typing import Any

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("RAY_worker_niceness", "0")  # as all others here; Ray's default is 15

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from job import CLIENTS, EXAMPLES, JOBS, LR, Client
from torch import nn

COHORT, PROCESSES = 50, 2

clients = ClientApp()


@functools.cache
def data(name: str) -> Sequence[Client]:
    """Made once in each process."""
    return JOBS[name].data()


@clients.train()
def train(message: Message, context: Context) -> Message:
    torch.set_num_threads(1)
    name = str(message.content["config"]["job"])
    job = JOBS[name]
    x, y = data(name)[int(context.node_config["partition-id"])]
    model = job.model()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    for part in torch.randperm(len(y)).split(job.batch):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[part]), y[part]).backward()
        optimizer.step()
    metrics = MetricRecord({"num-examples": EXAMPLES})
    reply = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
    return Message(content=reply, reply_to=message)


class Timed(FedAvg):
    """Notes when each cohort is done."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.times: list[float] = []

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        received = list(replies)
        if len(received) != COHORT or any(reply.has_error() for reply in received):
            raise RuntimeError("not every client of the cohort has replied")
        result = super().aggregate_train(server_round, received)
        self.times.append(time.perf_counter())
        return result


def server(name: str, trips: int, rates: list[float]) -> ServerApp:
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        while len(list(grid.get_node_ids())) < CLIENTS:
            time.sleep(0.1)
        strategy = Timed(fraction_train=COHORT / CLIENTS, fraction_evaluate=0.0)
        strategy.start(
            grid=grid,
            initial_arrays=ArrayRecord(JOBS[name].model().state_dict()),
            train_config=ConfigRecord({"job": name}),
            num_rounds=1 + trips // COHORT,
        )
        times = strategy.times
        rates.append(COHORT * (len(times) - 1) / (times[-1] - times[0]))

    return app


def main() -> None:
    rates: list[float] = []
    run_simulation(
        server_app=server(sys.argv[1], int(sys.argv[2]), rates),
        client_app=clients,
        num_supernodes=CLIENTS,
        backend_config={
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            "init_args": {
                "address": "local",  # not another Ray cluster that runs on this machine
                "num_cpus": PROCESSES,
                "logging_level": "ERROR",
                "log_to_driver": False,
            },
        },
    )
    print(json.dumps({"trips_per_second": rates[0], "version": version("flwr")}))


if __name__ == "__main__":
    import with_flower  # its clients are found by name in Flower's own processes

    with_flower.main()
