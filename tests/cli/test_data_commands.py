"""`tardigrad data`: columns are shown before training, constants are found and applied."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from tardigrad.cli import app
from tardigrad.data.tables.preparation import read_preparation
from tardigrad.errors import ConfigError

TABLE = "clinic;age;sex;visit;sick\n" + "".join(
    f"{'ab'[i % 2]};{'' if i == 3 else 20 + i};{'fm'[i % 2]};2024-05-{i + 1:02};{'yes' if i % 3 else 'no'}\n"
    for i in range(20)
)
CONFIG = """
[data]
kind = "files"
path = "visits.csv"
client = "clinic"
label = "sick"
prepare = "standard"
"""


def command(*words):
    result = CliRunner().invoke(app, list(map(str, words)), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The current folder, with a table and a config."""
    (tmp_path / "visits.csv").write_text(TABLE)
    (tmp_path / "run.toml").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_show_says_what_each_column_is_and_what_becomes_of_it():
    said = command("data", "show", "run.toml")
    for words in ("age", "number", "mean 2", "2 categories: f, m", "date", "2 classes: no, yes", "';'"):
        assert words in said
    assert "combined from statistics of 2 clients" in said.replace("\n", " ")
    shown = json.loads(command("data", "show", "run.toml", "--json"))
    columns = {column["name"]: column for column in shown["columns"]}
    assert columns["age"]["missing"] == 1
    assert columns["visit"]["kind"] == "date"
    assert shown["preparation"]["columns"][1]["categories"] == ["f", "m"]


def test_show_without_a_preparation_gives_kinds_and_ranges():
    settings = ("--set", "data.features=['visit', 'age']", "--set", "data.prepare={kind='standard'}")
    assert "2024" in command("data", "show", "run.toml", *settings)


def test_found_constants_are_applied_to_a_new_table(folder):
    command("data", "prepare", "run.toml", "--out", "found.json")
    preparation = read_preparation(folder / "found.json")
    assert preparation.clients == 2
    (folder / "new.csv").write_text("visit,sex,age\n2024-05-10,x,\n")
    command("data", "apply", "found.json", "new.csv", "--out", "new.npz")
    with np.load(folder / "new.npz") as arrays:
        assert arrays["names"].tolist() == preparation.outputs
        assert arrays["x"].shape == (1, preparation.width)
        assert arrays["x"][0, :4].tolist() == [0, 0, 0, 1]
    (folder / "new.csv").write_text("visit,age\n2024-05-10,1\n")
    with pytest.raises(ConfigError, match=r"--out new\.csv: the file's name must end in \.npz"):
        command("data", "apply", "found.json", "new.csv", "--out", "new.csv")
    with pytest.raises(ConfigError, match=r"new\.csv: has no column 'sex'"):
        command("data", "apply", "found.json", "new.csv", "--out", "new.npz")


def test_constants_of_several_tables_are_those_of_all_rows(folder):
    head, *rows = TABLE.splitlines(keepends=True)
    (folder / "whole.csv").write_text(TABLE)
    (folder / "one.csv").write_text("".join([head, *rows[:7]]))
    (folder / "two.csv").write_text("".join([head, *rows[7:]]))
    command("data", "prepare", "run.toml", "whole.csv", "--out", "a.json")
    command("data", "prepare", "run.toml", "one.csv", "two.csv", "--out", "b.json")
    whole, parts = (read_preparation(folder / name) for name in ("a.json", "b.json"))
    assert (whole.clients, parts.clients) == (1, 2)
    for one, two in zip(whole.columns, parts.columns):
        if one.kind == "category":
            assert one == two
        else:
            assert two.mean == pytest.approx(one.mean, rel=1e-14)
            assert two.scale == pytest.approx(one.scale, rel=1e-12)


def test_check_against_a_config_lists_what_does_not_fit(folder):
    command("data", "prepare", "run.toml")
    remote = CONFIG.replace('path = "visits.csv"\n', "").replace(
        '"standard"', '{kind = "standard", constants = "preparation.json"}'
    )
    (folder / "server.toml").write_text(remote)
    assert "a client must bring these columns" in command("data", "show", "server.toml")
    assert "visits.csv fits: 20 rows" in command("join", "server.toml", "--data", "visits.csv", "--check")
    (folder / "site.csv").write_text(
        "age,sex,visit,sick,more\n900,x,2024-05-01,yes,1\n,f,2024-05-02,no,2\n30,f,5/3/2024,no,3\n"
    )
    result = CliRunner().invoke(app, ["join", "server.toml", "--data", "site.csv", "--check", "--json"])
    assert isinstance(result.exception, ConfigError)
    assert str(result.exception) == "--data site.csv: does not fit, because of 'visit'"
    found = json.loads(result.stdout)
    columns = {column["name"]: column for column in found["columns"]}
    assert not found["fits"]
    assert columns["age"]["missing"] == 1
    assert columns["age"]["note"] == "1 values further than 6 scales from the mean, such as 900"
    assert columns["sex"]["note"] == "1 unknown categories: x (1)"
    assert "line 4, column 'visit': not a date" in columns["visit"]["problem"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("join", "localhost:1"), "--app, --data, --flower: give one of them"),
        (
            ("join", "localhost:1", "--data", "a.csv", "--app", "a.py"),
            "--app, --data, --flower: give one of them",
        ),
        (("join", "localhost:1", "--app", "a.py", "--check"), "give --data FILE"),
        (("join", "localhost:1", "--data", "a.csv"), "--key: give the client's key"),
        (("join", "run.toml", "--data", "a.csv", "--check", "--decimal", ";"), "--decimal: must be"),
        (("join", "run.toml", "--data", "a.csv", "--check", "--separator", ";;"), "one character"),
        (("data", "prepare", "run.toml", "--set", "data.prepare=null"), "data.prepare"),
    ],
)
def test_options_that_do_not_go_together_are_refused(words, message):
    result = CliRunner().invoke(app, list(words))
    assert message in str(result.exception) + result.output
    assert result.exit_code != 0
