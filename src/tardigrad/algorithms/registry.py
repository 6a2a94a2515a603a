"""The algorithms that a config can name, and the loading of algorithms from the user's own files."""

from __future__ import annotations

import inspect
from typing import Annotated, get_args

from pydantic import Field, PlainSerializer, ValidationError, ValidatorFunctionWrapHandler, WrapValidator
from pydantic_core import InitErrorDetails, PydanticCustomError

from tardigrad.algorithms.ace import ACE
from tardigrad.algorithms.algorithm import Algorithm, Individual, SumOnly
from tardigrad.algorithms.area import AREA
from tardigrad.algorithms.basgd import BASGD
from tardigrad.algorithms.bucketed_fedbuff import BucketedFedBuff
from tardigrad.algorithms.ca2fl import CA2FL
from tardigrad.algorithms.cgad import CGAD
from tardigrad.algorithms.dc_asgd import DCASGD
from tardigrad.algorithms.defedavg import DeFedAvg
from tardigrad.algorithms.delayed_nesterov import DelayedNesterov
from tardigrad.algorithms.fadas import FADAS
from tardigrad.algorithms.fedac import FedAC
from tardigrad.algorithms.fedasync import FedAsync
from tardigrad.algorithms.fedavg import FedAvg
from tardigrad.algorithms.fedavgm import FedAvgM
from tardigrad.algorithms.fedbuff import FedBuff
from tardigrad.algorithms.fedbuff_corollary import FedBuffCorollary
from tardigrad.algorithms.fedopt import FedAdaGrad, FedAdam, FedYogi
from tardigrad.algorithms.fedprox import FedProx
from tardigrad.algorithms.heloco import HeLoCo
from tardigrad.algorithms.masfl import AdaMasFL, MasFL
from tardigrad.algorithms.momentum_look_ahead import MomentumLookAhead
from tardigrad.algorithms.ringmaster import Rennala, Ringmaster
from tardigrad.algorithms.robust_fedbuff import RobustFedBuff
from tardigrad.algorithms.scaffold import SCAFFOLD
from tardigrad.algorithms.sgd import SGD
from tardigrad.algorithms.weight_prediction import WeightPrediction
from tardigrad.core.own_code import PYTHON, class_place, is_place
from tardigrad.core.own_code import load_name as load_name
from tardigrad.core.setting import by_name_or_place
from tardigrad.errors import ConfigError

BuiltIn = Annotated[
    FedBuff
    | FedBuffCorollary
    | RobustFedBuff
    | WeightPrediction
    | FedAsync
    | FedAC
    | MasFL
    | AdaMasFL
    | CA2FL
    | FADAS
    | DeFedAvg
    | DelayedNesterov
    | MomentumLookAhead
    | HeLoCo
    | CGAD
    | ACE
    | AREA
    | DCASGD
    | BASGD
    | BucketedFedBuff
    | Ringmaster
    | Rennala
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
    table = {"kind": value} if isinstance(value, str) else value
    kind = table.get("kind") if isinstance(table, dict) else None
    if isinstance(table, dict) and is_place(kind):
        settings = {name: setting for name, setting in table.items() if name != "kind"}
        found = load_algorithm(str(kind))
        known = found.model_fields
        unknown = [name for name in settings if name not in known]
        if unknown and found.model_config.get("extra") == "forbid":
            says = f"the settings of {found.__name__} are: {', '.join(known) or 'none'}"
            error = PydanticCustomError("unknown_setting", says)
            raise ValidationError.from_exception_data(
                found.__name__,
                [InitErrorDetails(type=error, loc=(name,), input=settings[name]) for name in unknown],
            )
        return found.model_validate(settings)
    if isinstance(kind, str) and kind.startswith(PYTHON):
        name = kind.removeprefix(PYTHON)
        raise ConfigError(
            f"algorithm.kind: {name} was defined in Python and is in no file that can be loaded; go on from "
            f"there with td.run(..., algorithm={name}(...), resume=True), or put {name} into a file and "
            f'start a new run with kind = "file.py:{name}"'
        )
    return built_in(value)


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
    return settings | {"kind": class_place(type(algorithm))}


AnyAlgorithm = Annotated[
    BuiltIn,
    by_name_or_place,
    WrapValidator(_own_or_built_in),
    PlainSerializer(_dump, return_type=dict[str, object]),
]
