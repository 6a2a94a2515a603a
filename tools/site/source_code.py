"""What the source of the package says of its classes and functions: types, fields and their docstrings.

The source is read and not imported, so that a class that needs an optional package is read like any other.
"""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

Definition = ast.ClassDef | ast.FunctionDef | ast.Assign


class Field(NamedTuple):
    """A field or a class variable as it is written."""

    name: str
    type: str
    default: str | None
    """None if it is required."""
    meaning: str


def definition(module: str, name: str) -> Definition:
    """Return the definition of a name in a module; if the module imports it, that in the other module."""
    spec = importlib.util.find_spec(module)
    assert spec is not None, module
    for node in ast.parse(Path(str(spec.origin)).read_text()).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
            return node
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
            return node
        if isinstance(node, ast.ImportFrom) and any((one.asname or one.name) == name for one in node.names):
            return definition(str(node.module), name)
    raise LookupError(f"{module} has no {name}")


def fields(node: ast.ClassDef) -> Iterator[Field]:
    """Give the fields of a class and its class variables, in order; names of its own and `kind` are not."""
    for one, after in zip_longest(node.body, node.body[1:]):
        if not isinstance(one, ast.AnnAssign) or not isinstance(one.target, ast.Name):
            continue
        if not one.target.id.startswith("_") and one.target.id != "kind":
            said = after.value if isinstance(after, ast.Expr) else None
            meaning = str(said.value) if isinstance(said, ast.Constant) else ""
            yield Field(one.target.id, readable(one.annotation), default_of(one.value), meaning)


def is_class_variable(field: Field) -> bool:
    """Return whether a field is one of the class, not of its objects."""
    return field.type.startswith("ClassVar")


def default_of(value: ast.expr | None) -> str | None:
    """Return the default of a field; None if it is required."""
    if not isinstance(value, ast.Call) or ast.unparse(value.func) != "field":
        return None if value is None else ast.unparse(value)
    given = {str(one.arg): ast.unparse(one.value) for one in value.keywords}
    return f"{given['default_factory']}()" if "default_factory" in given else given.get("default")


def methods(node: ast.ClassDef) -> Iterator[ast.FunctionDef]:
    """Give the public methods and properties of a class that have a docstring."""
    for one in node.body:
        if isinstance(one, ast.FunctionDef) and not one.name.startswith("_") and ast.get_docstring(one):
            yield one


def decorators(node: ast.FunctionDef) -> set[str]:
    """Return the names of a method's decorators."""
    return {ast.unparse(one) for one in node.decorator_list}


def called(node: ast.FunctionDef, name: str, is_method: bool = False, width: int = 100) -> str:
    """Return how a function is called, with types; one parameter a line if it is longer than `width`."""
    found = parameters(node)[is_method and "staticmethod" not in decorators(node) :]
    result = "" if node.returns is None or node.name == "__init__" else f" -> {readable(node.returns)}"
    short = f"{name}({', '.join(found)}){result}"
    return short if len(short) < width else f"{name}(\n    " + ",\n    ".join(found) + f",\n){result}"


def parameters(node: ast.FunctionDef) -> list[str]:
    """Return the parameters of a function. One of type Never is left out: it only catches wrong keywords."""
    found = node.args
    plain = [*found.posonlyargs, *found.args]
    defaults: list[ast.expr | None] = [None] * (len(plain) - len(found.defaults))
    written = [parameter(*one) for one in zip(plain, [*defaults, *found.defaults], strict=True)]
    if found.vararg:
        written.append("*" + parameter(found.vararg))
    elif found.kwonlyargs:
        written.append("*")
    written += [parameter(*one) for one in zip(found.kwonlyargs, found.kw_defaults, strict=True)]
    if found.kwarg and readable(found.kwarg.annotation) != "Never":
        written.append("**" + parameter(found.kwarg))
    return written


def parameter(one: ast.arg, default: ast.expr | None = None) -> str:
    """Return a parameter with its type and default; a default that is a constant of ours is `...`."""
    text = f"{one.arg}: {readable(one.annotation)}" if one.annotation else one.arg
    if default is None:
        return text
    is_ours = isinstance(default, ast.Name) and default.id.isupper()
    return f"{text}{' = ' if one.annotation else '='}{'...' if is_ours else ast.unparse(default)}"


def readable(annotation: ast.expr | None) -> str:
    """Return a type as it is written, without what `Annotated` adds."""
    return "" if annotation is None else ast.unparse(_WithoutAnnotated().visit(annotation))


class _WithoutAnnotated(ast.NodeTransformer):
    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        if ast.unparse(node.value) == "Annotated" and isinstance(node.slice, ast.Tuple):
            return self.visit(node.slice.elts[0])
        self.generic_visit(node)
        return node
