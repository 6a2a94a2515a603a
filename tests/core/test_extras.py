"""The commands that install an extra are right in a clone and beside a wheel."""

import tomllib
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from tardigrad.core import extras

CLONE = "pip install -c constraints.txt -e '.[privacy]' in a clone"
PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]


@pytest.mark.parametrize("extra", ["ray", "tune", "data", "mlflow", "dashboard"])
def test_packages_of_an_extra_are_named(extra):
    packages = " ".join(f"'{name}'" for name in PROJECT["optional-dependencies"][extra])
    assert extras.pip_install(extra).endswith(f"'.[{extra}]' in a clone, or pip install {packages}")


def test_markers_with_more_than_the_extra_are_understood(monkeypatch):
    found = ["torch>=2", "a>=1; python_version < '3.12' and extra == 'privacy'", 'b; extra == "private"']
    monkeypatch.setattr(extras, "requires", lambda name: found)
    assert extras.pip_install("privacy") == f"{CLONE}, or pip install 'a>=1'"


def test_a_package_that_is_not_installed_has_the_command_for_a_clone(monkeypatch):
    def requires(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(extras, "requires", requires)
    assert extras.pip_install("privacy") == CLONE
