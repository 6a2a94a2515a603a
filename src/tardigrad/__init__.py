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

__version__ = "0.2.0"

_WHERE = {
    "tardigrad.errors": ["ConfigError", "RunError", "TardigradError"],
    "tardigrad.core.bookkeeping": ["Bookkeeping", "Buffer"],
    "tardigrad.core.setting_errors": ["SettingError"],
    "tardigrad.core.staleness": ["Constant", "CosineGate", "Exponential", "Hinge", "Linear", "Polynomial"],
    "tardigrad.core.pace": [
        "Arrivals",
        "Asynchronous",
        "Poisson",
        "Queued",
        "SampledStaleness",
        "Scripted",
        "Synchronous",
    ],
    "tardigrad.core.minimum_norm_approximation": ["MinimumNormApproximation"],
    "tardigrad.core.momentum": ["EMA", "HeavyBall", "Nesterov", "NoMomentum"],
    "tardigrad.core.momentum_approximation": ["Approximation", "LightApproximation"],
    "tardigrad.core.preconditioner": ["AMSGrad", "AdaGrad", "Adam", "NoPreconditioner", "Yogi"],
    "tardigrad.core.robust": ["Median", "TrimmedMean"],
    "tardigrad.algorithms.algorithm": ["Individual", "Rule", "SumOnly"],
    "tardigrad.algorithms.ace": ["ACE"],
    "tardigrad.algorithms.area": ["AREA"],
    "tardigrad.algorithms.basgd": ["BASGD"],
    "tardigrad.algorithms.bucketed_fedbuff": ["BucketedFedBuff"],
    "tardigrad.algorithms.ca2fl": ["CA2FL"],
    "tardigrad.algorithms.cgad": ["CGAD"],
    "tardigrad.algorithms.dc_asgd": ["DCASGD"],
    "tardigrad.algorithms.defedavg": ["DeFedAvg"],
    "tardigrad.algorithms.delayed_nesterov": ["DelayedNesterov"],
    "tardigrad.algorithms.fadas": ["FADAS"],
    "tardigrad.algorithms.fedac": ["FedAC"],
    "tardigrad.algorithms.fedasync": ["FedAsync"],
    "tardigrad.algorithms.fedavg": ["FedAvg"],
    "tardigrad.algorithms.fedavgm": ["FedAvgM"],
    "tardigrad.algorithms.fedbuff": ["FedBuff"],
    "tardigrad.algorithms.fedbuff_corollary": ["FedBuffCorollary"],
    "tardigrad.algorithms.fedopt": ["FedAdaGrad", "FedAdam", "FedYogi"],
    "tardigrad.algorithms.fedprox": ["FedProx"],
    "tardigrad.algorithms.heloco": ["HeLoCo"],
    "tardigrad.algorithms.masfl": ["AdaMasFL", "MasFL"],
    "tardigrad.algorithms.momentum_look_ahead": ["MomentumLookAhead"],
    "tardigrad.algorithms.ringmaster": ["Rennala", "Ringmaster"],
    "tardigrad.algorithms.robust_fedbuff": ["RobustFedBuff"],
    "tardigrad.algorithms.scaffold": ["SCAFFOLD"],
    "tardigrad.algorithms.sgd": ["SGD"],
    "tardigrad.algorithms.weight_prediction": ["WeightPrediction"],
    "tardigrad.encodings.bfloat16": ["BFloat16"],
    "tardigrad.encodings.broadcasts": ["BFloat16Broadcast", "DifferenceBroadcast", "Float32Broadcast"],
    "tardigrad.encodings.common_grid": ["Grid"],
    "tardigrad.encodings.float32": ["Float32"],
    "tardigrad.encodings.int4": ["Int4"],
    "tardigrad.encodings.int8": ["Int8"],
    "tardigrad.encodings.randomk": ["RandomK"],
    "tardigrad.encodings.sign": ["Sign"],
    "tardigrad.encodings.topk": ["TopK"],
    "tardigrad.learning.heads": [
        "Binary",
        "Head",
        "ModuleLoss",
        "MultiClass",
        "MultiLabel",
        "NextToken",
        "Regression",
    ],
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
    "tardigrad.learning.normalisation": ["with_group_norm"],
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
    "tardigrad.secure.secure_settings": ["HelperAddress", "Secure"],
    "tardigrad.learning.images": ["CentreCrop", "Flip", "RandomCrop"],
    "tardigrad.simulation.adversaries": ["Backdoor", "FreeRider", "Scaled", "SignFlip", "StaleReplay"],
    "tardigrad.simulation.availability": ["Always", "AvailabilityTrace", "DayNight", "OnOff"],
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
    "tardigrad.simulation.network": [
        "BandwidthTrace",
        "ConstantBandwidth",
        "LogNormalBandwidth",
        "Network",
    ],
    "tardigrad.data.evaluation": ["Evaluation"],
    "tardigrad.core.stop": ["Stop"],
    "tardigrad.experiments.config.reading": ["load_config"],
    "tardigrad.experiments.config.schema": ["Config"],
    "tardigrad.experiments.compare.compared": ["Compared", "compare"],
    "tardigrad.experiments.report.write": ["Report", "report"],
    "tardigrad.experiments.runs.result": ["Result"],
    "tardigrad.experiments.runs.run": ["run"],
    "tardigrad.experiments.runs.serve": ["serve"],
    "tardigrad.experiments.runs.serve_all": ["serve_all"],
    "tardigrad.experiments.tune.search_space": ["Tune"],
    "tardigrad.experiments.tune.tuned_entries": ["Tuned", "tune"],
    "tardigrad.service.client.app": ["Client"],
    "tardigrad.service.server.endpoint": ["Endpoint"],
    "tardigrad.service.server.service_settings": ["ServiceSettings"],
}
_MODULE_OF = {name: module for module, names in _WHERE.items() for name in names}

