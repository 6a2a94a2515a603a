"""Your own data in files: tables with a client column, and folders with a part for each client."""

import lzma
import sys
from itertools import chain

import numpy as np
import pytest
import torch
from torch import nn

import tardigrad as td
from tardigrad.data.sets.own_files import Files
from tardigrad.errors import ConfigError

ROWS = [(f"c{i % 4}", i / 2, -i, "yes" if i % 3 else "no") for i in range(40)]
HEADING = ("client", "height", "depth", "label")


def text(rows, heading=HEADING, separator=","):
    return "\n".join(separator.join(map(str, row)) for row in (heading, *rows)) + "\n"


def columns(rows=ROWS, heading=HEADING):
    return dict(zip(heading, (list(column) for column in zip(*rows))))


def write_csv(path, rows=ROWS, heading=HEADING):
    path.write_text(text(rows, heading))
    return path


def write_parquet(path, rows=ROWS, heading=HEADING):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pyarrow.table(columns(rows, heading)), path)
    return path


def write_npz(path, rows=ROWS, heading=HEADING):
    np.savez(path, **{name: np.array(values) for name, values in columns(rows, heading).items()})
    return path


WRITERS = {".csv": write_csv, ".parquet": write_parquet, ".npz": write_npz}


def everything(federation):
    """Every client's rows as (features, label), sorted; the test set is under "test"."""
    clients = federation.clients
    loaded = {clients.name(c): clients.load(c) for c in range(len(clients))} | {"test": federation.test}
    return {name: sorted(zip(x.tolist(), y.tolist())) for name, (x, y) in loaded.items()}


def expected(rows):
    return sorted(([height, depth], ["no", "yes"].index(label)) for _, height, depth, label in rows)


@pytest.mark.parametrize("suffix", WRITERS)
def test_client_column_names_the_clients(tmp_path, suffix):
    file = WRITERS[suffix](tmp_path / f"mine{suffix}")
    federation = Files(path=str(file), label="label").federation(0)
    assert (federation.shape, federation.classes) == ((2,), 2)
    found = everything(federation)
    tested = found.pop("test")
    assert list(found) == ["c0", "c1", "c2", "c3"]
    for client, rows in found.items():
        own = expected(row for row in ROWS if row[0] == client)
        assert 1 <= len(rows) < len(own)
        assert all(row in own for row in rows)
    assert sorted([row for rows in found.values() for row in rows] + tested) == expected(ROWS)
    assert federation.clients.load(0)[0].dtype == torch.float32


def test_tables_may_be_compressed_or_tab_separated(tmp_path):
    (tmp_path / "a.csv.xz").write_bytes(lzma.compress(text(ROWS).encode()))
    (tmp_path / "b.tsv").write_text("\ufeff" + text(ROWS, separator="\t"), encoding="utf-8")
    one, two = (everything(Files(path=str(tmp_path / name)).federation(0)) for name in ("a.csv.xz", "b.tsv"))
    assert one == two


def test_table_is_found_in_the_data_folder(tmp_path, monkeypatch):
    write_csv(tmp_path / "mine.csv")
    monkeypatch.setenv("TARDIGRAD_DATA", str(tmp_path))
    assert len(Files(path="mine.csv").federation(0).clients) == 4
    with pytest.raises(ConfigError, match=f"neither other.csv nor {tmp_path}/other.csv"):
        Files(path="other.csv").federation(0)


@pytest.mark.parametrize("suffix", WRITERS)
def test_folder_with_a_file_for_each_client_is_read(tmp_path, suffix):
    for client in ("ann.smith", "bob"):
        WRITERS[suffix](tmp_path / f"{client}{suffix}", [row[1:] for row in ROWS], HEADING[1:])
    federation = Files(path=str(tmp_path), label="label").federation(0)
    found = everything(federation)
    assert list(found) == ["ann.smith", "bob", "test"]
    assert sorted(chain(*found.values())) == sorted(expected(ROWS) * 2)


def test_folder_with_a_folder_for_each_client_is_read(tmp_path):
    for client in ("ann", "bob"):
        (tmp_path / client).mkdir()
        write_csv(tmp_path / client / "monday.csv", ROWS[:20])  # its client column is ignored
        write_csv(tmp_path / client / "tuesday.csv", ROWS[20:])
    (tmp_path / ".hidden").touch()
    found = everything(Files(path=str(tmp_path)).federation(0))
    assert list(found) == ["ann", "bob", "test"]
    assert sorted(chain(*found.values())) == sorted(expected(ROWS) * 2)


