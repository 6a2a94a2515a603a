"""Tables are read from CSV with any separator, Parquet and Arrow."""

import datetime
import decimal

import numpy as np
import pytest

from tardigrad.data.tables.reading_tables import read_columns
from tardigrad.errors import ConfigError

ROWS = [["name", "note, or none", "size"], ["a", "x", "1.5"], ["b", "", "2"]]


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
def test_separator_is_found_in_the_heading(tmp_path, separator):
    lines = [separator.join(f'"{field}"' for field in row) for row in ROWS]
    (tmp_path / "a.csv").write_text("\n".join(lines))
    table = read_columns(tmp_path / "a.csv")
    assert table.separator == separator
    assert table.columns == {"name": ["a", "b"], "note, or none": ["x", ""], "size": ["1.5", "2"]}
    assert table.where(1) == f"{tmp_path / 'a.csv'}, line 3"


def test_any_separator_can_be_named(tmp_path):
    (tmp_path / "a.csv").write_text("a:b,c:d\n1:2:3\n")
    assert list(read_columns(tmp_path / "a.csv", ":").columns) == ["a", "b,c", "d"]


def test_comma_file_whose_values_have_semicolons_keeps_its_commas(tmp_path):
    (tmp_path / "a.csv").write_text("a,b\n1;2;3,4\n")
    assert read_columns(tmp_path / "a.csv").columns == {"a": ["1;2;3"], "b": ["4"]}


def arrow_columns():
    pyarrow = pytest.importorskip("pyarrow")
    noon = datetime.datetime(2024, 5, 31, 12, tzinfo=datetime.UTC)
    return pyarrow.table(
        {
            "whole": pyarrow.array([1, None, 3]),
            "yes": pyarrow.array([True, False, None]),
            "word": pyarrow.array(["a", None, "b"]).dictionary_encode(),
            "day": pyarrow.array([datetime.date(2024, 5, 31), None, None]),
            "moment": pyarrow.array([noon, None, None], type=pyarrow.timestamp("ns", "UTC")),
            "price": pyarrow.array([decimal.Decimal("1.25"), None, decimal.Decimal("2.00")]),
        }
    )


def write_stream(table, file):
    from pyarrow import ipc

    with ipc.new_stream(str(file), table.schema) as out:
        out.write_table(table)


@pytest.mark.parametrize("kind", ["parquet", "feather", "arrow file", "arrow stream"])
def test_parquet_and_arrow_give_numbers_and_texts_with_gaps(tmp_path, kind):
    table = arrow_columns()
    from pyarrow import feather, parquet

    file = tmp_path / f"a.{kind.split()[0]}"
    if kind == "parquet":
        parquet.write_table(table, file)
    elif kind == "arrow stream":
        write_stream(table, file)
    else:
        feather.write_feather(table, str(file))
    columns = read_columns(file).columns
    np.testing.assert_array_equal(columns["whole"], [1, np.nan, 3])
    np.testing.assert_array_equal(columns["yes"], [1, 0, np.nan])
    np.testing.assert_array_equal(columns["price"], [1.25, np.nan, 2])
    assert columns["word"] == ["a", "", "b"]
    assert columns["day"] == ["2024-05-31", "", ""]
    assert columns["moment"][0].startswith("2024-05-31 12:00:00")


@pytest.mark.parametrize("suffix", ["arrow", "feather"])
def test_damaged_arrow_file_is_refused(tmp_path, suffix):
    pytest.importorskip("pyarrow")
    (tmp_path / f"a.{suffix}").write_bytes(b"ARROW1 and no more")
    with pytest.raises(ConfigError, match="not a whole Arrow file"):
        read_columns(tmp_path / f"a.{suffix}")


def test_table_without_rows_or_file_is_refused(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pyarrow.table({"a": pyarrow.array([], pyarrow.int64())}), tmp_path / "a.parquet")
    with pytest.raises(ConfigError, match="at least one row"):
        read_columns(tmp_path / "a.parquet")
    with pytest.raises(ConfigError, match="no such file"):
        read_columns(tmp_path / "b.csv")


def test_large_numbers_beside_missing_ones_and_bytes_can_be_read_from_parquet(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    columns = {"id": pyarrow.array([2**60 + 1, None]), "sex": pyarrow.array([b"f", None])}
    parquet.write_table(pyarrow.table(columns), tmp_path / "a.parquet")
    found = read_columns(tmp_path / "a.parquet").columns
    assert found["id"][0] == 2.0**60
    assert found["sex"] == ["f", ""]
