"""A model, data and an algorithm from one's own file, in everything that takes a config."""

import io
import json
import shutil

import pytest
import tomli_w
import torch
from rich.console import Console

import tardigrad as td
from observers import InterruptAfter
from own_code_file import OWN, SETTINGS, own_values
from tardigrad.experiments.compare.compare import compare, load_comparison
from tardigrad.experiments.config.reading import parse_config
from tardigrad.experiments.forecast.forecast import forecast
from tardigrad.experiments.runs.audit_run import AuditRun
from tardigrad.experiments.tune.tune import subjects


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "own.py"
    path.write_text(OWN)
    return path


def config_of(file, **changes):
    return parse_config(own_values(file, **changes), "test")


def test_names_alone_and_tables_mean_the_same(file):
    tables = {name: {"kind": f"{file}:{what}"} for name, what in (("model", "Net"), ("data", "load"))}
    assert config_of(file) == config_of(file, **tables)
    assert config_of(file).algorithm.share == 0.5


def test_a_path_is_relative_to_the_config_file_or_else_to_the_current_folder(file, tmp_path, monkeypatch):
    (tmp_path / "run.toml").write_text(tomli_w.dumps(own_values("own.py")))
    beside = td.load_config(tmp_path / "run.toml")
    assert beside == config_of(file)
    assert beside.model.kind == f"{file}:Net"
    folder = tmp_path / "configs"
    folder.mkdir()
    shutil.move(tmp_path / "run.toml", folder)
    with pytest.raises(td.ConfigError, match=r"there is no file own\.py"):
        td.load_config(folder / "run.toml")
    monkeypatch.chdir(tmp_path)
    assert td.load_config(folder / "run.toml") == beside
    assert td.load_config(folder / "run.toml", ["model=own.py:alone"]).model.kind == f"{file}:alone"


def test_set_changes_keyword_arguments_and_a_new_kind_leaves_out_what_it_lacks(file, tmp_path):
    (tmp_path / "run.toml").write_text(tomli_w.dumps(own_values("own.py")))
    config = td.load_config(tmp_path / "run.toml", ["model.hidden=5", "data.clients=4"])
    assert (config.model.hidden, config.data.clients) == (5, 4)
    other = td.load_config(tmp_path / "run.toml", ["model.hidden=5", f"model.kind={file}:alone"])
    assert other.model.model_extra == {}
    with pytest.raises(td.ConfigError, match=r"unknown key 'model\.hiden'; the parameters of Net are: shape"):
        td.load_config(tmp_path / "run.toml", ["model.hiden=5"])


def test_the_same_bits_with_workers_from_the_resolved_config_and_after_an_interrupt(file, tmp_path):
    config = config_of(file)
    whole = td.run(config, out=tmp_path / "whole")
    assert td.run(config, workers=2).model_sha256 == whole.model_sha256
    assert td.run(td.load_config(tmp_path / "whole" / "config.toml")).model_sha256 == whole.model_sha256
    with pytest.raises(KeyboardInterrupt):
        td.run(config, out=tmp_path / "cut", observers=(InterruptAfter(5),))
    assert td.run(config, out=tmp_path / "cut", resume=True).model_sha256 == whole.model_sha256
    assert (tmp_path / "cut" / "events.jsonl").read_bytes() == (
        tmp_path / "whole" / "events.jsonl"
    ).read_bytes()


def test_the_seed_decides_the_initial_model_and_the_data_of_an_own_file(file):
    runs = [td.run(config_of(file, seed=seed)).model_sha256 for seed in (1, 1, 2)]
    assert runs[0] == runs[1] != runs[2]


def test_a_model_that_is_made_when_the_file_is_imported_depends_on_the_seed_too(file):
    runs = [td.run(config_of(file, seed=s, model=f"{file}:ready")).model["weight"] for s in (1, 2, 1)]
    assert torch.equal(runs[0], runs[2])
    assert not torch.equal(runs[0], runs[1])


