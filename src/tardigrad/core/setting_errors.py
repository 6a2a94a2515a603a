"""Errors of settings as sentences that name the key, whether it is in TOML or in Python."""

from __future__ import annotations

import difflib
import re
import types
from typing import Literal, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError
from pydantic_core.core_schema import ErrorType

from tardigrad.errors import ConfigError

Location = tuple[int | str, ...]
"""Where a problem is, as pydantic says it."""
KNOWN: tuple[str, ...] = get_args(ErrorType)


class SettingError(ConfigError, ValidationError):
    """An object such as `td.Local(...)` was given a wrong key or value in Python.

    It is pydantic's error with the words of a ConfigError.
    """

    words: str
    """The message: a sentence for each problem."""

    @classmethod
    def of(cls, error: ValidationError, setting: type[BaseModel]) -> SettingError:
        """Return the error of a constructor in these words."""
        name = setting.__name__
        details = [
            InitErrorDetails(
                type=one["type"] if one["type"] in KNOWN else PydanticCustomError(one["type"], one["msg"]),
                loc=one["loc"],
                input=one["input"],
                ctx=one.get("ctx", {}),
            )
            for one in error.errors(include_url=False)
        ]
        same: SettingError = cls.from_exception_data(name, details)
        lines = explain(error, setting, whole=name)
        same.words = "; ".join(line if line.startswith(f"{name}:") else f"{name}: {line}" for line in lines)
        return same

    def __str__(self) -> str:
        return self.words


def explain(error: ValidationError, root: type[BaseModel], whole: str = "config") -> list[str]:
    """Return a sentence for each problem: the key, the given value, and what would be right.

    `whole`: the name of the object, for a problem that is not about a single key.
    """
    lines = []
    for problem in _without_other_choices(error.errors()):
        path, owner = locate(root, problem["loc"])
        key, given = ".".join(path) or whole, problem.get("input")
        match problem["type"]:
            case "extra_forbidden":
                known = sorted(owner.model_fields) if owner else []
                hint = meant(path[-1], known) or _in_a_table(path[-1], owner)
                lines.append(f"unknown key {key!r}; {hint or 'known keys: ' + ', '.join(known)}")
            case "unknown_setting":  # of a class of the user's own
                lines.append(f"unknown key {key!r}; {problem['msg']}")
            case "union_tag_invalid":
                tags, tag = problem["ctx"]["expected_tags"], problem["ctx"]["tag"]
                hint = meant(tag, re.findall(r"'([^']+)'", tags))
                if tag.endswith(".py"):
                    hint = f"an object of a file of your own is {tag}:NAME"
                texts = [f"{key}.kind must be one of {tags}", f"got {tag!r}", hint]
                lines.append("; ".join(filter(None, texts)))
            case "union_tag_not_found":
                lines.append(f"{key}.kind is missing: it says which of the kinds is meant")
            case "tuple_type" | "list_type" if isinstance(given, str | int | float):
                lines.append(f"{key}: must be a list, such as [{given!r}] (got {given!r})")
            case "missing":
                lines.append(f"{key} is missing")
            case _:
                message = problem["msg"].removeprefix("Value error, ")
                message = message.replace("Input should be", "must be").replace("Assertion failed, ", "")
                value = f" (got {given!r})" if isinstance(given, str | int | float | bool) else ""
                lines.append(f"{key}: {message}{value}")
    return lines


def meant(word: str, known: list[str]) -> str:
    """Return a question that names the known word that is most like this one, or "" if none is like it."""
    close = difflib.get_close_matches(word, known, n=1)
    return f"did you mean {close[0]!r}?" if close else ""


def _in_a_table(key: str, owner: type[BaseModel] | None) -> str:
    """Return a question that names the tables of `owner` that have this key, or "" if none or many do."""
    fields = owner.model_fields.items() if owner else ()
    tables = {name: kinds_of(field.annotation) for name, field in fields}
    found = [name for name, kinds in tables.items() if any(key in kind.model_fields for kind in kinds)]
    if not 0 < len(found) < 4:
        return ""
    return f"did you mean {' or '.join(repr(f'{name}.{key}') for name in found)}?"


def _without_other_choices(problems: list[ErrorDetails]) -> list[ErrorDetails]:
    """Return the problems without those of the other choices of a setting that may be of several types: of
    these, what is wrong with the one that was understood best is enough."""
    deepest: dict[Location, int] = {}
    for problem in problems:
        if (choice := _choice(problem["loc"])) is not None:
            deepest[choice] = max(deepest.get(choice, 0), len(problem["loc"]))
    return [
        problem
        for problem in problems
        if (choice := _choice(problem["loc"])) is None or len(problem["loc"]) == deepest[choice]
    ]


def _choice(location: Location) -> Location | None:
    """Return the location of the setting of several types that this is in, or None."""
    names = (place for place, part in enumerate(location) if _is_type(part))
    first = next(names, None)
    return None if first is None else location[:first]


def _is_type(part: int | str) -> bool:
    """Whether this part of a location is pydantic's word for one of the types of a setting."""
    return isinstance(part, str) and (part in ("str", "int", "float", "bool") or part.endswith("]"))


def locate(root: type[BaseModel], location: Location) -> tuple[list[str], type[BaseModel] | None]:
    """Return the key of a pydantic error as a user writes it, without union tags, and its table."""
    path: list[str] = []
    owner: type[BaseModel] | None = root
    inside: object = root
    for part in location:
        if _is_type(part):
            inside = next(iter(kinds_of(inside)), None)
            continue
        if get_origin(inside) in (tuple, list, dict):  # by number or by name
            path.append(str(part))
            inside = [one for one in get_args(inside) if one is not Ellipsis][-1]
            continue
        options = kinds_of(inside)
        tagged = [option for option in options if kind_of(option) == part]
        if tagged and len(options) > 1:
            inside = owner = tagged[0]
            continue
        if len(options) == 1:
            owner = options[0]
        path.append(str(part))
        field = owner.model_fields.get(str(part)) if owner else None
        inside = field.annotation if field else None
    return path, owner


def kinds_of(annotation: object) -> list[type[BaseModel]]:
    """Return the tables that a type stands for: itself, or the members of a union."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    if get_origin(annotation) is Literal:
        return []
    if get_origin(annotation) in (Union, types.UnionType) or hasattr(annotation, "__metadata__"):
        return [one for argument in get_args(annotation) for one in kinds_of(argument)]
    return []


def kind_of(setting: type[BaseModel]) -> object:
    """Return the word that selects this table among several kinds, or None if it is not one of several."""
    field = setting.model_fields.get("kind")
    return field.default if field else None
