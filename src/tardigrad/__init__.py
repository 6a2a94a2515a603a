"""Tardigrad: asynchronous federated learning, where late gradients count.

    import tardigrad as td

    result = td.run(algorithm=td.FedBuff(lr=1.0), stop=td.Stop(trips=2000))
    print(result.accuracy)

Names are imported when they are first used, so that importing the package is fast.
"""

from __future__ import annotations

import importlib
import warnings
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_WHERE = {
    "tardigrad.errors": ["ConfigError", "RunError", "TardigradError"],
    "tardigrad.core.bookkeeping": ["Bookkeeping", "Buffer"],
    "tardigrad.core.staleness": ["Constant", "Exponential", "Hinge", "Linear", "Polynomial"],
    "tardigrad.core.pace": [
        "Arrivals",
        "Asynchronous",
        "Poisson",
        "Queued",
        "SampledStaleness",
        "Scripted",
        "Synchronous",
    ],
    "tardigrad.core.momentum": ["EMA", "HeavyBall", "Nesterov", "NoMomentum"],
    "tardigrad.core.momentum_approximation": ["Approximation", "LightApproximation"],
    "tardigrad.core.preconditioner": ["AMSGrad", "AdaGrad", "Adam", "NoPreconditioner", "Yogi"],
    "tardigrad.core.robust": ["Median", "TrimmedMean"],
    "tardigrad.algorithms.algorithm": ["Individual", "Rule", "SumOnly"],
    "tardigrad.algorithms.ca2fl": ["CA2FL"],
    "tardigrad.algorithms.defedavg": ["DeFedAvg"],
    "tardigrad.algorithms.fadas": ["FADAS"],
    "tardigrad.algorithms.fedac": ["FedAC"],
    "tardigrad.algorithms.fedasync": ["FedAsync"],
    "tardigrad.algorithms.fedavg": ["FedAvg"],
    "tardigrad.algorithms.fedavgm": ["FedAvgM"],
    "tardigrad.algorithms.fedbuff": ["FedBuff"],
    "tardigrad.algorithms.fedopt": ["FedAdaGrad", "FedAdam", "FedYogi"],
    "tardigrad.algorithms.fedprox": ["FedProx"],
    "tardigrad.algorithms.masfl": ["AdaMasFL", "MasFL"],
    "tardigrad.algorithms.robust_fedbuff": ["RobustFedBuff"],
    "tardigrad.algorithms.scaffold": ["SCAFFOLD"],
    "tardigrad.algorithms.sgd": ["SGD"],
    "tardigrad.algorithms.weight_prediction": ["WeightPrediction"],
    "tardigrad.learning.head": ["Binary", "Head", "MultiClass", "MultiLabel", "NextToken"],
    "tardigrad.learning.local": ["Local"],
    "tardigrad.learning.models": [
        "MLP",
        "BagOfWords",
        "CharLSTM",
        "FedACCNN",
        "FedACMLP",
        "FedAsyncCNN",
        "FedBuffCNN",
        "FedBuffLSTM",
        "MasFLCNN",
        "ResNet18",
        "Transformer",
    ],
    "tardigrad.learning.optimiser": ["AdamW", "LocalMomentum", "LocalSGD"],
    "tardigrad.learning.schedule": ["ConstantRate", "Cosine", "StepDecay"],
    "tardigrad.learning.trip_schedule": ["ConstantInTrip", "CosineInTrip", "LinearInTrip"],
    "tardigrad.data.sets.celeba": ["CelebA"],
    "tardigrad.data.sets.chat": ["Chat"],
    "tardigrad.data.sets.cifar10": ["CIFAR10"],
    "tardigrad.data.sets.flair": ["FLAIR"],
    "tardigrad.data.sets.own_files": ["Files"],
    "tardigrad.data.sets.hugging_face": ["from_hugging_face"],
    "tardigrad.data.sets.mnist": ["MNIST", "FashionMNIST"],
    "tardigrad.data.partition": [
        "IID",
        "Central",
        "Dirichlet",
        "DirichletByLabel",
        "LogNormalSizes",
        "Natural",
        "PowerLawSizes",
        "Saved",
        "Shards",
    ],
    "tardigrad.data.sets.sent140": ["Sent140"],
    "tardigrad.data.sets.shakespeare": ["Shakespeare"],
    "tardigrad.data.sets.digits": ["Digits"],
    "tardigrad.data.sets.emnist": ["EMNIST"],
    "tardigrad.data.sets.synthetic": ["Synthetic"],
    "tardigrad.data.split": ["Aside"],
    "tardigrad.data.sets.stackoverflow": ["StackOverflow"],
    "tardigrad.privacy.blt": ["BLT"],
    "tardigrad.privacy.clipping": ["AdaptiveClip"],
    "tardigrad.privacy.independent": ["Independent"],
    "tardigrad.privacy.settings": ["LocalPrivacy", "Participation", "PoissonSampling"],
    "tardigrad.privacy.tree": ["Tree"],
    "tardigrad.learning.images": ["CentreCrop", "Flip", "RandomCrop"],
    "tardigrad.simulation.delay": [
        "ConstantDelay",
        "ExponentialByExamples",
        "ExponentialDelay",
        "HalfNormal",
        "LogNormal",
        "Trace",
        "UniformDelay",
    ],
    "tardigrad.simulation.device": ["Device"],
    "tardigrad.data.evaluation": ["Evaluation"],
    "tardigrad.core.stop": ["Stop"],
    "tardigrad.experiments.config.reading": ["load_config"],
    "tardigrad.experiments.config.schema": ["Config"],
    "tardigrad.experiments.runs.result": ["Result"],
    "tardigrad.experiments.runs.run": ["run"],
    "tardigrad.experiments.runs.serve": ["serve"],
    "tardigrad.service.client.app": ["Client"],
    "tardigrad.service.server.endpoint": ["Endpoint"],
}
_MODULE_OF = {name: module for module, names in _WHERE.items() for name in names}

_RENAMED = {"Place": "Endpoint"}
"""Former names, which still work, with a warning."""

__all__ = ["__version__", *sorted(_MODULE_OF)]


def __getattr__(name: str) -> Any:
    if name in _RENAMED:
        message = f"tardigrad.{name} is called tardigrad.{_RENAMED[name]} now"
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        name = _RENAMED[name]
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'tardigrad' has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULE_OF[name]), name)


def __dir__() -> list[str]:
    return __all__


if TYPE_CHECKING:
    from tardigrad.experiments.config.reading import load_config as load_config
    from tardigrad.experiments.config.schema import Config as Config
    from tardigrad.experiments.runs.result import Result as Result
    from tardigrad.experiments.runs.run import run as run
    from tardigrad.experiments.runs.serve import serve as serve
    from tardigrad.service.client.app import Client as Client
    from tardigrad.service.server.endpoint import Endpoint as Endpoint
