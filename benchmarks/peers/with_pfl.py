"""The common job in pfl's simulator: synchronous FedAvg, cohorts of 50, one process.

python with_pfl.py "MLP, batch 50" 1000
"""

from __future__ import annotations

import json
import sys
import time
from importlib.metadata import version
from typing import Any

import torch
from job import JOBS, LR
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn

COHORT = 50


class Model(nn.Sequential):
    """With the two methods that pfl asks for."""

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(self(x), y)

    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Any]:
        with torch.no_grad():
            return {"loss": Weighted(len(y) * self.loss(x, y).item(), len(y))}


class Clock(TrainingProcessCallback):
    """Notes when each cohort is done."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def after_central_iteration(self, *_: Any, **__: Any) -> tuple[bool, Metrics]:
        self.times.append(time.perf_counter())
        return False, Metrics()


def measure(name: str, trips: int) -> float:
    """Trips per second, the first cohort (which pfl evaluates as well) left out."""
    job = JOBS[name]
    users = [PyTorchTensorDataset(client, user_id=str(n)) for n, client in enumerate(job.data())]
    data = FederatedDataset(users.__getitem__, get_user_sampler("random", list(range(len(users)))))
    module, clock = Model(*job.model().children()), Clock()
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=1 + trips // COHORT,
            evaluation_frequency=10**9,
            train_cohort_size=COHORT,
            val_cohort_size=None,
        ),
        backend=SimulatedBackend(training_data=data, val_data=data),
        model=PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0)),
        model_train_params=NNTrainHyperParams(
            local_num_epochs=1, local_learning_rate=LR, local_batch_size=job.batch
        ),
        model_eval_params=NNEvalHyperParams(local_batch_size=None),
        callbacks=[clock],
        send_metrics_to_platform=False,
    )
    return COHORT * (len(clock.times) - 1) / (clock.times[-1] - clock.times[0])


if __name__ == "__main__":
    torch.set_num_threads(1)
    rate = measure(sys.argv[1], int(sys.argv[2]))
    print(json.dumps({"trips_per_second": rate, "version": version("pfl")}))