_RENAMED = {"Place": "Endpoint"}
"""Former names, which still work, with a warning."""

__all__ = ["__version__", *sorted(_MODULE_OF)]


if TYPE_CHECKING:  # the names of `_WHERE` once more, for type checkers and editors
    from tardigrad.algorithms.ace import ACE as ACE
    from tardigrad.algorithms.algorithm import Individual as Individual
    from tardigrad.algorithms.algorithm import Rule as Rule
    from tardigrad.algorithms.algorithm import SumOnly as SumOnly
    from tardigrad.algorithms.area import AREA as AREA
    from tardigrad.algorithms.basgd import BASGD as BASGD
    from tardigrad.algorithms.bucketed_fedbuff import BucketedFedBuff as BucketedFedBuff
    from tardigrad.algorithms.ca2fl import CA2FL as CA2FL
    from tardigrad.algorithms.cgad import CGAD as CGAD
    from tardigrad.algorithms.dc_asgd import DCASGD as DCASGD
    from tardigrad.algorithms.defedavg import DeFedAvg as DeFedAvg
    from tardigrad.algorithms.delayed_nesterov import DelayedNesterov as DelayedNesterov
    from tardigrad.algorithms.fadas import FADAS as FADAS
    from tardigrad.algorithms.fedac import FedAC as FedAC
    from tardigrad.algorithms.fedasync import FedAsync as FedAsync
    from tardigrad.algorithms.fedavg import FedAvg as FedAvg
    from tardigrad.algorithms.fedavgm import FedAvgM as FedAvgM
    from tardigrad.algorithms.fedbuff import FedBuff as FedBuff
    from tardigrad.algorithms.fedbuff_corollary import FedBuffCorollary as FedBuffCorollary
    from tardigrad.algorithms.fedopt import FedAdaGrad as FedAdaGrad
    from tardigrad.algorithms.fedopt import FedAdam as FedAdam
    from tardigrad.algorithms.fedopt import FedYogi as FedYogi
    from tardigrad.algorithms.fedprox import FedProx as FedProx
    from tardigrad.algorithms.heloco import HeLoCo as HeLoCo
    from tardigrad.algorithms.masfl import AdaMasFL as AdaMasFL
    from tardigrad.algorithms.masfl import MasFL as MasFL
    from tardigrad.algorithms.momentum_look_ahead import MomentumLookAhead as MomentumLookAhead
    from tardigrad.algorithms.ringmaster import Rennala as Rennala
    from tardigrad.algorithms.ringmaster import Ringmaster as Ringmaster
    from tardigrad.algorithms.robust_fedbuff import RobustFedBuff as RobustFedBuff
    from tardigrad.algorithms.scaffold import SCAFFOLD as SCAFFOLD
    from tardigrad.algorithms.sgd import SGD as SGD
    from tardigrad.algorithms.weight_prediction import WeightPrediction as WeightPrediction
    from tardigrad.core.bookkeeping import Bookkeeping as Bookkeeping
    from tardigrad.core.bookkeeping import Buffer as Buffer
    from tardigrad.core.minimum_norm_approximation import MinimumNormApproximation as MinimumNormApproximation
    from tardigrad.core.momentum import EMA as EMA
    from tardigrad.core.momentum import HeavyBall as HeavyBall
    from tardigrad.core.momentum import Nesterov as Nesterov
    from tardigrad.core.momentum import NoMomentum as NoMomentum
    from tardigrad.core.momentum_approximation import Approximation as Approximation
    from tardigrad.core.momentum_approximation import LightApproximation as LightApproximation
    from tardigrad.core.pace import Arrivals as Arrivals
    from tardigrad.core.pace import Asynchronous as Asynchronous
    from tardigrad.core.pace import Poisson as Poisson
    from tardigrad.core.pace import Queued as Queued
    from tardigrad.core.pace import SampledStaleness as SampledStaleness
    from tardigrad.core.pace import Scripted as Scripted
    from tardigrad.core.pace import Synchronous as Synchronous
    from tardigrad.core.preconditioner import AdaGrad as AdaGrad
    from tardigrad.core.preconditioner import Adam as Adam
    from tardigrad.core.preconditioner import AMSGrad as AMSGrad
    from tardigrad.core.preconditioner import NoPreconditioner as NoPreconditioner
    from tardigrad.core.preconditioner import Yogi as Yogi
    from tardigrad.core.robust import Median as Median
    from tardigrad.core.robust import TrimmedMean as TrimmedMean
    from tardigrad.core.setting_errors import SettingError as SettingError
    from tardigrad.core.staleness import Constant as Constant
    from tardigrad.core.staleness import CosineGate as CosineGate
    from tardigrad.core.staleness import Exponential as Exponential
    from tardigrad.core.staleness import Hinge as Hinge
    from tardigrad.core.staleness import Linear as Linear
    from tardigrad.core.staleness import Polynomial as Polynomial
    from tardigrad.core.stop import Stop as Stop
    from tardigrad.data.evaluation import Evaluation as Evaluation
    from tardigrad.data.partition import IID as IID
    from tardigrad.data.partition import Central as Central
    from tardigrad.data.partition import Dirichlet as Dirichlet
    from tardigrad.data.partition import DirichletByLabel as DirichletByLabel
    from tardigrad.data.partition import LogNormalSizes as LogNormalSizes
    from tardigrad.data.partition import Natural as Natural
    from tardigrad.data.partition import PowerLawSizes as PowerLawSizes
    from tardigrad.data.partition import Saved as Saved
    from tardigrad.data.partition import Shards as Shards
    from tardigrad.data.sets.celeba import CelebA as CelebA
    from tardigrad.data.sets.chat import Chat as Chat
    from tardigrad.data.sets.cifar10 import CIFAR10 as CIFAR10
    from tardigrad.data.sets.digits import Digits as Digits
    from tardigrad.data.sets.emnist import EMNIST as EMNIST
    from tardigrad.data.sets.flair import FLAIR as FLAIR
    from tardigrad.data.sets.hugging_face import from_hugging_face as from_hugging_face
    from tardigrad.data.sets.mnist import MNIST as MNIST
    from tardigrad.data.sets.mnist import FashionMNIST as FashionMNIST
    from tardigrad.data.sets.own_files import Files as Files
    from tardigrad.data.sets.sent140 import Sent140 as Sent140
    from tardigrad.data.sets.shakespeare import Shakespeare as Shakespeare
    from tardigrad.data.sets.stackoverflow import StackOverflow as StackOverflow
    from tardigrad.data.sets.synthetic import Synthetic as Synthetic
    from tardigrad.data.split import Aside as Aside
    from tardigrad.encodings.bfloat16 import BFloat16 as BFloat16
    from tardigrad.encodings.broadcasts import BFloat16Broadcast as BFloat16Broadcast
    from tardigrad.encodings.broadcasts import DifferenceBroadcast as DifferenceBroadcast
    from tardigrad.encodings.broadcasts import Float32Broadcast as Float32Broadcast
    from tardigrad.encodings.common_grid import Grid as Grid
    from tardigrad.encodings.float32 import Float32 as Float32
    from tardigrad.encodings.int4 import Int4 as Int4
    from tardigrad.encodings.int8 import Int8 as Int8
    from tardigrad.encodings.randomk import RandomK as RandomK
    from tardigrad.encodings.sign import Sign as Sign
    from tardigrad.encodings.topk import TopK as TopK
    from tardigrad.errors import ConfigError as ConfigError
    from tardigrad.errors import RunError as RunError
    from tardigrad.errors import TardigradError as TardigradError
    from tardigrad.experiments.compare.compared import Compared as Compared
    from tardigrad.experiments.compare.compared import compare as compare
    from tardigrad.experiments.config.reading import load_config as load_config
    from tardigrad.experiments.config.schema import Config as Config
    from tardigrad.experiments.report.write import Report as Report
    from tardigrad.experiments.report.write import report as report
    from tardigrad.experiments.runs.result import Result as Result
    from tardigrad.experiments.runs.run import run as run
    from tardigrad.experiments.runs.serve import serve as serve
    from tardigrad.experiments.runs.serve_all import serve_all as serve_all
    from tardigrad.experiments.tune.search_space import Tune as Tune
    from tardigrad.experiments.tune.tuned_entries import Tuned as Tuned
    from tardigrad.experiments.tune.tuned_entries import tune as tune
    from tardigrad.learning.heads import Binary as Binary
    from tardigrad.learning.heads import Head as Head
    from tardigrad.learning.heads import ModuleLoss as ModuleLoss
    from tardigrad.learning.heads import MultiClass as MultiClass
    from tardigrad.learning.heads import MultiLabel as MultiLabel
    from tardigrad.learning.heads import NextToken as NextToken
    from tardigrad.learning.heads import Regression as Regression
    from tardigrad.learning.images import CentreCrop as CentreCrop
    from tardigrad.learning.images import Flip as Flip
    from tardigrad.learning.images import RandomCrop as RandomCrop
    from tardigrad.learning.local import Local as Local
    from tardigrad.learning.models import MLP as MLP
    from tardigrad.learning.models import BagOfWords as BagOfWords
    from tardigrad.learning.models import CharLSTM as CharLSTM
    from tardigrad.learning.models import FedACCNN as FedACCNN
    from tardigrad.learning.models import FedACMLP as FedACMLP
    from tardigrad.learning.models import FedAsyncCNN as FedAsyncCNN
    from tardigrad.learning.models import FedBuffCNN as FedBuffCNN
    from tardigrad.learning.models import FedBuffLSTM as FedBuffLSTM
    from tardigrad.learning.models import MasFLCNN as MasFLCNN
    from tardigrad.learning.models import ResNet18 as ResNet18
    from tardigrad.learning.models import Transformer as Transformer
    from tardigrad.learning.normalisation import with_group_norm as with_group_norm
    from tardigrad.learning.optimiser import AdamW as AdamW
    from tardigrad.learning.optimiser import LocalMomentum as LocalMomentum
    from tardigrad.learning.optimiser import LocalSGD as LocalSGD
    from tardigrad.learning.schedule import ConstantRate as ConstantRate
    from tardigrad.learning.schedule import Cosine as Cosine
    from tardigrad.learning.schedule import StepDecay as StepDecay
    from tardigrad.learning.trip_schedule import ConstantInTrip as ConstantInTrip
    from tardigrad.learning.trip_schedule import CosineInTrip as CosineInTrip
    from tardigrad.learning.trip_schedule import LinearInTrip as LinearInTrip
    from tardigrad.privacy.blt import BLT as BLT
    from tardigrad.privacy.clipping import AdaptiveClip as AdaptiveClip
    from tardigrad.privacy.independent import Independent as Independent
    from tardigrad.privacy.settings import LocalPrivacy as LocalPrivacy
    from tardigrad.privacy.settings import Participation as Participation
    from tardigrad.privacy.settings import PoissonSampling as PoissonSampling
    from tardigrad.privacy.tree import Tree as Tree
    from tardigrad.secure.secure_settings import HelperAddress as HelperAddress
    from tardigrad.secure.secure_settings import Secure as Secure
    from tardigrad.service.client.app import Client as Client
    from tardigrad.service.server.endpoint import Endpoint as Endpoint
    from tardigrad.service.server.service_settings import ServiceSettings as ServiceSettings
    from tardigrad.simulation.adversaries import Backdoor as Backdoor
    from tardigrad.simulation.adversaries import FreeRider as FreeRider
    from tardigrad.simulation.adversaries import Scaled as Scaled
    from tardigrad.simulation.adversaries import SignFlip as SignFlip
    from tardigrad.simulation.adversaries import StaleReplay as StaleReplay
    from tardigrad.simulation.availability import Always as Always
    from tardigrad.simulation.availability import AvailabilityTrace as AvailabilityTrace
    from tardigrad.simulation.availability import DayNight as DayNight
    from tardigrad.simulation.availability import OnOff as OnOff
    from tardigrad.simulation.delay import ConstantDelay as ConstantDelay
    from tardigrad.simulation.delay import ExponentialByExamples as ExponentialByExamples
    from tardigrad.simulation.delay import ExponentialDelay as ExponentialDelay
    from tardigrad.simulation.delay import HalfNormal as HalfNormal
    from tardigrad.simulation.delay import LogNormal as LogNormal
    from tardigrad.simulation.delay import Trace as Trace
    from tardigrad.simulation.delay import UniformDelay as UniformDelay
    from tardigrad.simulation.device import Device as Device
    from tardigrad.simulation.network import BandwidthTrace as BandwidthTrace
    from tardigrad.simulation.network import ConstantBandwidth as ConstantBandwidth
    from tardigrad.simulation.network import LogNormalBandwidth as LogNormalBandwidth
    from tardigrad.simulation.network import Network as Network
else:

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
