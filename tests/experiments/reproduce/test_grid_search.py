"""The grid of a reproduction gives every entry the same budget, and its choice follows from its runs."""

import io
import tomllib

import pytest
from rich.console import Console
from typer.testing import CliRunner

from event_records import read_records
from tardigrad.cli import app
from tardigrad.errors import ConfigError
from tardigrad.experiments.reproduce.grid_search import _rank, search_grid
from tardigrad.experiments.reproduce.reproduce import reproduce
from tardigrad.experiments.reproduce.reproduction import load
from tardigrad.experiments.reproduce.tuning_grid import TuningGrid

FILE = """
title = "Two rates"
also = ["time"]
paper = { source = "None" }
[base]
data = { kind = "digits", partition = { kind = "iid", clients = 20 } }
model = { kind = "mlp", hidden = [16] }
pace = { kind = "asynchronous", concurrency = 5 }
buffer = { size = 2 }
local = { lr = 0.3, batch_size = 8 }
stop = { trips = 40, accuracy = 0.5 }
evaluation = { every_trips = 5 }
[entries.A]
algorithm = { kind = "fedbuff" }
[entries.B]
algorithm = { kind = "fedbuff", momentum = { kind = "ema", beta = 0.9 } }
[tasks."few"]
[tasks."many"]
base = { pace = { concurrency = 10 } }
[scales.small]
seeds = [0, 1]
targets = [0.5]
[scales.small.grid.tried]
A = [{ "algorithm.lr" = [0.001, 0.01, 1.0, 1e30] }]
B = [{ "algorithm.lr" = [0.001, 1.0], "algorithm.momentum.beta" = [0.5, 0.9] }]
"""


@pytest.fixture
def library_folder(tmp_path):
    folder = tmp_path / "experiments"
    (folder / "mine").mkdir(parents=True)
    (folder / "mine/rates.toml").write_text(FILE)
    return folder


def test_choice_follows_from_the_runs_and_can_be_appended_to_the_file(library_folder, tmp_path):
    out, console = tmp_path / "out", Console(quiet=True)
    result = search_grid(["mine"], "small", out, console, library_folder)["mine/rates"]
    assert result["seeds"] == [100]
    assert list(result["tasks"]) == ["few", "many"]
    for task in result["tasks"].values():
        assert [len(one["tried"]) for one in task.values()] == [4, 4]
        diverged = task["A"]["tried"][3]
        assert diverged["trips"] is None
        assert "lower local.lr" in diverged["failed"]
        assert task["A"]["chosen"] == {"algorithm.lr": 1.0}
        assert task["A"]["edges"] == []  # a larger rate was tried and is worse
        assert task["B"]["chosen"]["algorithm.lr"] == 1.0
        for one in task.values():
            reached = [tried["trips"] for tried in one["tried"] if tried["trips"] is not None]
            best = next(tried for tried in one["tried"] if tried["settings"] == one["chosen"])
            assert best["trips"] == min(reached)
    assert len(list((out / "runs").iterdir())) == 2 * 8
    for run in (out / "runs").iterdir():
        assert tomllib.loads((run / "config.toml").read_text())["seed"] == 100

    again = search_grid(["mine"], "small", out, console, library_folder)["mine/rates"]
    assert again["tasks"]["few"]["B"] == result["tasks"]["few"]["B"]

    file = library_folder / "mine/rates.toml"
    file.write_text(FILE + (out / "mine/rates/tuned.toml").read_text())
    comparisons = load(file).comparisons("small")
    for task, comparison in comparisons.items():
        algorithm = comparison.config("B", 0, "here").algorithm
        chosen = result["tasks"][task]["B"]["chosen"]
        assert (algorithm.lr, algorithm.momentum.beta) == tuple(chosen.values())
    judged = reproduce(["mine"], "small", out, console, library_folder)["mine/rates"]
    assert judged["failed"] == {}
    [time] = [
        event["time"]
        for run in (out / "runs").glob("*-seed0-*")
        if (config := tomllib.loads((run / "config.toml").read_text()))["algorithm"]["momentum"]["kind"]
        == "none"
        and config["pace"]["concurrency"] == 10
        for event in read_records(run / "events.jsonl")
        if event["event"] == "evaluation" and event["accuracy"] >= 0.5
    ]
    assert judged["also"]["time"]["many"]["A"]["interval"][0] < time
    text = (out / "mine/rates/reproduction.md").read_text()
    assert "virtual time to the target 0.5, many" in text


