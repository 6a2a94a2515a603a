"""The pages of results show what was recorded, and what was recorded is what the experiments' files say."""

import json
import re
import shutil
from pathlib import Path

import pytest

import momentum_page
import results_page
from tardigrad.experiments.compare.outcome import DAMAGED, DIED, NOT_FINISHED, STOPPED
from tardigrad.experiments.reproduce.grid_search import _rank, tried_in
from tardigrad.experiments.reproduce.reproduction import library, load
from tardigrad.experiments.reproduce.tuning_grid import as_tables

ROOT = Path(__file__).parents[1]
RESULTS = results_page.recorded()
GRIDS = [*sorted(results_page.RECORDED.glob("*/*/grids/*.json")), *momentum_page.RECORDED.glob("*-grid.json")]
OTHERS = {  # on a page of their own
    ("small", f"momentum_under_staleness/{name}"): json.loads(
        (momentum_page.RECORDED / f"{name}.json").read_text()
    )
    for name in momentum_page.NAMES
}

TINY = {
    "name": "paper/table9", "title": "Tiny", "scale": "protocol", "source": "A paper", "paper_measure": "",
    "paper": {}, "measure": "accuracy", "seeds": [0, 1], "tuning": "", "rules": "", "targets": {"": [0.5]},
    "ours": {"": {"A": {"mean": 0.5, "sd": 0.01, "reached": 2}}}, "failed": {},
    "claims": [{"task": "", "says": "A is good", "verdict": "holds", "found": "p = 0.01"}],
}  # fmt: skip
EMPTY = (
    "before\n<!-- numbers protocol paper/table9 -->\n<!-- end of table -->\nbetween\n"
    "<!-- details protocol paper -->\n<!-- end of table -->\nafter\n"
)


def runs_with(folder, result):
    file = folder / result["name"] / "reproduction.json"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps(result))
    return folder


@pytest.mark.parametrize("page", results_page.PAGES, ids=lambda page: page.stem)
def test_a_page_shows_what_was_recorded(page):
    text = page.read_text()
    assert results_page.written(text, RESULTS) == text, "run: python tools/results_page.py"


def test_every_recorded_result_is_on_a_page():
    directives = [one for page in results_page.PAGES for one in results_page.TABLE.findall(page.read_text())]
    shown = {(scale, paper) for _, kind, scale, paper, _ in directives if kind == "details"}
    assert shown == {(scale, name.split("/")[0]) for scale, name in RESULTS}
    judged = {paper for _, kind, paper, _, _ in directives if kind == "claims"}
    assert judged == set(results_page.PAPERS) == {paper for _, paper in shown}


def test_every_claim_that_does_not_hold_has_a_reason():
    judged = {
        (name.split("/")[0], claim["says"], results_page.verdict(claim))
        for (_, name), result in RESULTS.items()
        for claim in results_page.papers_claims(result)
    }
    why = set(results_page.reasons())
    assert why <= {(paper, says) for paper, says, _ in judged}
    assert {(paper, says) for paper, says, verdict in judged if verdict == "does not hold"} <= why


def test_the_pages_have_no_table_of_results_that_was_typed():
    """Rows outside the written tables have no number with a deviation, a percentage or a p."""
    for page in results_page.PAGES:
        rest = results_page.TABLE.sub("", page.read_text())
        rows = [line for line in rest.splitlines() if line.startswith("|")]
        assert not [row for row in rows if re.search(r"±|\d %|p = |\d\.\d", row)]


@pytest.mark.parametrize("key", RESULTS | OTHERS, ids=":".join)
def test_a_recorded_result_is_of_the_file_as_it_is_now(key):
    result, (size, name) = (RESULTS | OTHERS)[key], key
    reproduction = load(library(ROOT / "experiments")[name])
    assert (result["measure"], result["paper"]) == (reproduction.measure, reproduction.paper.numbers)
    assert result["rules"] == reproduction.rules
    comparisons = reproduction.comparisons(size)
    assert result["seeds"] == list(reproduction.scales[size].seeds)
    assert result["tuning"] == reproduction.scales[size].tuning
    assert result["settings"] == {task: one.digest for task, one in comparisons.items()}
    assert {task: list(numbers) for task, numbers in result["ours"].items()} == {
        task: list(comparison.entries) for task, comparison in comparisons.items()
    }
    assert result["targets"] == {task: list(one.targets) for task, one in comparisons.items()}
    assert {claim["says"] for claim in result["claims"]} == {claim.says for claim in reproduction.claims}
    assert str(ROOT) not in json.dumps(result)


@pytest.mark.parametrize("file", GRIDS, ids=lambda file: f"{file.parts[-4]}:{file.stem}")
def test_the_file_has_the_settings_that_the_recorded_grid_chose(file):
    grid = json.loads(file.read_text())
    reproduction = load(library(ROOT / "experiments")[grid["name"]])
    scale = reproduction.scales[grid["scale"]]
    assert grid["seeds"] == list(scale.grid.seeds)
    comparisons = reproduction.comparisons(grid["scale"])
    assert grid["settings"] == {task: tried_in(one, scale.grid).digest for task, one in comparisons.items()}
    assert not set(grid["seeds"]) & set(scale.seeds)
    for task, entries in grid["tasks"].items():
        for label, one in entries.items():
            written = (scale.tasks[task].entries if task else scale.entries)[label]
            assert written == as_tables(one["chosen"])
            assert [tried["settings"] for tried in one["tried"]] == scale.grid.settings(label)
            assert one["chosen"] == min(one["tried"], key=lambda tried: _rank(tried, False))["settings"]


