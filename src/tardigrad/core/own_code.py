"""The user's own code: objects that a config names as "path/to/file.py:name", and the source of classes."""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.util
import inspect
import linecache
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import FunctionType, ModuleType

from pydantic import ValidatorFunctionWrapHandler, WrapValidator

from tardigrad.core.setting import Setting
from tardigrad.errors import ConfigError

PYTHON = "python:"
"""Begins the kind of a class that is in no file, such as one of a notebook."""

_modules: dict[str, tuple[str, ModuleType]] = {}
"""By module name: the digest of the file that was executed, and the module."""


def is_place(value: object) -> bool:
    """Return whether this is the name of an object in a file of the user's own.

    >>> is_place("nets/small.py:net"), is_place("mlp")
    (True, False)
    """
    return isinstance(value, str) and ".py:" in value


def absolute_place(place: str) -> str:
    """Return the place with an absolute path, which is the same from every folder."""
    file, colon, name = place.rpartition(":")
    return f"{Path(file).expanduser().resolve()}{colon}{name}"


def or_own(own: type[Setting]) -> WrapValidator:
    """Return a validator that makes a union of kinds accept `own` too, if the kind is a place."""

    def choose(value: object, built_in: ValidatorFunctionWrapHandler) -> object:
        table = {"kind": value} if isinstance(value, str) else value
        if isinstance(table, dict) and is_place(table.get("kind")):
            return own.model_validate(table)
        return value if isinstance(value, own) else built_in(value)

    return WrapValidator(choose)


def load_name(place: str, option: str, fresh: bool = False) -> object:
    """Return the object called name in the module of "path/to/file.py:name". Errors mention `option`.

    A file is executed once, and again when it has changed. `fresh`: execute it in any case.
    """
    file, colon, name = place.rpartition(":")
    path = Path(file).expanduser().resolve()
    if not colon or not path.is_file():
        raise ConfigError(f"{option}: there is no file {file or place}; give path/to/file.py:name")
    module = _executed(path, f"{option}: {file}", fresh)
    if not hasattr(module, name):
        raise ConfigError(f"{option}: {file} has nothing called {name}")
    return getattr(module, name)


def _executed(path: Path, where: str, fresh: bool) -> ModuleType:
    """Return the module of a file. The modules beside the file can be imported, as from a script."""
    own = f"tardigrad_own.{path.stem}_{hashlib.sha256(bytes(path)).hexdigest()[:8]}"
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    known = _modules.get(own)
    if known is not None and known[0] == digest and not fresh:
        return known[1]
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    linecache.checkcache(str(path))
    spec = importlib.util.spec_from_file_location(own, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[own] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # the user's own file can raise anything
        said = " ".join(str(error).split())
        raise ConfigError(
            f"{where} cannot be imported ({type(error).__name__}: {said}{own_line(error)})"
        ) from None
    _modules[own] = digest, module
    return module


def own_arguments(
    function: Callable[..., object], given: Mapping[str, object], offered: Mapping[str, object], where: str
) -> dict[str, object]:
    """Return the keyword arguments for a function: all that are given, and what it wants of the offered.

    `where`: the table of the config, such as "model", which errors mention.

    >>> own_arguments(lambda classes, width=8: None, {"width": 2}, {"shape": (3,), "classes": 5}, "model")
    {'classes': 5, 'width': 2}
    """
    parameters = inspect.signature(function).parameters.values()
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    name = getattr(function, "__name__", "the function")
    unknown = [key for key in given if key not in names]
    if unknown and not any(p.kind is p.VAR_KEYWORD for p in parameters):
        raise ConfigError(
            f"unknown key '{where}.{unknown[0]}'; the parameters of {name} are: {', '.join(names) or 'none'}"
        )
    chosen = {key: value for key, value in offered.items() if key in names} | dict(given)
    missing = [
        p.name for p in parameters if p.name in names and p.default is p.empty and p.name not in chosen
    ]
    if missing:
        raise ConfigError(f"{where}: {name} has the parameter {missing[0]}; give {where}.{missing[0]}")
    return chosen


def call_own(function: Callable[..., object], arguments: Mapping[str, object], where: str) -> object:
    """Return what a function of the user's own returns; if it raises, say where, with the error as cause."""
    try:
        return function(**arguments)
    except ConfigError:
        raise
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        raise ConfigError(
            f"{where}: {getattr(function, '__name__', function)} failed at {last.filename}:{last.lineno} "
            f"({type(error).__name__}: {error})"
        ) from error


def own_line(error: BaseException) -> str:
    """Return ", at FILE:LINE" for the last line of the user's own code that an error passed through, or "" if
    it passed through none."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename.endswith(".py") and _is_own_file(Path(frame.filename))]
    if not own:
        return ""
    file, here = Path(own[-1].filename), Path.cwd()
    return f", at {file.relative_to(here) if file.is_relative_to(here) else file}:{own[-1].lineno}"


def class_place(cls: type) -> str:
    """Return "/path/to/file.py:Class", or "python:Class" if the class cannot be found by that: it was defined
    in a notebook, at a prompt, or inside a function or class."""
    try:
        file = Path(inspect.getfile(cls)).resolve()
    except (OSError, TypeError):
        return PYTHON + cls.__name__
    found = file.suffix == ".py" and file.is_file() and cls.__qualname__ == cls.__name__
    return f"{file}:{cls.__name__}" if found else PYTHON + cls.__name__


def class_source(classes: Iterable[type]) -> str:
    """Return the source of those of these classes and their bases that are the user's own."""
    wanted = {base for cls in classes for base in cls.__mro__ if _is_own(base)}
    return "\n\n".join(_source(cls) for cls in sorted(wanted, key=lambda cls: (cls.__qualname__, id(cls))))


def own_modules() -> list[ModuleType]:
    """Return the user's own modules: those that were imported and are not installed."""
    modules = ((name, module) for name, module in list(sys.modules.items()) if name not in _MAINS)
    return [module for name, module in modules if getattr(module, "__name__", "") == name and _own(module)]


_MAINS = ("__main__", "__mp_main__")


def _own(module: ModuleType) -> bool:
    file = getattr(module, "__file__", None)
    return bool(file) and _is_own_file(Path(str(file)))


def _is_own_file(file: Path) -> bool:
    return _installed().isdisjoint(file.resolve().parents)


@functools.cache
def _installed() -> frozenset[Path]:
    """Return the folders of installed code: of Python, of packages, and this one."""
    paths = sysconfig.get_paths()
    found = {Path(paths[name]).resolve() for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    return frozenset(found | {Path(__file__).resolve().parents[1]})


def _is_own(cls: type) -> bool:
    module = sys.modules.get(cls.__module__)
    return cls.__module__ in _MAINS or (module is not None and _own(module))


def _source(cls: type) -> str:
    """Return the source of a class; its name, if the source is not known."""
    try:
        return inspect.getsource(cls)
    except (OSError, TypeError):
        pass  # a notebook has no file, but its cells are known by the methods
    for method in vars(cls).values():
        if isinstance(method, FunctionType):
            return _class_in("".join(linecache.getlines(method.__code__.co_filename)), cls.__name__)
    return cls.__qualname__


def _class_in(text: str, name: str) -> str:
    """Return the source of a class in the text of a notebook's cell, or the whole text."""
    try:
        nodes = ast.walk(ast.parse(text))
        found = [node for node in nodes if isinstance(node, ast.ClassDef) and node.name == name]
    except SyntaxError:  # with magic commands
        found = []
    return (found and ast.get_source_segment(text, found[-1])) or text or name
