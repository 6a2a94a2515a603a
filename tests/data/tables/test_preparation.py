"""A preparation turns columns into numbers, and is saved and read as JSON."""

import json

import numpy as np
import pytest
from pydantic import ValidationError

from tardigrad.data.tables.preparation import (
    MOST_COLUMNS,
    OneHotColumn,
    Preparation,
    PreparedTarget,
    ScaledColumn,
    read_preparation,
)
from tardigrad.errors import ConfigError

AGE = ScaledColumn(name="age", mean=50, scale=10, missing="indicator")
SEX = OneHotColumn(name="sex", categories=("f", "m"))
VISIT = ScaledColumn(name="visit", kind="date", mean=100, scale=2, missing="mean")
WHOLE = Preparation(
    columns=(AGE, SEX, VISIT), target=PreparedTarget(name="sick", classes=("no", "yes")), clients=3, bytes=99
)
COLUMNS = {
    "age": np.array([60, np.nan, 45]),
    "sex": np.array(["m", "x", ""], dtype=object),
    "visit": np.array([100, 104, np.nan]),
}


def test_numbers_are_scaled_categories_encoded_and_missing_values_imputed():
    assert WHOLE.outputs == ["age", "age is missing", "sex = f", "sex = m", "sex is unknown", "visit"]
    expected = [[1, 0, 0, 1, 0, 0], [0, 1, 0, 0, 1, 2], [-0.5, 0, 0, 0, 1, 0]]
    found = WHOLE.apply(COLUMNS)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, expected)
    assert WHOLE.width == found.shape[1] == len(WHOLE.outputs)


def test_json_round_trip_keeps_every_bit(tmp_path):
    exact = WHOLE.model_copy(update={"columns": (ScaledColumn(name="x", mean=0.1 + 0.2, scale=1 / 3),)})
    (tmp_path / "p.json").write_text(exact.to_json())
    assert read_preparation(tmp_path / "p.json") == exact


@pytest.mark.parametrize(
    "document",
    [
        {"columns": []},
        {"columns": [{"name": "a", "kind": "number"}, {"name": "a", "kind": "date"}]},
        {"columns": [{"name": "a", "kind": "number"}], "target": {"name": "a"}},
        {"columns": [{"name": "a", "kind": "python"}]},
        {"columns": [{"name": "a", "kind": "number", "scale": 0}]},
        {"columns": [{"name": "a", "kind": "number", "mean": "NaN"}]},
        {"columns": [{"name": "a", "kind": "category", "categories": ["x", "x"]}]},
        {"columns": [{"name": "a", "kind": "category", "categories": [""]}]},
        {"columns": [{"name": "a", "kind": "number"}], "target": {"name": "b", "classes": []}},
        {"columns": [{"name": "a", "kind": "number"}], "code": "import os"},
    ],
)
def test_malformed_preparation_is_refused(tmp_path, document):
    (tmp_path / "p.json").write_text(json.dumps(document))
    with pytest.raises(ConfigError, match=r"p\.json: not a preparation"):
        read_preparation(tmp_path / "p.json")


def test_preparation_that_would_be_too_wide_is_refused():
    categories = tuple(map(str, range(MOST_COLUMNS)))
    with pytest.raises(ValidationError, match="at most"):
        Preparation(columns=(OneHotColumn(name="a", categories=categories),))


def test_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="tardigrad data prepare"):
        read_preparation(tmp_path / "p.json")


def test_missing_value_is_refused_where_it_must_not_be():
    refused = []
    preparation = Preparation(columns=(ScaledColumn(name="age"), VISIT))
    preparation.apply(COLUMNS, lambda wrong, name, what: refused.append((wrong.tolist(), name)))
    assert ([False, True, False], "age") in refused
    assert not any(any(wrong) for wrong, name in refused if name == "visit")
