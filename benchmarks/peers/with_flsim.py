"""The common job in FLSim's asynchronous simulator: FedBuff, about 100 clients at work, one process.

python with_flsim.py "MLP, batch 50" 150

FLSim copies the model for each client at work; with 100 it has less to do than with our 1,000. Batches are
cut before the clock starts.
"""

# ruff: noqa: E402
# (FLSim is imported under a decorator of ours: see `hashable`)
from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import logging
import math
import os
import sys
import time
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

os.environ.setdefault("TQDM_DISABLE", "1")

import torch
from job import JOBS, LR, Client
from omegaconf import OmegaConf
from torch import nn

ordinary = dataclasses.dataclass


def hashable(cls: Any = None, /, **options: Any) -> Any:
    """FLSim's settings have other settings as default values, which Python takes since 3.11 only if they can
    be hashed."""
    if cls is None:
        return lambda given: hashable(given, **options)
    return ordinary(cls, **options | ({"unsafe_hash": True} if cls.__module__.startswith("flsim.") else {}))


dataclasses.dataclass = hashable
from flsim.clients.base_client import ClientConfig
from flsim.data.data_provider import IFLDataProvider, IFLUserData
from flsim.interfaces.model import IFLModel
from flsim.optimizers.async_aggregators import FedAvgWithLRFedBuffAggregatorConfig
from flsim.optimizers.local_optimizers import LocalOptimizerSGDConfig
from flsim.trainers.async_trainer import AsyncTrainer, AsyncTrainerConfig
from flsim.utils.async_trainer.training_event_generator import (
    AsyncTrainingEventGeneratorConfig,
    ConstantAsyncTrainingStartTimeDistrConfig,
)
from flsim.utils.simple_batch_metrics import FLBatchMetrics
from flsim.utils.timing.training_duration_distribution import PerUserHalfNormalDurationDistributionConfig

dataclasses.dataclass = ordinary

AT_WORK, BUFFER = 100, 10
WARM = 100
"""Trips that are not counted: until as many end as start."""


class Enough(Exception):
    """As many trips as were asked for."""


class Clock:
    """Counts trips; ends the run after the last."""

    def __init__(self, trips: int) -> None:
        self._trips, self._done, self._began, self.rate = trips, 0, 0.0, 0.0

    def trip(self) -> None:
        if self._done == WARM:
            self._began = time.perf_counter()
        if self._done == WARM + self._trips:
            self.rate = self._trips / (time.perf_counter() - self._began)
            raise Enough
        self._done += 1


class Model(IFLModel):
    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def fl_forward(self, batch: Any) -> FLBatchMetrics:
        x, y = batch["x"], batch["y"]
        outputs = self.module(x)
        loss = nn.functional.cross_entropy(outputs, y)
        return FLBatchMetrics(
            loss=loss, num_examples=len(y), predictions=outputs.detach(), targets=y, model_inputs=[]
        )

    def fl_create_training_batch(self, **batch: Any) -> Any:
        return batch

    def fl_get_module(self) -> nn.Module:
        return self.module

    def fl_cuda(self) -> None:
        raise NotImplementedError("there is no GPU here")

    def get_eval_metrics(self, batch: Any) -> FLBatchMetrics:
        return self.fl_forward(batch)

    def get_num_examples(self, batch: Any) -> int:
        return len(batch["y"])


class User(IFLUserData):
    def __init__(self, client: Client, batch: int, clock: Clock) -> None:
        x, y = client
        self._batches = [{"x": a, "y": b} for a, b in zip(x.split(batch), y.split(batch))]
        self._count, self._clock = len(y), clock

    def num_train_examples(self) -> int:
        return self._count

    def num_train_batches(self) -> int:
        return len(self._batches)

    def train_data(self) -> Iterator[Any]:
        self._clock.trip()
        return iter(self._batches)

    def num_eval_examples(self) -> int:
        return 0

    def num_eval_batches(self) -> int:
        return 0

    def eval_data(self) -> Iterator[Any]:
        return iter([])


class Provider(IFLDataProvider):
    def __init__(self, users: list[User]) -> None:
        self._users = users

    def train_user_ids(self) -> list[int]:
        return list(range(len(self._users)))

    def num_train_users(self) -> int:
        return len(self._users)

    def get_train_user(self, user_index: int) -> User:
        return self._users[user_index]

    def train_users(self) -> list[User]:
        return self._users

    def eval_users(self) -> list[User]:
        return []

    def test_users(self) -> list[User]:
        return []


def measure(name: str, trips: int) -> float:
    """Trips per second, the first few left out."""
    job, clock = JOBS[name], Clock(trips)
    settings = AsyncTrainerConfig(
        epochs=10**6,
        do_eval=False,
        report_train_metrics=False,
        always_keep_trained_model=True,
        client=ClientConfig(epochs=1, optimizer=LocalOptimizerSGDConfig(lr=LR)),
        aggregator=FedAvgWithLRFedBuffAggregatorConfig(lr=1 / BUFFER, buffer_size=BUFFER),
        training_event_generator=AsyncTrainingEventGeneratorConfig(
            # Little's law: so many start in a unit of time that AT_WORK are under way
            training_start_time_distribution=ConstantAsyncTrainingStartTimeDistrConfig(
                training_rate=AT_WORK / math.sqrt(2 / math.pi)
            ),
            duration_distribution_generator=PerUserHalfNormalDurationDistributionConfig(
                training_duration_sd=1.0, training_duration_min=0.0
            ),
        ),
    )
    trainer = AsyncTrainer(model=Model(job.model()), cuda_enabled=False, **OmegaConf.structured(settings))
    users = [User(client, job.batch, clock) for client in job.data()]
    with contextlib.suppress(Enough), contextlib.redirect_stdout(io.StringIO()):
        trainer.train(data_provider=Provider(users), metrics_reporter=None, num_total_users=len(users))
    return clock.rate


if __name__ == "__main__":
    logging.disable(logging.INFO)
    torch.set_num_threads(1)
    rate = measure(sys.argv[1], int(sys.argv[2]))
    print(json.dumps({"trips_per_second": rate, "version": version("flsim")}))
