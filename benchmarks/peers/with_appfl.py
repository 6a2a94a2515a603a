"""The common job in APPFL's virtual-time simulator: FedBuff, 100 clients at work, one process.

python with_appfl.py "MLP, batch 50" 150

APPFL keeps a model for each of the 1,000 clients, at work or not. Its setting `optimize_memory`, which is on
by default, collects garbage several times a trip; it is off here, because that takes most of the time. What
it logs for each trip is not written.
"""

# ruff: noqa: E402
# (APPFL imports piq, for reports about image quality that are not made here; piq needs torchvision)
from __future__ import annotations

import json
import logging
import os
import random
import sys
import time
import types
from importlib.metadata import version
from typing import Any

os.environ.setdefault("WANDB_MODE", "disabled")
sys.modules["piq"] = types.ModuleType("piq")

import torch
from appfl.agent import SimClientAgent, SimServerAgent
from appfl.vsim import AsyncSimDriver, ClientProfile
from job import JOBS, LR
from torch.utils.data import TensorDataset

AT_WORK, BUFFER = 100, 10
WARM = 100
"""Trips that are not counted: those of the clients that start at once in the beginning."""


class Driver(AsyncSimDriver):
    """Notes when each client has trained."""

    def __init__(self, *given: Any, **settings: Any) -> None:
        super().__init__(*given, **settings)
        self.times: list[float] = []

    def _handle_train_start(self, cid: str, dispatch_time: float) -> None:
        super()._handle_train_start(cid, dispatch_time)
        self.times.append(time.perf_counter())


def no_metric(_true: Any, _predicted: Any) -> float:
    """APPFL asks for a metric of the training examples, which no other simulator computes here."""
    return 0.0


def measure(name: str, trips: int) -> float:
    """Trips per second, the first few left out."""
    job, data = JOBS[name], JOBS[name].data()

    class Server(SimServerAgent):
        def _load_model(self) -> None:
            self.model = job.model()

    class Client(SimClientAgent):
        def _load_model(self) -> None:
            self.model = job.model()

        def _load_metric(self) -> None:
            self.metric = no_metric

    training = {
        "trainer": "VanillaTrainer",
        "mode": "epoch",
        "num_local_epochs": 1,
        "optim": "SGD",
        "optim_args": {"lr": LR},
        "loss_fn": "CrossEntropyLoss",
        "train_batch_size": job.batch,
        "device": "cpu",
        "logging_output_filename": "",
        "optimize_memory": False,
    }
    server = Server(
        {
            "client_configs": {"train_configs": training},
            "server_configs": {
                "num_clients": len(data),
                "num_global_epochs": trips + 1,  # an epoch is an upload
                "scheduler": "AsyncScheduler",
                "scheduler_kwargs": {"optimize_memory": False},
                "aggregator": "FedBuffAggregator",
                # an upload weighs alpha over the number of clients: so the buffer is a mean
                "aggregator_kwargs": {"K": BUFFER, "alpha": len(data) / BUFFER, "optimize_memory": False},
                "optimize_memory": False,
            },
        }
    )
    clients = [
        Client(
            {"train_configs": training, "optimize_memory": False},
            client_id=str(number),
            client_dataset=TensorDataset(x, y),
        )
        for number, (x, y) in enumerate(data)
    ]
    draw = random.Random(0)
    profiles = {client.get_id(): ClientProfile(compute_factor=abs(draw.gauss(0, 1))) for client in clients}
    driver = Driver(
        server,
        clients,
        profiles,
        max_in_flight=AT_WORK,
        logger=logging.getLogger("appfl"),
        base_step_time=1.0,
    )
    driver.run()
    if len(driver.history) != trips + 1 or not all(driver.verify(trips + 1).values()):
        raise RuntimeError(f"APPFL's own checks fail: {driver.verify(trips + 1)}")
    counted = driver.times[WARM - 1 :]
    return (len(counted) - 1) / (counted[-1] - counted[0])


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    torch.set_num_threads(1)
    rate = measure(sys.argv[1], int(sys.argv[2]))
    print(json.dumps({"trips_per_second": rate, "version": version("appfl")}))
