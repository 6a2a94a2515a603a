"""Data from a function of the user's own: what it may return, and what is said of the rest."""

import pytest
import torch

import tardigrad as td
from tardigrad.data.clients import given
from tardigrad.data.sets.own_data import OwnData

X, Y = torch.ones(3, 2), torch.tensor([0, 1, 1])

FILE = """
import torch
import tardigrad as td
from tardigrad.data.clients import given

X, Y = torch.ones(3, 2), torch.tensor([0, 1, 1])
CLIENTS = {"ann": (X, Y), "bob": (X, Y)}
mapping = lambda: CLIENTS
pair = lambda: (CLIENTS, (X, Y))
parts = lambda: {"clients": CLIENTS, "test": (X, Y)}
federation = lambda: given(CLIENTS, (X, Y))
floats = lambda: {"clients": {"ann": (X, Y + 0.5)}, "head": td.Regression()}
listed = lambda: [(X, Y)]
unknown = lambda: {"clients": CLIENTS, "tests": (X, Y)}
sized = lambda seed, scale=1: {"ann": (X * scale + seed % 7, Y)}
number = 3
"""


@pytest.fixture
def own(tmp_path):
    (tmp_path / "own.py").write_text(FILE)
    return lambda name, **more: OwnData(kind=f"{tmp_path}/own.py:{name}", **more)


@pytest.mark.parametrize("name", ["mapping", "pair", "parts", "federation"])
def test_every_form_gives_the_same_clients(own, name):
    made = own(name).federation(0)
    assert [made.clients.name(i) for i in range(2)] == ["ann", "bob"]
    assert (made.test is None) == (name == "mapping")
    assert torch.equal(made.clients.load(1)[0], X)
    assert made.classes == given({"a": (X, Y)}, None).classes


def test_a_head_that_the_function_returns_is_used_and_one_that_is_given_comes_before_it(own):
    assert isinstance(own("floats").federation(0).head, td.Regression)
    other = td.Regression(loss="huber")
    assert own("floats").federation(0, other).head is other


def test_seed_and_further_keys_are_arguments(own):
    features = own("sized", scale=3).federation(9).clients.load(0)[0]
    assert torch.equal(features, X * 3 + 2)


def test_features_get_the_dtype_of_the_model(own):
    assert own("mapping").federation(0, dtype=torch.float64).clients.load(0)[0].dtype == torch.float64


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("listed", r"returned a list; expected a mapping"),
        ("unknown", r"returned a dict with 'clients': dict, 'tests': tuple; expected a mapping"),
    ],
)
def test_other_results_are_named(own, name, says):
    with pytest.raises(td.ConfigError, match=rf"data: .*own\.py:{name} {says}"):
        own(name).federation(0)


def test_what_is_no_function_is_refused_before_the_run(own):
    with pytest.raises(td.ConfigError, match=r"data: .*own\.py:number must be a function"):
        own("number")
