"""A Flower that is missing or too old is said in one sentence."""

from importlib.metadata import PackageNotFoundError

import pytest

from tardigrad.errors import ConfigError
from tardigrad.flower import requirement


def test_an_old_flower_is_refused(monkeypatch):
    monkeypatch.setattr(requirement, "version", lambda name: "1.27.1")
    with pytest.raises(
        ConfigError, match=r"^Flower 1\.27\.1 is too old: .* pip install --upgrade 'flwr>=1\.28'$"
    ):
        requirement.check_flower()


def test_a_missing_flower_is_named(monkeypatch):
    def version(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(requirement, "version", version)
    with pytest.raises(ConfigError, match=r"pip install 'flwr>=1\.28'"):
        requirement.check_flower()


@pytest.mark.parametrize("found", ["1.28.0", "1.42.0", "2.0"])
def test_newer_ones_are_taken(monkeypatch, found):
    monkeypatch.setattr(requirement, "version", lambda name: found)
    requirement.check_flower()