def test_recording_and_writing_fills_in_the_tables(tmp_path):
    runs = runs_with(tmp_path / "runs", TINY)
    assert results_page.record(runs, tmp_path / "docs") == ["paper/table9"]
    results = results_page.recorded(tmp_path / "docs")
    assert results == {("protocol", "paper/table9"): TINY}
    page = results_page.written(EMPTY, results)
    assert "| A | 50.0 ± 1.0 % |" in page
    assert "### paper/table9: Tiny" in page
    assert "| A is good | holds | p = 0.01 |" in page
    assert (page.startswith("before\n"), page.endswith("after\n")) == (True, True)
    assert results_page.written(page, results) == page
    changed = json.loads(json.dumps(TINY).replace('0.5, "sd"', '0.6, "sd"'))
    assert results_page.written(page, {("protocol", "paper/table9"): changed}) != page


@pytest.mark.parametrize("error", [NOT_FINISHED, STOPPED, DIED, f"a/events.jsonl {DAMAGED}"])
def test_a_table_or_grid_with_unfinished_runs_is_not_recorded(tmp_path, error):
    runs = runs_with(tmp_path / "runs", TINY | {"failed": {"A (seed 0)": error}})
    tried = [{"settings": {"local.lr": 1.0}}, {"settings": {"local.lr": 2.0}, "failed": error}]
    grid = {"name": "paper/table9", "scale": "protocol", "tasks": {"": {"A": {"tried": tried}}}}
    (runs / "paper/table9/grid.json").write_text(json.dumps(grid))
    assert results_page.record(runs, tmp_path / "docs") == []
    assert results_page.is_unfinished(grid)
    shutil.rmtree(runs)
    runs_with(runs, TINY | {"failed": {"A (seed 0)": "the training loss is not finite"}})
    assert results_page.record(runs, tmp_path / "docs") == ["paper/table9"]


def test_a_table_that_was_not_recorded_is_named():
    with pytest.raises(KeyError, match="paper/table9"):
        results_page.written(EMPTY, {})


@pytest.mark.parametrize(
    ("said", "found", "shown"),
    [
        ("holds", "B took 2.00 times A's trips (p = 0.01)", "holds"),
        ("does not hold", "B took 1.10 times A's trips (p = 0.2, could be chance)", "could be chance"),
        ("does not hold", "gap 1 -> 0.5 (first to last: p = 0.2)", "could be chance"),
        ("does not hold", "B took 2 (p = 0.01); C took 1.1 (p = 0.1, could be chance)", "could be chance"),
        ("does not hold", "B took 2 (p = 0.1, could be chance); C took 0.9 (p = 0.8)", "does not hold"),
        ("does not hold", "A did not reach the target with every seed", "does not hold"),
        ("not run", "the smoke scale shows only that it runs", "not run"),
    ],
)
def test_what_could_be_chance_has_the_claimed_sign(said, found, shown):
    assert results_page.verdict({"task": "", "says": "", "verdict": said, "found": found}) == shown


def claim(says, verdict, found="p = 0.7", task=""):
    return {"task": task, "says": says, "verdict": verdict, "found": found}


def test_the_verdicts_of_all_scales_stand_beside_each_other_with_the_reason():
    table = TINY | {"source": "A paper, Table 9"}
    small = [claim("A", "holds", task="few"), claim("A", "does not hold", task="many"), claim("B", "holds")]
    protocol = [claim("A", "does not hold"), claim("not the paper's: C", "holds")]
    results = {
        ("small", "paper/table9"): table | {"scale": "small", "claims": small},
        ("protocol", "paper/table9"): table | {"claims": protocol},
    }
    table, reason = results_page.claims_table(results, "paper", {("paper", "A"): "the rate"}).split("\n\n")
    assert reason == "(a) the rate"
    rows = table.splitlines()
    protocol = "protocol: the paper's settings, as far as affordable"
    assert rows[0] == f"| claim | where | small: few clients and trips | {protocol} | why not |"
    assert rows[2:] == [
        "| A | Table 9 | holds (few); does not hold (many) | does not hold | a |",
        "| B | Table 9 | holds | not run |  |",
    ]


def test_the_tally_leaves_out_claims_that_are_not_the_paper_s():
    table = TINY | {"claims": [claim("A", "holds"), claim("not the paper's: B", "holds")]}
    own = TINY | {"name": "fedac/readings", "claims": [claim("A again", "holds")]}
    results = {("protocol", "fedac/table9"): table, ("protocol", "fedac/readings"): own}
    (row,) = results_page.tally_table(results).splitlines()[2:]
    assert row == "| FedAC | protocol | 1 | 1 | 0 | 0 | 0 |"


def test_the_tally_counts_each_claim_once():
    counted = {
        tuple(row.split(" | ")[:2]): list(map(int, row.strip("| ").split(" | ")[2:]))
        for row in results_page.tally_table(RESULTS).splitlines()[2:]
    }
    papers = [len(results_page.papers_claims(result)) for result in RESULTS.values()]
    assert sum(claims for claims, *_ in counted.values()) == sum(papers)
    assert all(claims == sum(outcomes) for claims, *outcomes in counted.values())
