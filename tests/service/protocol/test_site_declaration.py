"""A declaration is data: unknown kinds, sizes and keys are refused before anything is built."""

import json

import pytest
import torch

from tardigrad.data.tables.preparation import OneHotColumn, Preparation, PreparedTarget, ScaledColumn
from tardigrad.errors import ConfigError
from tardigrad.learning.models import MLP
from tardigrad.service.protocol.site_declaration import (
    LONGEST,
    DeclaredModel,
    SiteDeclaration,
    held_out_rows,
    read_declaration,
)

DECLARATION = SiteDeclaration(
    model=DeclaredModel(kind="mlp", hidden=(4,)),
    preparation=Preparation(
        columns=(ScaledColumn(name="age", mean=50, scale=10),),
        target=PreparedTarget(name="sick", classes=("no", "yes")),
    ),
    held_out=0.2,
    seed=7,
)


def test_declaration_is_read_as_it_was_written():
    assert read_declaration(DECLARATION.to_json()) == DECLARATION


def changed(*path, value):
    document = json.loads(DECLARATION.to_json())
    inner = document
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return json.dumps(document)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "declares no columns"),
        ("{", "cannot be used here"),
        ("[" * 100_000, "cannot be used here"),
        ("x" * (LONGEST + 1), "characters, more than"),
        (changed("model", "kind", value="own.py:Model"), "cannot be used here"),
        (changed("model", "kind", value="transformer"), "cannot be used here"),
        (changed("model", "start", value="/etc/passwd"), "cannot be used here"),
        (changed("model", "hidden", value=[1] * 101), "cannot be used here"),
        (changed("model", "hidden", value=[0]), "cannot be used here"),
        (changed("preparation", "columns", 0, "kind", value="code"), "cannot be used here"),
        (changed("held_out", value=1.0), "cannot be used here"),
        (changed("code", value="import os"), "cannot be used here"),
        (changed("preparation", "target", value=None), "names no target"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_declaration_that_cannot_be_used_is_refused(text, message):
    with pytest.raises(ConfigError, match=message) as error:
        read_declaration(text)
    assert len(str(error.value)) < 500


def test_model_is_refused_by_its_size_before_it_is_built():
    with pytest.raises(ConfigError, match=r"a model of 10,000,[\d,]* parameters; a site builds at most"):
        DeclaredModel(kind="mlp", hidden=(100_000, 100_000)).build(3, 2)


def test_model_has_the_parameters_of_the_server():
    torch.manual_seed(0)
    ours = DeclaredModel(kind="fedac_mlp", hidden=(8, 4)).build(3, 2)
    theirs = MLP(hidden=(8, 4)).build((3,), 2)
    assert [p.shape for p in ours.parameters()] == [p.shape for p in theirs.parameters()]


def test_declaration_that_is_too_long_is_refused_on_the_server():
    categories = tuple(f"{'x' * 100}{i}" for i in range(20_000))
    wide = Preparation(columns=(OneHotColumn(name="a", categories=categories),))
    with pytest.raises(ConfigError, match="at most 1,048,576 can be sent"):
        DECLARATION.model_copy(update={"preparation": wide}).to_json()


@pytest.mark.parametrize(
    ("share", "rows", "held"), [(0, 10, 0), (0.2, 10, 2), (0.2, 2, 1), (0.2, 1, 0), (0.9, 3, 2)]
)
def test_site_always_trains_on_a_row(share, rows, held):
    assert held_out_rows(share, rows) == held