def test_columns_and_test_file_are_settings(tmp_path):
    train = write_csv(tmp_path / "train.csv", heading=("who", "height", "depth", "happy"))
    test = write_csv(tmp_path / "test.csv", [row[1:] for row in ROWS[:5]], ("depth", "height", "happy"))
    source = Files(
        path=str(train), client="who", label="happy", features=("height",), test_path=str(test), test=0.5
    )
    federation = source.federation(0)
    assert federation.shape == (1,)
    found = everything(federation)
    assert len(found.pop("test")) == 5
    assert sum(len(rows) for rows in found.values()) == 40


def test_npz_file_with_images_is_read(tmp_path):
    random = np.random.default_rng(0)
    x, y = random.integers(256, size=(60, 3, 4, 4), dtype=np.uint8), random.integers(5, 8, size=60)
    np.savez(tmp_path / "mine.npz", x=x, y=y, client=np.arange(60) % 12)
    federation = Files(path=str(tmp_path / "mine.npz")).federation(0)
    assert (federation.shape, federation.classes) == ((3, 4, 4), 3)
    features, labels = federation.clients.load(0)
    assert features.dtype == torch.uint8  # held in a byte each
    assert federation.transform.evaluate(features).dtype == torch.float32
    assert set(labels.tolist()) <= {0, 1, 2}  # 5, 6 and 7, in order
    assert [federation.clients.name(c) for c in range(12)] == [str(i) for i in range(12)]
    where = next(i for i in range(60) if np.array_equal(x[i], features[0].numpy()))
    assert labels[0] == y[where] - 5


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        (["10", "9", "2"] * 4, {"2": 0, "9": 1, "10": 2}),  # numbers by value
        (["b", "10", "9"] * 4, {"10": 0, "9": 1, "b": 2}),  # sorted as words if one of them is a word
    ],
)
def test_classes_are_the_sorted_labels(tmp_path, labels, classes):
    rows = [("ann", i, i, label) for i, label in enumerate(labels)]
    write_csv(tmp_path / "a.csv", rows)
    federation = Files(path=str(tmp_path / "a.csv")).federation(0)
    assert federation.classes == 3
    for height, number in chain(*everything(federation).values()):
        assert number == classes[labels[int(height[0])]]


def test_table_without_a_client_column_needs_a_partition(tmp_path):
    file = str(write_csv(tmp_path / "a.csv", [row[1:] for row in ROWS], HEADING[1:]))
    federation = Files(path=file, partition={"kind": "iid", "clients": 5}).federation(0)
    assert len(federation.clients) == 5
    with pytest.raises(ConfigError, match=r"data\.client: .*a\.csv has no column 'client'; .*'iid'"):
        Files(path=file).federation(0)


BAD = [
    ([("c0", "tall", 1, "no")], r"line 2, column 'height': not a number"),
    ([("c0", 1, 1, "a"), ("c0", "", 1, "b"), ("c1", "x", 2, "b")], "line 3, column .height.: no value .*c0"),
    ([("c0", 1, "nan", "no")], r"line 2, column 'depth': no value \(missing, or NaN\).*\(client 'c0'\)"),
    ([("c0", "x", 1, "a"), ("c1", "y", 2, "b")], r"line 2, column .height.: not a .*\(and 1 more rows\)"),
    ([("c0", 1, "inf", "no")], "line 2, column 'depth': not a finite number"),
    ([("c0", 1, 1e300, "no")], "line 2, column 'depth': not a finite number"),
    ([("c0", 1, 1)], "line 2: 3 fields, but the heading has 4"),
    ([("c0", 1, 1, "no", 7)], "line 2: 5 fields, but the heading has 4"),
    ([("c0", 1, 1, " ")], "line 2, column 'label': no label"),
    ([("", 1, 1, "no")], "line 2, column 'client': no name of a client; fill it in"),
    ([("c0", 1, 1, '"no')], "line 2: not a CSV file"),
    ([], "must have a heading, each name once, and at least one row"),
]  # fmt: skip


@pytest.mark.parametrize(("rows", "message"), BAD)
def test_error_for_a_malformed_row_names_file_and_line(tmp_path, rows, message):
    file = write_csv(tmp_path / "a.csv", rows)
    with pytest.raises(ConfigError, match=message) as error:
        Files(path=str(file)).federation(0)
    assert str(file) in str(error.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"label": "lable"}, "no column 'lable'; its columns are client, height, depth, label"),
        ({"features": ("height", "width")}, r"data\.features: .* no column 'width'"),
        ({"client": "who"}, "no column 'who'"),
        ({"min_examples": 99}, "nobody has 99 examples"),
    ],
)
def test_error_for_an_unknown_column_names_the_columns(tmp_path, settings, message):
    with pytest.raises(ConfigError, match=message):
        Files(path=str(write_csv(tmp_path / "a.csv")), **settings).federation(0)


