"""The tables of docs/momentum-under-staleness.md are the recorded ones, and the files have the settings that
the recorded grids chose."""

import json
import re

import pytest
import tomli_w

import momentum_page
from tardigrad.experiments.reproduce.grid_search import tuned_tables
from tardigrad.experiments.reproduce.reproduction import library, load
from tardigrad.experiments.reproduce.tuning_grid import as_tables

LIBRARY = momentum_page.ROOT / "src/tardigrad/experiments/library"
NUMBER = {"mean": 1234.4, "sd": 10.0, "interval": [1200.0, 1268.8], "reached": 5, "budget": 4000.0}
MISSED = {"mean": None, "sd": None, "reached": 3, "budget": 4000.0}
RESULT = {
    "targets": {"few at work": [0.8]}, "seeds": [0, 1, 2, 3, 4],
    "ours": {"few at work": {"A": NUMBER, "B": MISSED}},
    "also": {"time": {"few at work": {"A": NUMBER | {"mean": 12.34, "interval": [9.0, 15.68]}, "B": MISSED}}},
}  # fmt: skip
GRID = {
    "seeds": [100, 101],
    "tasks": {
        "few at work": {
            "A": {
                "tried": [
                    {
                        "settings": {"algorithm.lr": 1.0, "algorithm.beta": 0.5},
                        "trips": None,
                        "reached": 0,
                        "best": 0.7,
                    },
                    {
                        "settings": {"algorithm.lr": 8.0, "algorithm.beta": 0.5},
                        "trips": 1300.0,
                        "reached": 1,
                        "best": 0.8,
                    },
                ],
                "chosen": {"algorithm.lr": 8.0, "algorithm.beta": 0.5},
                "edges": ["algorithm.lr"],
            }
        }
    },
}


def test_the_page_shows_what_was_recorded():
    page = momentum_page.PAGE.read_text()
    assert len(momentum_page.TABLE.findall(page)) == 6
    assert momentum_page.written(page) == page, "run: python tools/momentum_page.py"


def test_tables_have_intervals_misses_and_edges():
    table = momentum_page.trips_table(RESULT).splitlines()
    assert table[0] == "| row | few at work: trips to 0.8, time |"
    assert table[2] == "| A | **1,234 [1,200, 1,269]; 12.3 [9.0, 15.7]** |"
    assert table[3] == "| B | > 4,000 (3 of 5) |"
    assert (
        momentum_page.settings_table(GRID).splitlines()[2]
        == "| A | lr 8\\*, beta 0.5 (1,300, with 1 of 2 seeds) |"
    )


@pytest.mark.parametrize("name", momentum_page.NAMES)
def test_every_row_has_the_same_arrivals(name):
    """Pace, buffer, delays, data, local training, stop and evaluation are those of all rows."""
    reproduction = load(library(LIBRARY)[f"momentum_under_staleness/{name}"])
    for comparison in reproduction.comparisons("small").values():
        configs = [comparison.config(label, 0, name) for label in comparison.entries]
        assert len(configs) == 9
        assert len({config.model_dump_json(exclude={"algorithm"}) for config in configs}) == 1
        laws = {config.algorithm.law for config in configs if config.algorithm.kind != "cgad"}
        assert len(laws) == 1


@pytest.mark.parametrize("name", momentum_page.NAMES)
def test_the_file_has_the_settings_that_the_recorded_grid_chose(name):
    file = momentum_page.RECORDED / f"{name}-grid.json"
    reproduction = load(library(LIBRARY)[f"momentum_under_staleness/{name}"])
    scale = reproduction.scales["small"]
    tuned = {task: problem.entries for task, problem in scale.tasks.items()}
    if not file.exists():
        assert not any(tuned.values()), f"settings without a record of how they were found: {file} is missing"
        return
    grid = json.loads(file.read_text())
    assert grid["seeds"] == list(scale.grid.seeds)
    for task, entries in grid["tasks"].items():
        assert tuned[task] == {label: as_tables(one["chosen"]) for label, one in entries.items()}
        for label, one in entries.items():
            assert [tried["settings"] for tried in one["tried"]] == scale.grid.settings(label)
            assert one["edges"] == scale.grid.edges(label, one["chosen"])


@pytest.mark.parametrize("name", momentum_page.NAMES)
def test_chosen_settings_can_be_appended_to_the_file(name, tmp_path):
    source = library(LIBRARY)[f"momentum_under_staleness/{name}"]
    untuned = re.sub(
        r'\[scales\.small\.tasks\."[\w ]+"\.entries.*?(?=\n\[(?!.*entries)|\Z)',
        "",
        source.read_text(),
        flags=re.S,
    )
    grid = load(source).scales["small"].grid
    tried = [{"reached": 5}]
    chosen = {label: {"chosen": grid.settings(label)[-1], "tried": tried} for label in grid.tried}
    tasks = dict.fromkeys(("few at work", "some at work", "many at work"), chosen)
    file = tmp_path / f"{name}.toml"
    file.write_text(untuned + "\n" + tomli_w.dumps(tuned_tables({"scale": "small", "tasks": tasks})))
    config = load(file).comparisons("small")["many at work"].config("MA", 0, "here")
    assert (config.algorithm.lr, config.algorithm.momentum.beta) == (16.0, 0.9)


@pytest.mark.parametrize("name", momentum_page.NAMES)
@pytest.mark.parametrize("at_work", ["few", "some", "many"])
def test_the_summary_names_every_row_that_gains_with_its_ratio(name, at_work):
    found = {
        claim["found"].split(" took ")[1].split(" times ")[1].split("'s")[0]: float(claim["found"].split()[3])
        for claim in json.loads((momentum_page.RECORDED / f"{name}.json").read_text())["claims"]
        if claim["task"] == f"{at_work} at work"
        and claim["verdict"] == "holds"
        and "than no momentum" in claim["says"]
    }
    page = " ".join(momentum_page.PAGE.read_text().split())
    summary = page[page.index("**What came out.**") : page.index("![Trips of every row")]
    best = sorted(found, key=found.__getitem__, reverse=True)
    shown = ", ".join(f"{row} {found[row]:.2f}" for row in best) or "none"
    kind = {"image": "images", "text": "text"}[name]
    lines = [line for line in summary.split(" - ") if line.startswith(f"*{kind}") and at_work in line]
    assert [shown in line for line in lines] == [True]
