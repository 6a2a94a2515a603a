"""The kinds of columns are found from their values, and values are parsed by kind."""

from pathlib import Path

import numpy as np
import pytest

from tardigrad.data.tables.column_kinds import category_texts, days, find_kind, number, parse
from tardigrad.data.tables.reading_tables import TableFile
from tardigrad.errors import ConfigError


@pytest.mark.parametrize(
    ("parts", "kind"),
    [
        ([["1", "2.5", ""], ["NA", "-3e4"]], "number"),
        ([np.array([1, 2])], "number"),
        ([["2024-05-31", ""], ["2024-05-31T10:00:00+02:00"]], "date"),
        ([["20240531"]], "number"),  # not a date, though ISO 8601 allows it
        ([["f", "m"]], "category"),
        ([["1", "2"], ["2024-05-31"]], "category"),  # each file alone has another kind
        ([["1", "two"]], "category"),
        ([["31.12.2024"]], "category"),
        ([["", "NA"], ["null"]], "number"),  # nothing is known of it
    ],
)
def test_kind_is_found_from_all_values(parts, kind):
    assert find_kind(parts) == kind


def test_decimal_comma_makes_numbers():
    assert find_kind([["2,5"]]) == "category"
    assert find_kind([["2,5"]], decimal=",") == "number"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2000-01-01", 10957),
        ("1969-12-31", -1),
        ("1970-01-02T06:00", 1.25),
        ("1970-01-02T02:00+02:00", 1.0),
        ("1970-02-30", None),
        ("1970/01/02", None),
    ],
)
def test_dates_become_days_since_1970(text, expected):
    assert days(text) == expected


def table(column):
    return TableFile(Path("a.csv"), {"x": column}, lambda row: f"a.csv, line {row + 2}")


def test_parsed_numbers_have_nan_where_a_value_is_missing():
    np.testing.assert_array_equal(parse(table(["1", " na ", "2.5"]), "x", "number"), [1, np.nan, 2.5])
    np.testing.assert_array_equal(parse(table(["1,5", ""]), "x", "number", ","), [1.5, np.nan])
    np.testing.assert_array_equal(parse(table(np.array([1, 2])), "x", "number"), [1, 2])
    np.testing.assert_array_equal(parse(table(["1970-01-02", "NaN"]), "x", "date"), [1, np.nan])


@pytest.mark.parametrize(
    ("column", "kind", "message"),
    [
        (["1", "tall"], "number", "line 3, column 'x': not a number$"),
        (["1", "2,5"], "number", "not a number; is the comma its decimal point"),
        (["1", "inf"], "number", "not a finite number"),
        (["2024-01-01", "1.1.2024"], "date", "line 3, column 'x': not a date such as 2024-05-31"),
        (np.array([3.0]), "date", "not a date"),
    ],
)
def test_value_of_another_kind_is_refused_with_its_line(column, kind, message):
    with pytest.raises(ConfigError, match=message):
        parse(table(column), "x", kind)


def test_refused_value_names_its_client():
    with pytest.raises(ConfigError, match=r"line 3, column 'x': not a number \(client 'bob'\)"):
        parse(table(["1", "tall"]), "x", "number", clients=["ann", "bob"])


def test_categories_are_the_same_texts_from_any_file():
    assert category_texts([" 1", "2", "N/A"]) == category_texts(np.array([1, 2, np.nan])) == ["1", "2", ""]
    assert category_texts(np.array([True, False])) == ["1", "0"]


@pytest.mark.parametrize("text", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"])
def test_dates_beyond_the_calendar_are_no_dates(text):
    assert days(text) is None


def test_texts_that_only_python_takes_for_numbers_are_refused():
    assert number("1_000") is None
    assert number("1.234", decimal=",") is None
    for column, decimal, message in (
        (["1_000"], ".", "not a number"),
        (["2,5", "1.234"], ",", "with a decimal comma"),
    ):
        table = TableFile(Path("a.csv"), {"x": column}, lambda row: f"row {row}")
        with pytest.raises(ConfigError, match=message):
            parse(table, "x", "number", decimal)