def test_duplicate_column_name_is_refused(tmp_path):
    file = write_csv(tmp_path / "a.csv", heading=("client", "height", "height", "label"))
    with pytest.raises(ConfigError, match="each name once"):
        Files(path=str(file)).federation(0)


def test_a_path_is_required():
    with pytest.raises(ConfigError, match=r"data\.path: name the table or folder"):
        Files().federation(0)


def test_other_file_types_and_empty_folders_are_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(ConfigError, match=r"notes\.txt: not a table"):
        Files(path=str(tmp_path)).federation(0)
    (tmp_path / "notes.txt").unlink()
    with pytest.raises(ConfigError, match="is empty"):
        Files(path=str(tmp_path)).federation(0)


def test_files_of_a_folder_must_have_the_same_columns(tmp_path):
    write_csv(tmp_path / "ann.csv")
    write_csv(tmp_path / "bob.csv", heading=("client", "height", "width", "label"))
    with pytest.raises(
        ConfigError, match=r"bob\.csv: features height, width, but .*ann\.csv has height, depth"
    ):
        Files(path=str(tmp_path)).federation(0)


def test_label_that_is_only_in_the_test_file_is_refused(tmp_path):
    train = write_csv(tmp_path / "train.csv")
    test = write_csv(tmp_path / "test.csv", [*ROWS[:2], ("c0", 1, 1, "maybe")])
    with pytest.raises(
        ConfigError, match=r"test\.csv, line 4, column 'label': a label that nobody trains on"
    ):
        Files(path=str(train), test_path=str(test)).federation(0)


def test_malformed_npz_file_is_refused(tmp_path):
    file = tmp_path / "a.npz"
    good = {"x": np.ones((6, 2)), "y": np.arange(6) % 2, "client": np.arange(6) % 3}
    for changes, message in (
        ({"y": np.arange(5)}, "different lengths: x has 6, y has 5"),
        ({"y": np.array([0, 1, 0.5, 1, 0, 1])}, "row 3, column 'y': its labels are fractions such as 0.5"),
        (
            {"y": np.array([0, 1, np.nan, 1, 0, 1])},
            "row 3, column 'y': no label .missing, or NaN. .client '2'",
        ),
        ({"y": np.ones((6, 2))}, r"labels 'y' have the shape \(6, 2\)"),
        ({"x": np.full((6, 2), np.nan)}, "row 1, column 'x': no value .missing, or NaN."),
        ({"x": np.full((6, 2), np.inf)}, "row 1, column 'x': not a finite number"),
        ({"x": np.array(["a"] * 6)}, "row 1, column 'x': not a number"),
        ({"x": np.array([{}] * 6)}, "plain arrays"),
        ({"x": np.array(3)}, "a single number is not a column"),
        ({"z": np.ones((6, 3))}, "several arrays of features"),
    ):
        np.savez(file, **(good | changes))
        with pytest.raises(ConfigError, match=message):
            Files(path=str(file)).federation(0)
    np.savez(file, **good)
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(ConfigError, match=r"a\.npz: not a whole npz file"):
        Files(path=str(file)).federation(0)


def test_malformed_parquet_file_is_refused(tmp_path):
    file = write_parquet(tmp_path / "a.parquet", [("c0", 1, 1, "no"), ("c1", None, 2, "yes")])
    with pytest.raises(ConfigError, match="row 2, column 'height': no value"):
        Files(path=str(file)).federation(0)
    write_parquet(file, [("c0", 1, [1, 2], "no")])
    with pytest.raises(ConfigError, match="row 1, column 'depth': not a number"):
        Files(path=str(file)).federation(0)
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(ConfigError, match=r"a\.parquet: not a whole Parquet file"):
        Files(path=str(file)).federation(0)


def test_error_without_pyarrow_names_the_extra(tmp_path, monkeypatch):
    (tmp_path / "a.parquet").touch()
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ConfigError, match=r"pip install .* -e '\.\[data\]' in a clone"):
        Files(path=str(tmp_path / "a.parquet")).federation(0)


def test_federated_run_learns_from_a_table(tmp_path):
    random = np.random.default_rng(0)
    x = random.normal(size=(600, 3))
    rows = [(f"c{i % 10}", *row, "up" if row.sum() > 0 else "down") for i, row in enumerate(x)]
    file = write_csv(tmp_path / "a.csv", rows, ("client", "a", "b", "c", "label"))
    torch.manual_seed(0)
    result = td.run(
        data=Files(path=str(file)),
        model=nn.Linear(3, 2),
        pace=td.Asynchronous(concurrency=5),
        buffer=td.Buffer(size=5),
        local=td.Local(lr=0.5),
        stop=td.Stop(trips=60),
    )
    assert result.accuracy > 0.93
