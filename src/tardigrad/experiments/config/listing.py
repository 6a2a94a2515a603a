"""The kinds that a config can name, with their settings and defaults, from the classes themselves."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import BaseModel

from tardigrad.algorithms.algorithm import Individual
from tardigrad.algorithms.registry import BuiltIn
from tardigrad.core.pace import Pace
from tardigrad.core.preconditioner import Preconditioner
from tardigrad.core.setting import Setting
from tardigrad.core.setting_errors import kinds_of
from tardigrad.core.staleness import StalenessLaw
from tardigrad.core.step import Momentum
from tardigrad.data.catalogue import Source
from tardigrad.data.partition import Partition
from tardigrad.encodings.broadcasts import AnyBroadcast
from tardigrad.encodings.kinds import AnyEncoding
from tardigrad.learning.heads.head_choice import BuiltInHead
from tardigrad.learning.models import Model
from tardigrad.learning.optimiser import ClientOptimiser
from tardigrad.learning.schedule import Schedule
from tardigrad.learning.trip_schedule import TripSchedule
from tardigrad.privacy.settings import AnyNoise, Privacy
from tardigrad.simulation.adversaries import Adversaries
from tardigrad.simulation.availability import Availability
from tardigrad.simulation.delay import Delay
from tardigrad.simulation.network import Bandwidth

LISTS: dict[str, object] = {
    "algorithms": BuiltIn,
    "delays": Delay,
    "availability": Availability,
    "adversaries": Adversaries,
    "bandwidths": Bandwidth,
    "paces": Pace,
    "staleness": StalenessLaw,
    "momentum": Momentum,
    "preconditioners": Preconditioner,
    "datasets": Source,
    "partitions": Partition,
    "models": Model,
    "heads": BuiltInHead,
    "schedules": Schedule,
    "optimisers": ClientOptimiser,
    "trip_schedules": TripSchedule,
    "encodings": AnyEncoding,
    "broadcasts": AnyBroadcast,
    "privacy": Privacy,
    "noise": AnyNoise,
}


@dataclass(frozen=True)
class ListedKind:
    """One kind that a config can name."""

    kind: str
    about: str
    settings: list[tuple[str, str, str]]
    """Name, default and meaning of each setting."""


def entries(what: str) -> list[ListedKind]:
    """Return all kinds of one list."""
    return [_entry(setting) for setting in kinds_of(LISTS[what])]


def _entry(setting: type[BaseModel]) -> ListedKind:
    about = " ".join((setting.__doc__ or "").split("\n\n")[0].split())
    if issubclass(setting, Individual):
        about += " (Needs individual uploads.)"
    rows = []
    own_first = sorted(setting.model_fields, key=lambda name: name not in vars(setting)["__annotations__"])
    for name in own_first:
        field = setting.model_fields[name]
        if name == "kind":
            continue
        if field.is_required():
            default = "required"
        elif isinstance(field.default, Setting):
            default = _short(field.default)
        else:
            default = "-" if field.default is None else str(field.default)
        rows.append((field.alias or name, default, " ".join((field.description or "").split())))
    kind = setting.model_fields["kind"].default
    return ListedKind(str(kind), about, rows)


def _short(setting: Setting) -> str:
    given = setting.model_dump(exclude_none=True)
    kind = given.pop("kind", "")
    inner = ", ".join(f"{name}={value}" for name, value in given.items() if not isinstance(value, dict))
    return f"{kind}({inner})" if inner else str(kind)
