"""The config of a run: one TOML file, or the same objects in Python."""

from __future__ import annotations

import difflib
import tomllib
import types
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import tomli_w
from pydantic import NonNegativeInt, ValidationError

from tardigrad.algorithms.algorithm import SumOnly
from tardigrad.algorithms.registry import DEFAULT, AnyAlgorithm
from tardigrad.core.bookkeeping import Buffer
from tardigrad.core.momentum_approximation import Approximation
from tardigrad.core.pace import (
    Arrivals,
    Asynchronous,
    Pace,
    Poisson,
    Queued,
    SampledStaleness,
    Scripted,
    Synchronous,
)
from tardigrad.core.setting import Setting, by_name
from tardigrad.core.stop import Stop
from tardigrad.data.catalogue import Source
from tardigrad.data.evaluation import Evaluation
from tardigrad.data.sets.digits import Digits
from tardigrad.errors import ConfigError
from tardigrad.learning.local import Local
from tardigrad.learning.models import MLP, Model
from tardigrad.privacy.settings import LocalPrivacy, Privacy
from tardigrad.service.server.service_settings import ServiceSettings
from tardigrad.simulation.delay import Delay, HalfNormal, read_trace
from tardigrad.simulation.device import Device


class Config(Setting):
    """Everything that determines a run."""

    seed: NonNegativeInt = 0
    """Every random draw depends on it."""
    algorithm: AnyAlgorithm = DEFAULT
    """How the model moves. `tardigrad list algorithms`"""
    data: Source | None = Digits()
    """What is learned from. `tardigrad list datasets`"""
    model: Model | None = MLP()
    """What learns. `tardigrad list models`"""
    local: Local = Local()
    """How a client trains."""
    pace: Pace | None = None
    """Who may start when. Default: asynchronous, or synchronous for algorithms that work in rounds.
    `tardigrad list paces`"""
    buffer: Buffer = Buffer()
    """What counts, and how many uploads make a step."""
    delay: Delay = HalfNormal()
    """How long a trip takes. `tardigrad list delays`"""
    privacy: Privacy | None = None
    """What is promised to the clients. Default: nothing. `tardigrad list privacy`"""
    device: Annotated[Device, by_name] = Device()
    """Where models and examples are: "cpu", or "cuda" (docs/gpu.md)."""
    stop: Stop = Stop(trips=2000)
    """When the run ends."""
    evaluation: Evaluation = Evaluation()
    """When and on what the model is evaluated."""
    service: ServiceSettings | None = None
    """What `tardigrad serve` allows its clients; a simulation does without."""

    def resolved(self, population: int) -> Config:
        """With the defaults that depend on other settings filled in, for this many clients; a ConfigError
        if the settings do not fit each other."""
        algorithm, buffer = self.algorithm, self.buffer
        pace = self.pace if self.pace is not None else algorithm.default_pace(population)
        name = algorithm.name
        algorithm.check_pace(pace, buffer)
        if isinstance(pace, Synchronous):
            if buffer.size not in (None, pace.cohort):
                raise ConfigError(
                    f"buffer.size: a synchronous round is closed by its cohort ({pace.cohort}); "
                    f"leave buffer.size out, or set it to {pace.cohort}, not {buffer.size}"
                )
            size = pace.cohort
        else:
            size = buffer.size or algorithm.default_buffer
        if not isinstance(pace, Poisson) or buffer.size is not None:
            buffer = buffer.model_copy(update={"size": size})
        if buffer.staleness_bound is None and algorithm.default_staleness_bound is not None:
            buffer = buffer.model_copy(update={"staleness_bound": algorithm.default_staleness_bound})
        if algorithm.single_upload and buffer.size != 1:
            raise ConfigError(
                f"buffer.size: {name} moves the model at every upload, so it must be 1; "
                + (f"{buffer.size} was given" if buffer.size else "set it, or this pace takes all who joined")
            )
        bound = buffer.staleness_bound
        if isinstance(pace, SampledStaleness) and (
            self.delay.give_up or (bound is not None and bound < pace.maximum)
        ):
            raise ConfigError(
                "pace.kind 'sampled_staleness' draws the staleness of uploads that count: it needs "
                "delay.give_up = 0 and no buffer.staleness_bound below pace.maximum"
            )
        config = self.model_copy(update={"pace": pace, "buffer": buffer})
        config._check_that_time_passes()
        config._check_that_steps_happen()
        config._check_population(population)
        config._check_privacy()
        return config

    def _check_that_time_passes(self) -> None:
        stop, delay = self.stop, self.delay
        longest = {"constant": "duration", "uniform": "high"}.get(delay.kind)
        if (
            stop.trips is None
            and stop.steps is None
            and longest is not None
            and getattr(delay, longest) == 0
            and not isinstance(self.pace, Arrivals | Scripted | SampledStaleness)
        ):
            raise ConfigError(
                f"stop.virtual_time: with delay.{longest} = 0 no time passes and the run never ends; "
                "give stop.trips or stop.steps too"
            )

    def _check_that_steps_happen(self) -> None:
        size, trips = self.buffer.size, self.stop.trips
        if size is None:
            return
        if isinstance(self.pace, Queued) and self.pace.concurrency < size:
            raise ConfigError(
                f"pace.concurrency: must be at least buffer.size ({size}), or no step can ever be made; "
                f"{self.pace.concurrency} was given"
            )
        if trips is not None and size > trips:
            raise ConfigError(
                f"buffer.size: {size} uploads make a step, but the run stops after {trips} trips "
                f"(stop.trips): the model would never move; give at most {trips}"
            )
        if isinstance(self.pace, Scripted):
            script = len(self.pace.trips or read_trace(self.pace.file or Path(), "pace.file"))
            if size > script:
                raise ConfigError(
                    f"buffer.size: {size} uploads make a step, but the script has {script} trips: "
                    f"the model would never move; give at most {script}"
                )

    def _check_privacy(self) -> None:
        privacy, algorithm = self.privacy, self.algorithm
        if privacy is None:
            return
        name = algorithm.name
        if self.buffer.weights != "equal":
            raise ConfigError(
                "buffer.weights: with privacy all clients weigh the same, for the number of examples is "
                "private too; leave it out"
            )
        if algorithm.uses_local_steps and self.local.steps is None:
            raise ConfigError(
                f"local.steps: {name} derives its step sizes from the number of local steps, and epochs "
                "would tell how many examples the clients have; give steps"
            )
        if isinstance(privacy, LocalPrivacy):
            return
        if not isinstance(algorithm, SumOnly):
            raise ConfigError(
                f"privacy.kind: {name} looks at every upload by itself, so noise on their sum does not "
                "protect them; use privacy.kind 'local', or an algorithm that needs only the sum ('fedbuff')"
            )
        if privacy.versions == "private":
            if not algorithm.uses_versions:
                raise ConfigError(
                    "privacy.versions: 'private' is for fedbuff with momentum approximation, which uses the "
                    "versions of uploads; leave it out"
                )
            momentum = getattr(algorithm, "momentum", None)
            if isinstance(momentum, Approximation) and momentum.ridge == 0:
                raise ConfigError(
                    "algorithm.momentum.ridge: with private versions no row is sure to have a fresh upload; "
                    "give more than 0, such as 0.001"
                )
        if self.buffer.size is None and (algorithm.remembers or algorithm.uses_member_count):
            raise ConfigError(
                f"buffer.size: {name} uses how many uploads a step has, which is private where all who "
                "joined make a step; give a size"
            )

    def _check_population(self, population: int) -> None:
        pace, size, share = self.pace, self.buffer.size, self.buffer.share
        if isinstance(pace, Synchronous):
            selected = pace.selected or pace.cohort
            if selected > population:
                key = "pace.selected" if pace.selected else "pace.cohort"
                raise ConfigError(f"{key}: {selected} clients a round, but there are {population}")
        if isinstance(pace, Poisson) and pace.probability * population < 0.01:
            raise ConfigError(
                f"pace.probability: of {population} clients {pace.probability * population:g} would join "
                f"at a step on average; give at least {1 / population:g}, for one"
            )
        if self.algorithm.opening:
            if isinstance(pace, SampledStaleness):
                raise ConfigError(
                    "pace.kind 'sampled_staleness' draws the version that a trip starts from, which does "
                    "not go with algorithm.first_pass; use another pace, or first_pass = false"
                )
            if self.stop.trips is not None and size is not None and self.stop.trips < population + size:
                raise ConfigError(
                    f"stop.trips: the first pass takes a trip of each of {population} clients, so the model "
                    f"would not move in {self.stop.trips} trips; give at least {population + size}"
                )
        if isinstance(pace, SampledStaleness) and size is not None:
            needed = (pace.maximum + 1) * size + ((size - 1) // share if share is not None else 0)
            if needed > population:
                raise ConfigError(
                    f"pace.maximum: a staleness of up to {pace.maximum} with buffer.size {size} keeps up to "
                    f"{needed} clients at work, but there are {population}, and each makes one trip at a time"
                )
        if isinstance(pace, Asynchronous | Queued) and pace.concurrency > population:
            raise ConfigError(
                f"pace.concurrency: {pace.concurrency} clients at work, but there are {population}, "
                f"and each makes one trip at a time; give at most {population}"
            )
        if share == 1 and size is not None and size > population:
            key = "once_per_client" if self.buffer.once_per_client else "most_per_client"
            raise ConfigError(
                f"buffer.size: {size} different clients make a step (buffer.{key}), "
                f"but there are {population}; give at most {population}"
            )
        if share is not None and size is not None and size > share * population:
            raise ConfigError(
                f"buffer.most_per_client: with {share} uploads of each of {population} clients a buffer of "
                f"{size} is never full; give at least {-(-size // population)}"
            )
        self.algorithm.check_population(population)

    def to_toml(self) -> str:
        """The config as TOML; `load_config` reads it back."""
        return tomli_w.dumps(self.model_dump(mode="json", exclude_none=True))


def load_config(file: Path, settings: Iterable[str] = ()) -> Config:
    """Read a TOML file, change the `settings` ("local.lr=0.1") and check all of it."""
    return parse_config(read_toml(file, f"`tardigrad init {file}` writes one"), str(file), settings)


def read_toml(file: Path, advice: str = "") -> dict[str, Any]:
    """A TOML file as a dict, or a ConfigError, with some advice if there is none."""
    try:
        text = file.read_text(encoding="utf-8-sig")  # with or without a byte order mark
    except FileNotFoundError:
        raise ConfigError("; ".join(filter(None, [f"{file}: there is no such file", advice]))) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: cannot be read ({error})") from None
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{file}: not valid TOML: {error}") from None


def parse_config(values: dict[str, Any], source: str, settings: Iterable[str] = ()) -> Config:
    """A Config from a dict; `source` is named in errors."""
    if "entries" in values:
        raise ConfigError(
            f"{source}: is a comparison of several runs; `tardigrad compare {source}` makes them"
        )
    for setting in settings:
        _set(values, setting)
    try:
        return Config.model_validate(values)
    except ValidationError as error:
        raise ConfigError("\n".join(f"{source}: {line}" for line in explain(error, Config))) from None


def _set(values: dict[str, Any], setting: str) -> None:
    path, equals, text = setting.partition("=")
    if not equals or not path:
        raise ConfigError(f"--set {setting}: must be KEY=VALUE, such as local.lr=0.1")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        value = text  # a word needs no quotes on the command line
    *tables, last = path.strip().split(".")
    for table in tables:
        if table not in values:
            values[table] = _kind_with(table, last)
        inner = values[table]
        if isinstance(inner, str):  # algorithm = "fedbuff" stands for algorithm = {kind = "fedbuff"}
            inner = values[table] = {"kind": inner}
        if not isinstance(inner, dict):
            raise ConfigError(f"--set {setting}: {table} is a value, not a table")
        values = inner
    if last == "kind" and values.get("kind", value) != value:
        values.clear()  # another kind has other keys
    values[last] = value


def _kind_with(table: str, key: str) -> dict[str, Any]:
    """A table that was left to its default: of that kind; of a pace, the first that has this key."""
    field = Config.model_fields.get(table)
    default = field.default if field is not None else None
    if default is None and table == "pace":
        default = next((pace() for pace in (Asynchronous, Synchronous) if key in pace.model_fields), None)
    kind = getattr(default, "kind", None)
    return {} if kind is None or key == "kind" else {"kind": kind}


def explain(error: ValidationError, root: type[Setting]) -> list[str]:
    """One sentence for each thing that is wrong: the key, what was given, what would be right."""
    lines = []
    for problem in error.errors():
        path, owner = _walk(root, problem["loc"])
        key, given = ".".join(path) or "config", problem.get("input")
        match problem["type"]:
            case "extra_forbidden":
                known = sorted(owner.model_fields) if owner else []
                close = difflib.get_close_matches(path[-1], known, n=1)
                hint = f"did you mean {close[0]!r}?" if close else f"known keys: {', '.join(known)}"
                lines.append(f"unknown key {key!r}; {hint}")
            case "union_tag_invalid":
                context = problem["ctx"]
                lines.append(f"{key}.kind must be one of {context['expected_tags']}; got {context['tag']!r}")
            case "union_tag_not_found":
                lines.append(f"{key}.kind is missing: it says which of the kinds is meant")
            case "missing":
                lines.append(f"{key} is missing")
            case _:
                said = problem["msg"].removeprefix("Value error, ")
                said = said.replace("Input should be", "must be").replace("Assertion failed, ", "")
                value = f" (got {given!r})" if isinstance(given, str | int | float | bool) else ""
                lines.append(f"{key}: {said}{value}")
    return lines


def _walk(root: type[Setting], location: tuple[int | str, ...]) -> tuple[list[str], type[Setting] | None]:
    """The key as a user writes it (without union tags), and the table that it stands in."""
    path: list[str] = []
    owner: type[Setting] | None = root
    inside: Any = root
    for part in location:
        if get_origin(inside) in (tuple, list, dict):  # by number or by name
            path.append(str(part))
            inside = [one for one in get_args(inside) if one is not Ellipsis][-1]
            continue
        options = kinds_of(inside)
        tagged = [s for s in options if _kind(s) == part]
        if tagged and len(options) > 1:
            inside = owner = tagged[0]
            continue
        if len(options) == 1:
            owner = options[0]
        path.append(str(part))
        field = owner.model_fields.get(str(part)) if owner else None
        inside = field.annotation if field else None
    return path, owner


def kinds_of(annotation: Any) -> list[type[Setting]]:
    """The tables that a type stands for: itself, or the members of a union."""
    if isinstance(annotation, type) and issubclass(annotation, Setting):
        return [annotation]
    if get_origin(annotation) is Literal:
        return []
    if get_origin(annotation) in (Union, types.UnionType) or hasattr(annotation, "__metadata__"):
        return [one for argument in get_args(annotation) for one in kinds_of(argument)]
    return []


def _kind(setting: type[Setting]) -> Any:
    field = setting.model_fields.get("kind")
    return field.default if field else None