def test_an_entry_of_which_every_setting_fails_is_not_chosen_for_the_file(library_folder, tmp_path):
    file = library_folder / "mine/rates.toml"
    file.write_text(FILE.replace("[0.001, 0.01, 1.0, 1e30]", "[1e26, 1e27, 1e28, 1e30]"))
    said = io.StringIO()
    search_grid(["mine"], "small", tmp_path / "out", Console(file=said, width=500), library_folder)
    assert said.getvalue().count("A: every setting failed: ") == 2
    tuned = tomllib.loads((tmp_path / "out/mine/rates/tuned.toml").read_text())
    assert [list(one["entries"]) for one in tuned["scales"]["small"]["tasks"].values()] == [["B"], ["B"]]


def test_the_best_accuracy_at_the_end_is_chosen_if_that_is_measured(library_folder, tmp_path):
    file = library_folder / "mine/rates.toml"
    file.write_text('measure = "accuracy"' + FILE.replace(", accuracy = 0.5", ""))
    out, console = tmp_path / "out", Console(quiet=True)
    result = search_grid(["mine"], "small", out, console, library_folder)["mine/rates"]
    for task in result["tasks"].values():
        assert task["A"]["tried"][3]["end"] is None  # it diverged
        for one in task.values():
            ends = [tried["end"] for tried in one["tried"] if tried["end"] is not None]
            best = next(tried for tried in one["tried"] if tried["settings"] == one["chosen"])
            assert best["end"] == max(ends) > min(ends)


def test_with_several_seeds_the_settings_that_reach_the_target_with_most_are_chosen():
    """A rate that is fast with one seed and fails with the other is worse than a slow one."""
    fast = {"settings": {"lr": 4}, "trips": 10.0, "reached": 1, "best": 0.9}
    slow = {"settings": {"lr": 1}, "trips": 30.0, "reached": 2, "best": 0.6}
    slower = {"settings": {"lr": 2}, "trips": 35.0, "reached": 2, "best": 0.7}
    missed = {"settings": {"lr": 8}, "trips": None, "reached": 0, "best": None}
    assert sorted([missed, slower, fast, slow], key=lambda one: _rank(one, False)) == [
        slow,
        slower,
        fast,
        missed,
    ]
    low = {"settings": {"lr": 1}, "trips": None, "reached": 0, "best": 0.5, "end": 0.5}
    high = {"settings": {"lr": 2}, "trips": None, "reached": 0, "best": 2.0, "end": 2.0}
    assert [min((low, high), key=lambda one: _rank(one, less)) for less in (True, False)] == [low, high]


def test_grids_of_different_size_are_refused():
    with pytest.raises(ValueError, match="A has 2 and B has 1"):
        TuningGrid(tried={"A": [{"algorithm.lr": [1, 2]}], "B": [{"algorithm.lr": [1]}]})


def test_an_edge_is_the_smallest_or_largest_of_three():
    grid = TuningGrid(
        tried={"A": [{"lr": [1, 2, 4], "beta": [0.5, 0.9]}, {"lr": [8, 16, 32], "beta": [0.0]}]}
    )
    assert grid.edges("A", {"lr": 4, "beta": 0.9}) == ["lr"]
    assert grid.edges("A", {"lr": 2, "beta": 0.9}) == []
    assert grid.edges("A", {"lr": 8, "beta": 0.0}) == ["lr"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("seeds = [0, 1]", "seeds = [0, 100]"), "which judge what was tuned"),
        (("\nB = [{", "\nC = [{"), "there is no entry 'C'"),
        (("seeds = [0, 1]", "seeds = [0, 0]"), "the same seed twice"),
        (
            ("[scales.small.grid.tried]", "[scales.small.grid]\nseeds = [7, 7]\n[scales.small.grid.tried]"),
            "same seed",
        ),
        (("algorithm.momentum.beta", "algorithm.momentum.gamma"), "gamma"),
        (("targets = [0.5]", 'targets = [0.5]\nomit = ["B"]'), "there is no entry 'B' at this scale"),
        (('"algorithm.momentum.beta" = [0.5', '"algorithm" = ["fedbuff"], "a" = [0.5'), "set the same table"),
        (("[0.001, 0.01, 1.0, 1e30]", "[]"), r"tried\.A: there is nothing to try; give a table"),
        (('[{ "algorithm.lr" = [0.001, 0.01, 1.0, 1e30] }]', "[]"), r"tried\.A: there is nothing to try"),
    ],
)
def test_a_wrong_grid_is_refused_before_anything_runs(library_folder, tmp_path, change, message):
    (library_folder / "mine/rates.toml").write_text(FILE.replace(*change))
    with pytest.raises(ConfigError, match=message):
        search_grid(["mine"], "small", tmp_path / "out", Console(quiet=True), library_folder)
    assert not (tmp_path / "out").exists()


def test_tune_of_a_file_without_a_grid_says_so(tmp_path):
    arguments = ["reproduce", "fedbuff/table1", "--tune", "--out", str(tmp_path / "out")]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code != 0
    assert "has no [scales.small.grid]" in str(result.exception)
