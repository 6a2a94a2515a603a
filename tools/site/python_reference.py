"""The reference page of the Python API, from the source of the public names."""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Iterator, Sequence
from typing import Any

from pydantic import BaseModel

import source_code
import tardigrad
import tardigrad.flower
from markdown_text import docstring, table
from tardigrad.core.setting import Setting

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
    "flower": "`tardigrad.flower`",
}
"""The packages of public names, in the order of the page."""
GIVEN = {
    "WeightedSum": "tardigrad.core.upload",
    "Received": "tardigrad.core.upload",
    "Upload": "tardigrad.core.upload",
    "Member": "tardigrad.core.upload",
    "Task": "tardigrad.core.upload",
    "Situation": "tardigrad.core.situation",
}
"""Classes of which an algorithm is given objects, by the modules that define them."""
ALIASES = {
    "State": "tardigrad.core.state",
    "Vectors": "tardigrad.core.upload",
    "Metrics": "tardigrad.algorithms.algorithm",
}
"""Names for types in the signatures of algorithms."""


def by_package() -> dict[str, list[str]]:
    """Return the public names of each package, in the order of the page."""
    groups: dict[str, list[str]] = {package: [] for package in TITLES}
    for name in tardigrad.__all__:
        if name != "__version__":
            groups[package_of(name)].append(name)
    groups["flower"] = tardigrad.flower.__all__
    return groups


def page() -> str:
    """Return the page: a section for each public name, by package."""
    parts = [
        "# Python API",
        "The public names of `import tardigrad as td`, from their docstrings. What is not here is not "
        "public and may change in any release: [the public API](public-api.md) says what is promised. A "
        "default of `...` keeps what the config has.",
    ]
    for package, names in by_package().items():
        parts.append(f"## {TITLES[package]}")
        if package == "flower":
            parts.append("For `from tardigrad.flower import AsyncStrategy` ([flower.md](../flower.md)).")
            parts.extend(part for name in names for part in flower_section(name))
        else:
            parts.extend(part for name in names for part in section(name))
        if package == "algorithms":
            parts.extend(given())
    return "\n\n".join(parts) + "\n"


def package_of(name: str) -> str:
    """Return the package of `tardigrad` that defines a public name."""
    return tardigrad._MODULE_OF[name].split(".")[1]


def section(name: str) -> Iterator[str]:
    """Give the parts of one name's section."""
    thing = getattr(importlib.import_module(tardigrad._MODULE_OF[name]), name)
    yield f"### {name}"
    if not inspect.isclass(thing):
        yield from function(f"td.{name}", source_code.definition(thing.__module__, name))
        return
    lineage = [
        source_code.definition(one.__module__, one.__name__)
        for one in thing.__mro__
        if one.__module__.startswith("tardigrad.") and one.__module__ != Setting.__module__
    ]
    if issubclass(thing, BaseModel):
        yield docstring(thing.__doc__ or "")
        yield from settings(thing, lineage)
    else:
        yield from class_parts(f"td.{name}", lineage[0])
    if inspect.isabstract(thing):
        yield from class_variables(lineage)
        yield from methods(lineage)
    else:
        yield from methods(lineage[:1])


def flower_section(name: str) -> Iterator[str]:
    """Give the parts of the section of a name for apps of Flower, which need not be installed."""
    yield f"### {name}"
    node = source_code.definition(f"tardigrad.flower.{tardigrad.flower._PLACES[name]}", name)
    if isinstance(node, ast.ClassDef):
        yield from class_parts(name, node)
        yield from methods([node])
    else:
        yield from function(name, node)


def given() -> Iterator[str]:
    """Give the sections of what an algorithm is given."""
    yield "## What algorithms are given"
    aliases = [
        f"`{name}` is `{ast.unparse(source_code.definition(module, name).value)}`"
        for name, module in ALIASES.items()
    ]
    yield (
        "The methods of `SumOnly`, `Individual` and `Rule` are called with objects of these classes. They "
        f"are not names of `td`. In signatures, {', '.join(aliases)}."
    )
    for name, module in GIVEN.items():
        yield f"### {name}"
        node = source_code.definition(module, name)
        yield from class_parts(name, node)
        yield from methods([node])


def function(name: str, node: ast.FunctionDef) -> Iterator[str]:
    """Give the parts of a function's section."""
    yield f"```python\n{source_code.called(node, name)}\n```"
    yield docstring(ast.get_docstring(node) or "")


def class_parts(name: str, node: ast.ClassDef) -> Iterator[str]:
    """Give how an object of a class is made, the docstrings and the fields."""
    start = next((one for one in node.body if getattr(one, "name", "") == "__init__"), None)
    if isinstance(start, ast.FunctionDef):
        yield f"```python\n{source_code.called(start, name, is_method=True)}\n```"
    yield docstring(ast.get_docstring(node) or "")
    if isinstance(start, ast.FunctionDef) and (said := ast.get_docstring(start)):
        yield docstring(said)
    found = [one for one in source_code.fields(node) if not source_code.is_class_variable(one)]
    yield from field_table("field", found)


def settings(thing: type[BaseModel], lineage: Sequence[ast.ClassDef]) -> Iterator[str]:
    """Give the table of the fields of settings."""
    types = {one.name: one.type for node in reversed(lineage) for one in source_code.fields(node)}
    yield from field_table(
        "field",
        [
            source_code.Field(
                name,
                types[name],
                None if field.is_required() else default_of(field),
                field.description or "",
            )
            for name, field in thing.model_fields.items()
            if name != "kind"
        ],
    )


def field_table(heading: str, found: Sequence[source_code.Field]) -> Iterator[str]:
    """Give a table of fields, if there are any."""
    yield from table(
        (heading, "type", "default", "meaning"),
        [
            (
                f"`{one.name}`",
                f"`{one.type}`",
                "required" if one.default is None else f"`{one.default}`",
                one.meaning,
            )
            for one in found
        ],
    )


def default_of(field: Any) -> str:
    """Return a setting's default as Python writes it."""
    default = field.get_default(call_default_factory=True)
    return f"{type(default).__name__}()" if isinstance(default, BaseModel) else repr(default)


def class_variables(lineage: Sequence[ast.ClassDef]) -> Iterator[str]:
    """Give the table of the class variables, which a subclass may set."""
    found = {one.name: one for node in reversed(lineage) for one in source_code.fields(node)}
    yield from field_table(
        "class variable",
        [
            one._replace(type=one.type.removeprefix("ClassVar[").removesuffix("]"))
            for one in found.values()
            if source_code.is_class_variable(one)
        ],
    )


def methods(lineage: Sequence[ast.ClassDef]) -> Iterator[str]:
    """Give the table of the methods and properties of a class and its bases."""
    found = {one.name: one for node in reversed(lineage) for one in source_code.methods(node)}
    rows = []
    for name, node in sorted(found.items()):
        kinds = source_code.decorators(node)
        shown = source_code.called(node, name, is_method=True, width=10_000)
        if "property" in kinds:
            shown = f"{name}: {source_code.readable(node.returns)}"
        blocks = docstring(ast.get_docstring(node) or "").split("\n\n")
        said = " ".join(block for block in blocks if not block.startswith("```"))
        rows.append((f"`{shown}`", "To be defined by a subclass. " * ("abstractmethod" in kinds) + said))
    yield from table(("method or property", "meaning"), rows)
