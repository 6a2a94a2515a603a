"""The examples in the docstrings do what they say."""

import doctest
import importlib
import pkgutil

import pytest

import tardigrad

NAMES = sorted(
    module.name
    for module in pkgutil.walk_packages(tardigrad.__path__, "tardigrad.")
    if not module.name.endswith("__main__")
)


@pytest.mark.parametrize("name", NAMES)
def test_examples(name):
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.startswith("tardigrad"):
            raise
        pytest.skip(f"needs {error.name}, an extra")
    result = doctest.testmod(module)
    assert result.failed == 0


def test_there_are_examples():
    finder = doctest.DocTestFinder(exclude_empty=True)
    modules = ["tardigrad.core.bookkeeping", "tardigrad.core.staleness", "tardigrad.core.draws"]
    assert all(any(test.examples for test in finder.find(importlib.import_module(name))) for name in modules)
