"""Layers: each package imports only from itself and from those above it."""

import ast
from pathlib import Path

import pytest

import tardigrad

ROOT = Path(tardigrad.__file__).parent
LAYERS = [
    "core",
    "algorithms",
    "encodings",
    "learning",
    "data",
    "privacy",
    "secure",
    "simulation",
    "service",
    "flower_grid",
    "watch",
    "experiments",
    "flower",
    "cli",
]
"""From the top down. `errors` is free for all."""
DRIVERS = {"simulation", "service", "flower_grid"}
"""Three drivers of the same core: none knows another."""


def imported(source: str, package: str) -> set[str]:
    """The packages of tardigrad that a module of `package` imports, wherever in the file."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            if node.level:  # from . or from ..: counted from the module's own place
                above = ["tardigrad", package][: 3 - node.level]
                module = ".".join([*above, module] if module else above)
            names = [f"{module}.{alias.name}" for alias in node.names]
        for name in names:
            parts = name.split(".")
            if parts[0] == "tardigrad" and len(parts) > 1:
                found.add(parts[1])
    return found


def violations(source: str, package: str) -> set[str]:
    allowed = {*LAYERS[: LAYERS.index(package) + 1], "errors"}
    if package in DRIVERS:
        allowed -= DRIVERS - {package}
    return {name for name in imported(source, package) if name in {*LAYERS, "errors"} and name not in allowed}


MODULES = sorted(path for path in ROOT.rglob("*.py") if path.parent != ROOT)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_go_up(path):
    package = path.relative_to(ROOT).parts[0]
    assert package in LAYERS, (
        f"{package} is in no layer: give it a place in LAYERS and in docs/architecture.md"
    )
    assert violations(path.read_text(), package) == set()


OPENERS = {"service/server/run_server.py", "experiments/runs/hosted_run.py"}
"""Modules that choose, open or remove a server's store; all others are given a `Store`."""
STORE = ROOT / "service" / "store"
DATABASES = {"sqlite3", "_sqlite3"}


def top_level_names(source: str) -> set[str]:
    """The top-level packages that a module imports, wherever in the file."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.split(".")[0])
    return found


@pytest.mark.parametrize(
    "path",
    [path for path in MODULES if path.relative_to(ROOT).parts[0] in ("service", "experiments", "cli")],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_only_the_store_of_a_server_imports_sqlite(path):
    assert not DATABASES & top_level_names(path.read_text()) or path.is_relative_to(STORE)


def test_only_those_who_open_a_store_know_its_implementations():
    known = {
        str(path.relative_to(ROOT))
        for path in MODULES
        for name in ("sqlite", "memory")
        if f"tardigrad.service.store.{name}" in path.read_text()
    }
    assert known == OPENERS


def test_the_test_of_sqlite_imports_can_fail():
    assert DATABASES & top_level_names((STORE / "sqlite.py").read_text())
    for source in ("import sqlite3 as s", "def f():\n    from sqlite3 import Error", "import sqlite3.dbapi2"):
        assert top_level_names(source) == {"sqlite3"}


def test_errors_import_nothing_of_the_package():
    assert imported((ROOT / "errors.py").read_text(), "errors") == set()


@pytest.mark.parametrize(
    ("source", "package", "expected"),
    [
        ("from tardigrad.algorithms.fedavg import FedAvg", "core", {"algorithms"}),
        ("import tardigrad.simulation.engine", "learning", {"simulation"}),
        ("from tardigrad import data", "learning", {"data"}),
        ("from tardigrad.simulation import engine", "service", {"simulation"}),
        ("from tardigrad.service import server", "simulation", {"service"}),
        ("from tardigrad.service import server", "flower_grid", {"service"}),
        ("from tardigrad.simulation import engine", "flower_grid", {"simulation"}),
        ("from tardigrad.flower_grid import driver", "service", {"flower_grid"}),
        ("def f():\n    from tardigrad.cli import main", "experiments", {"cli"}),
        ("from ..algorithms import fedavg", "core", {"algorithms"}),
        ("from .. import algorithms", "core", {"algorithms"}),
        ("from .staleness import Linear", "core", set()),
        ("from . import staleness", "core", set()),
        ("from tardigrad.errors import RunError", "core", set()),
        ("from tardigrad import __version__", "core", set()),
        ("import torch, tardigrad", "core", set()),
        ("from tardigrad.core.step import Step", "algorithms", set()),
    ],
)
def test_the_test_can_fail(source, package, expected):
    assert violations(source, package) == expected


PAPERS = {path.stem for path in (ROOT / "algorithms").glob("*.py")} - {
    "__init__", "aggregator", "algorithm", "layers", "registry", "shared_vectors", "upload_buffer",
}  # fmt: skip
"""Modules that hold the algorithm of a paper."""


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_only_algorithms_name_an_algorithm(path):
    """What a run must know of an algorithm, the algorithm declares."""
    if path.parent.name == "algorithms":
        return
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tardigrad.algorithms."):
            assert (node.module or "").split(".")[2] not in PAPERS, node.module


def test_test_files_have_names_of_their_own():
    """pytest imports them by their names, and cannot collect two of one name."""
    names = [path.name for path in Path(__file__).parent.rglob("test_*.py")]
    assert sorted(names) == sorted(set(names))
