"""The algorithms that a config can name, and the loading of algorithms from the user's own files."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from pathlib import Path
from typing import Annotated, get_args

from pydantic import Field, PlainSerializer, ValidatorFunctionWrapHandler, WrapValidator

from tardigrad.algorithms.algorithm import Algorithm, Individual, SumOnly
from tardigrad.algorithms.ca2fl import CA2FL
from tardigrad.algorithms.defedavg import DeFedAvg
from tardigrad.algorithms.fadas import FADAS
from tardigrad.algorithms.fedac import FedAC
from tardigrad.algorithms.fedasync import FedAsync
from tardigrad.algorithms.fedavg import FedAvg
from tardigrad.algorithms.fedavgm import FedAvgM
from tardigrad.algorithms.fedbuff import FedBuff
from tardigrad.algorithms.fedopt import FedAdaGrad, FedAdam, FedYogi
from tardigrad.algorithms.fedprox import FedProx
from tardigrad.algorithms.masfl import AdaMasFL, MasFL
from tardigrad.algorithms.robust_fedbuff import RobustFedBuff
from tardigrad.algorithms.scaffold import SCAFFOLD
from tardigrad.algorithms.sgd import SGD
from tardigrad.algorithms.weight_prediction import WeightPrediction
from tardigrad.core.setting import by_name
from tardigrad.errors import ConfigError

BuiltIn = Annotated[
    FedBuff
    | RobustFedBuff
    | WeightPrediction
    | FedAsync
    | FedAC
    | MasFL
    | AdaMasFL
    | CA2FL
    | FADAS
    | DeFedAvg
    | FedAvg
    | FedAvgM
    | FedProx
    | FedAdam
    | FedAdaGrad
    | FedYogi
    | SCAFFOLD
    | SGD,
    Field(discriminator="kind"),
]

DEFAULT: BuiltIn = FedBuff()
"""The algorithm of a config that names none."""

BUILT_IN: tuple[type[Algorithm], ...] = get_args(get_args(BuiltIn)[0])


def _own_or_built_in(value: object, built_in: ValidatorFunctionWrapHandler) -> object:
    if isinstance(value, SumOnly | Individual):
        return value
    if isinstance(value, dict) and ".py:" in str(value.get("kind")):
        settings = {name: setting for name, setting in value.items() if name != "kind"}
        return load_algorithm(str(value["kind"])).model_validate(settings)
    return built_in(value)


def load_name(place: str, option: str) -> object:
    """Return the object called name in the module of "path/to/file.py:name". Errors mention `option`."""
    file, colon, name = place.rpartition(":")
    path = Path(file)
    if not colon or not path.is_file():
        raise ConfigError(f"{option}: there is no file {file or place}; give path/to/file.py:name")
    own = f"tardigrad_own.{path.stem}"
    spec = importlib.util.spec_from_file_location(own, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[own] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # the user's own file can raise anything
        raise ConfigError(f"{option}: {file} cannot be imported ({type(error).__name__}: {error})") from None
    if not hasattr(module, name):
        raise ConfigError(f"{option}: {file} has nothing called {name}")
    return getattr(module, name)


def load_algorithm(place: str) -> type[SumOnly] | type[Individual]:
    """Return the class named by "path/to/file.py:Class"."""
    file, _, name = place.rpartition(":")
    found = load_name(place, "algorithm.kind")
    if not (inspect.isclass(found) and issubclass(found, SumOnly | Individual)):
        raise ConfigError(
            f"algorithm.kind: {file} has no class {name} that is a SumOnly or Individual algorithm"
        )
    if inspect.isabstract(found):
        raise ConfigError(f"algorithm.kind: {name} in {file} has no method `step`")
    return found


def _dump(algorithm: Algorithm) -> dict[str, object]:
    settings = algorithm.model_dump(mode="json", exclude_none=True)
    if isinstance(algorithm, BUILT_IN):
        return settings
    place = f"{Path(inspect.getfile(type(algorithm))).resolve()}:{type(algorithm).__qualname__}"
    return settings | {"kind": place}


AnyAlgorithm = Annotated[
    BuiltIn, by_name, WrapValidator(_own_or_built_in), PlainSerializer(_dump, return_type=dict[str, object])
]
