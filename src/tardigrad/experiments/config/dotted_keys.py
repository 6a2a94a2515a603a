"""Setting a dotted key such as "algorithm.momentum.beta"."""

from __future__ import annotations

import inspect
import logging
import tomllib

from tardigrad.core.own_code import is_place, load_name
from tardigrad.core.pace import Asynchronous, Synchronous
from tardigrad.core.setting import Setting
from tardigrad.core.setting_errors import kind_of, kinds_of
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
        new = next((option for option in kinds_of(annotation) if kind_of(option) == kind), None)
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
        options = [option for option in options if kind_of(option) == values.get("kind")]
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
