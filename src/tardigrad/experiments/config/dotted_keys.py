"""Dotted keys such as "algorithm.momentum.beta": setting one, and finding the table that it belongs to."""

from __future__ import annotations

import inspect
import logging
import tomllib
import types
from typing import Literal, Union, get_args, get_origin

from tardigrad.core.own_code import is_place, load_name
from tardigrad.core.pace import Asynchronous, Synchronous
from tardigrad.core.setting import Setting
from tardigrad.errors import ConfigError

log = logging.getLogger("tardigrad.experiments")

Table = dict[str, object]


def set_key(values: Table, setting: str, root: type[Setting]) -> None:
    """Set one key of a config in place. `setting`: KEY=VALUE as `--set` takes it; `root`: the type of the
    config.

    A table keeps its other keys when its `kind` is changed, as far as the new kind has them. A warning names
    those that are left out.

    >>> values = {"delay": {"kind": "half_normal", "scale": 2.0, "give_up": 0.1}}
    >>> from tardigrad.experiments.config.schema import Config
    >>> set_key(values, "delay.give_up=0.2", Config)
    >>> values["delay"]
    {'kind': 'half_normal', 'scale': 2.0, 'give_up': 0.2}
    """
    path, equals, text = setting.partition("=")
    if not equals or not path:
        raise ConfigError(f"--set {setting}: must be KEY=VALUE, such as local.lr=0.1")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        value = text  # a word needs no quotes on the command line
    *tables, last = path.strip().split(".")
    annotation: object = root
    for table in tables:
        annotation = _field_type(annotation, values, table)
        if table not in values:
            values[table] = _default_table(root, table, last)
        inner = values[table]
        if isinstance(inner, str):  # algorithm = "fedbuff" stands for algorithm = {kind = "fedbuff"}
            inner = values[table] = {"kind": inner}
        if not isinstance(inner, dict):
            raise ConfigError(f"--set {setting}: {table} is a value, not a table")
        values = inner
    if last == "kind" and values.get("kind", value) != value:
        _change_kind(values, setting, annotation, value)
    values[last] = value


def _change_kind(values: Table, setting: str, annotation: object, kind: object) -> None:
    """Remove the keys that the new kind of a table does not have, with a warning."""
    if is_place(kind):
        known: set[str] | None = _own_settings(load_name(str(kind), f"--set {setting}"))
    else:
        new = next((option for option in kinds_of(annotation) if _kind(option) == kind), None)
        known = None if new is None else set(new.model_fields)
    if known is None:  # there is no such kind, which validation explains
        return
    unknown = [name for name in values if name not in known and name != "kind"]
    for name in unknown:
        del values[name]
    if unknown:
        log.warning(
            "--set %s: leaves out %s, which this kind does not have", setting, ", ".join(unknown),
            extra={"event": "config"},
        )  # fmt: skip


def _own_settings(found: object) -> set[str]:
    """Return the settings of an algorithm of the user's own, or the parameters of a function."""
    if isinstance(found, type) and issubclass(found, Setting):
        return set(found.model_fields)
    return set(inspect.signature(found).parameters) if callable(found) else set()


def _field_type(annotation: object, values: Table, name: str) -> object:
    """Return the type of a key of a table, or None if it is not known. `values`: the table so far."""
    options = kinds_of(annotation)
    if len(options) > 1:
        options = [option for option in options if _kind(option) == values.get("kind")]
    field = options[0].model_fields.get(name) if options else None
    return None if field is None else field.annotation


def _default_table(root: type[Setting], table: str, key: str) -> Table:
    """Return a new table of the default kind; for a pace, of the first kind that has this key."""
    field = root.model_fields.get(table)
    default = field.default if field is not None else None
    if default is None and table == "pace":
        default = next((pace() for pace in (Asynchronous, Synchronous) if key in pace.model_fields), None)
    kind = getattr(default, "kind", None)
    return {} if kind is None or key == "kind" else {"kind": kind}


def locate(root: type[Setting], location: tuple[int | str, ...]) -> tuple[list[str], type[Setting] | None]:
    """Return the key of a pydantic error as a user writes it, without union tags, and its table."""
    path: list[str] = []
    owner: type[Setting] | None = root
    inside: object = root
    for part in location:
        if get_origin(inside) in (tuple, list, dict):  # by number or by name
            path.append(str(part))
            inside = [one for one in get_args(inside) if one is not Ellipsis][-1]
            continue
        options = kinds_of(inside)
        tagged = [option for option in options if _kind(option) == part]
        if tagged and len(options) > 1:
            inside = owner = tagged[0]
            continue
        if len(options) == 1:
            owner = options[0]
        path.append(str(part))
        field = owner.model_fields.get(str(part)) if owner else None
        inside = field.annotation if field else None
    return path, owner


def kinds_of(annotation: object) -> list[type[Setting]]:
    """Return the tables that a type stands for: itself, or the members of a union."""
    if isinstance(annotation, type) and issubclass(annotation, Setting):
        return [annotation]
    if get_origin(annotation) is Literal:
        return []
    if get_origin(annotation) in (Union, types.UnionType) or hasattr(annotation, "__metadata__"):
        return [one for argument in get_args(annotation) for one in kinds_of(argument)]
    return []


def _kind(setting: type[Setting]) -> object:
    field = setting.model_fields.get("kind")
    return field.default if field else None
