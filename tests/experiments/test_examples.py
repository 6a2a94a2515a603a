"""The examples run as they stand."""

import runpy
from pathlib import Path

import tardigrad as td
from tardigrad.experiments.compare.compare import load_comparison
from tardigrad.experiments.config.reading import parse_config
from tardigrad.experiments.tune.tune import subjects

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_own_model(capsys):
    names = runpy.run_path(str(EXAMPLES / "own_model.py"))
    assert names["result"].accuracy > 0.8
    assert "after 60 trips" in capsys.readouterr().out
    assert sum(1 for line in (EXAMPLES / "own_model.py").read_text().split("td.run(")[1].splitlines()) < 15


def test_own_algorithm_by_its_file_learns_and_resumes_from_its_resolved_config(tmp_path):
    values = {
        "algorithm": {"kind": f"{EXAMPLES / 'own_algorithm.py'}:SignBuff", "lr": 0.01},
        "stop": {"trips": 600},
    }
    config = parse_config(values, "test")
    result = td.run(config, out=tmp_path / "run")
    assert result.accuracy > 0.5
    again = td.load_config(tmp_path / "run" / "config.toml")
    assert td.run(again).model_sha256 == result.model_sha256


def test_own_everything_runs_and_is_compared_from_its_folder():
    folder = EXAMPLES / "own_everything"
    config = td.load_config(folder / "run.toml", ["stop.trips=150", "model.hidden=24"])
    result = td.run(config)
    assert result.accuracy > 0.8
    assert result.model["0.weight"].shape == (24, 10)
    comparison = load_comparison(folder / "compare.toml")
    assert comparison.config("wide", 0, "x").model.hidden == 64
    assert [subject.label for subject in subjects(comparison, "x")] == ["narrow", "wide"]