def test_an_edited_file_is_noticed_on_resume_and_one_that_was_put_back_goes_on(file, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        td.run(config_of(file), out=tmp_path / "run", observers=(InterruptAfter(5),))
    file.write_text(OWN.replace(".relu()", ".tanh()"))
    with pytest.raises(
        td.ConfigError, match=r"the data's own file and the model's code and the model's own file changed"
    ):
        td.run(config_of(file), out=tmp_path / "run", resume=True)
    file.write_text(OWN)
    assert td.run(config_of(file), out=tmp_path / "run", resume=True).client_trips == 24


def test_a_run_whose_model_and_data_came_from_python_says_how_it_goes_on(file, tmp_path):
    x, y = torch.randn(20, 3), torch.arange(20) % 2
    td.run(
        td.Config(**SETTINGS),
        model=torch.nn.Linear(3, 2),
        clients=dict.fromkeys(range(3), (x, y)),
        out=tmp_path / "run",
    )
    config = td.load_config(tmp_path / "run" / "config.toml")
    with pytest.raises(
        td.ConfigError, match=r"--resume: the data and model of .* came from Python; go on from there"
    ):
        td.run(config, out=tmp_path / "run", resume=True)


@pytest.mark.parametrize("dtype", ["bfloat16", "float64"])
def test_an_own_model_of_another_precision_gets_own_data_of_this_precision(file, dtype):
    result = td.run(config_of(file, model={"kind": f"{file}:Net", "dtype": dtype}))
    assert str(result.model["inner.weight"].dtype) == f"torch.{dtype}"


@pytest.mark.parametrize("kind", ["participation", "poisson", "local"])
def test_private_runs_take_own_models_and_data(file, kind):
    privacy = {"kind": kind, "clip": 0.1, "noise_multiplier": 1.0, "noise_from": "seed"}
    changes = {"stop": {"steps": 3}, "algorithm": "fedbuff"}
    if kind != "poisson":
        privacy["participations"] = 6
    else:
        changes |= {"pace": {"kind": "poisson", "probability": 0.5}, "buffer": {}}
    config = config_of(file, privacy=privacy, **changes)
    assert td.run(config).model_sha256 == td.run(config, workers=2).model_sha256


def test_plan_and_audit_take_own_models_and_data(file):
    assert forecast(config_of(file), 100).megabytes_per_time > 0
    privacy = {"kind": "participation", "clip": 0.1, "noise_multiplier": 1.0, "participations": 6}
    audit = AuditRun(config_of(file, privacy=privacy, algorithm="fedbuff", stop={"steps": 3}), canaries=4)
    for _ in audit.events():
        pass
    assert audit.result().steps == 3


COMPARISON = {
    "seeds": [0, 1],
    "targets": [0.7],
    "base": own_values("own.py") | {"algorithm": "fedbuff"},
    "entries": {"narrow": {"model": {"kind": "own.py:Net", "hidden": 2}}, "wide": {"model": "own.py:Net"}},
}


def test_compare_runs_own_models_and_an_edited_file_anew(file, tmp_path):
    (tmp_path / "compare.toml").write_text(tomli_w.dumps(COMPARISON))
    out, console = tmp_path / "out", Console(file=io.StringIO())
    table = compare(tmp_path / "compare.toml", out, console)
    assert [row["failed"] for row in table["rows"]] == [[], []]
    first = set(out.glob("*-seed*"))
    assert len(first) == 4
    alone = td.run(load_comparison(tmp_path / "compare.toml").config("wide", 1, "x")).model_sha256
    (wide,) = out.glob("wide-seed1-*/summary.json")
    assert json.loads(wide.read_text())["model_sha256"] == alone
    file.write_text(OWN.replace(".relu()", ".tanh()"))
    compare(tmp_path / "compare.toml", out, console)
    assert len(set(out.glob("*-seed*")) - first) == 4


def test_tuning_may_set_the_arguments_of_an_own_model_and_knows_when_the_file_changed(file, tmp_path):
    tune = {"trials": 2, "spaces": {"wide": {"model.hidden": {"low": 4, "high": 8}}}}
    (tmp_path / "compare.toml").write_text(tomli_w.dumps(COMPARISON | {"tune": tune}))
    source = str(tmp_path / "compare.toml")
    _, wide = subjects(load_comparison(tmp_path / "compare.toml"), source)
    assert wide.with_settings({"model.hidden": 5}, 3).model.hidden == 5
    before = wide.fingerprint
    file.write_text(OWN + "\n# edited\n")
    assert subjects(load_comparison(tmp_path / "compare.toml"), source)[1].fingerprint != before
    tune["spaces"]["wide"] = {"model.hiden": {"low": 4, "high": 8}}
    (tmp_path / "compare.toml").write_text(tomli_w.dumps(COMPARISON | {"tune": tune}))
    with pytest.raises(td.ConfigError, match=r"unknown key 'model\.hiden'"):
        subjects(load_comparison(tmp_path / "compare.toml"), source)


def test_an_unknown_function_is_named_with_its_table(file):
    with pytest.raises(td.ConfigError, match=r"^data: .*own\.py has nothing called loda"):
        config_of(file, data=f"{file}:loda")
    file.write_text("OWN = 3\n")
    with pytest.raises(
        td.ConfigError, match=r"^model: .*own\.py:OWN must be a torch\.nn\.Module or a function"
    ):
        parse_config({"model": f"{file}:OWN"}, "test")
