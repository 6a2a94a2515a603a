"""The reference page of the Python API, from the docstrings of the public names of `tardigrad`."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

import tardigrad
from markdown_text import cell, docstring

TITLES = {
    "experiments": "Runs and experiments",
    "algorithms": "Algorithms",
    "core": "Buffer, paces, staleness, momentum, stop",
    "learning": "Local training, models, heads",
    "data": "Data, partitions, evaluation",
    "encodings": "Encodings",
    "privacy": "Privacy",
    "secure": "Secure aggregation",
    "simulation": "Delays, networks, devices",
    "service": "Servers and clients",
    "errors": "Errors",
}
"""The packages of public names, in the order of the page."""


def by_package() -> dict[str, list[str]]:
    """Return the public names of each package, in the order of the page."""
    groups: dict[str, list[str]] = {package: [] for package in TITLES}
    for name in tardigrad.__all__:
        if name != "__version__":
            groups[package_of(name)].append(name)
    return groups


def page() -> str:
    """Return the page: a section for each public name, by package."""
    parts = [
        "# Python API",
        "The public names of `import tardigrad as td`, from their docstrings. What is not here is not "
        "public and may change in any release: [the public API](public-api.md) says what is promised.",
    ]
    for package, names in by_package().items():
        parts.append(f"## {TITLES[package]}")
        for name in names:
            parts.extend(section(name))
    return "\n\n".join(parts) + "\n"


def package_of(name: str) -> str:
    """Return the package of `tardigrad` that defines a public name."""
    return tardigrad._MODULE_OF[name].split(".")[1]


def section(name: str) -> Iterator[str]:
    """Give the parts of one name's section."""
    thing = getattr(importlib.import_module(tardigrad._MODULE_OF[name]), name)
    yield f"### {name}"
    is_settings = inspect.isclass(thing) and issubclass(thing, BaseModel)
    if not is_settings:
        yield f"```python\n{signature(name, thing)}\n```"
    yield docstring(thing.__doc__ or "")
    if is_settings:
        yield from fields(thing)
    if inspect.isclass(thing):
        yield from methods(thing)


def signature(name: str, thing: Any) -> str:
    """Return how a name is called, one parameter a line if they are many."""
    try:
        found = inspect.signature(thing)
    except (TypeError, ValueError):
        return f"td.{name}"
    if issubclass(thing, Exception) if inspect.isclass(thing) else False:
        return f"td.{name}(message)"
    parameters = [plain(one) for one in found.parameters.values()]
    short = f"td.{name}({', '.join(parameters)})"
    return short if len(short) < 100 else f"td.{name}(\n    " + ",\n    ".join(parameters) + ",\n)"


def plain(parameter: inspect.Parameter) -> str:
    """Return a parameter without its annotation, but with its default."""
    default = "" if parameter.default is parameter.empty else f"={parameter.default!r}"
    stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
    return f"{stars}{parameter.name}{default}"


def fields(settings: type[BaseModel]) -> Iterator[str]:
    """Give the table of the settings' fields."""
    rows = ["| field | default | meaning |", "| --- | --- | --- |"]
    for name, field in settings.model_fields.items():
        if name == "kind":
            continue
        default = "required" if field.is_required() else f"`{cell(default_of(field))}`"
        rows.append(f"| `{name}` | {default} | {cell(field.description or '')} |")
    if len(rows) > 2:
        yield "\n".join(rows)


def default_of(field: Any) -> str:
    """Return a field's default as Python writes it."""
    default = field.get_default(call_default_factory=True)
    return f"{type(default).__name__}()" if isinstance(default, BaseModel) else repr(default)


def methods(thing: type) -> Iterator[str]:
    """Give the public methods and properties that a class of ours documents itself."""
    rows = ["| method or property | meaning |", "| --- | --- |"]
    for name, found in sorted(vars(thing).items()):
        function = found.fget if isinstance(found, property) else getattr(found, "__func__", found)
        if name.startswith("_") or not inspect.isfunction(function) or not function.__doc__:
            continue
        called = name if isinstance(found, property) else f"{name}()"
        first = docstring(function.__doc__).partition("\n\n")[0]
        rows.append(f"| `{called}` | {cell(first)} |")
    if len(rows) > 2:
        yield "\n".join(rows)
