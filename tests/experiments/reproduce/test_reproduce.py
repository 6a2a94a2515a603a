"""Every table of the papers runs, and what is said of it follows from its runs."""

import io
import json
import math
import statistics
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from event_records import read_records
from tardigrad.cli import app
from tardigrad.errors import ConfigError
from tardigrad.experiments.reproduce import reproduce as module
from tardigrad.experiments.reproduce.reproduce import reproduce
from tardigrad.experiments.reproduce.reproduction import SIZES, library, load
from tardigrad.experiments.reproduce.reproduction_list import list_of, show_list

EXPERIMENTS = Path(__file__).parents[3] / "experiments"
ASKED = {
    "fedbuff": "table1 table2 table5 table6 figure1 figure3 figure4 figure6 figure7",
    "momentum_approximation": "figure1 figure2 figure3 figure4 figure5 table1 table2 table3 table4",
    "fedac": "figures1-2 table1 table2 figure3 figure4 readings full",
    "masfl": "figure1 figure2 horizon",
    "fedasync": "figures1-6 figure7 figures8-9",
    "momentum_under_staleness": "image text",
}
NEEDED = {
    "fedac/full": ("protocol",),
    "fedac/readings": ("protocol",),
    "masfl/horizon": ("protocol",),
    "momentum_under_staleness/image": ("small",),
    "momentum_under_staleness/text": ("small",),
}
"""Scales that files have beside smoke. These ask what the papers leave open and have no numbers of a paper;
all others have small and paper."""
NAMES = [f"{paper}/{name}" for paper, names in ASKED.items() for name in names.split()]

TINY = """
title = "Tiny"
measure = "trips"
paper = { source = "A paper, Table 9", measure = "trips", numbers = { A = { digits = 7 } } }
claims = [{ says = "A needs fewer trips than B", better = "A", than = ["B"] }]
[base]
data = { kind = "digits", partition = { kind = "iid", clients = 20 } }
model = { kind = "mlp", hidden = [16] }
pace = { kind = "asynchronous", concurrency = 5 }
buffer = { size = 2 }
stop = { trips = 60 }
evaluation = { every_trips = 5 }
[entries.A]
local = { lr = 0.3, batch_size = 8 }
[entries.B]
local = { lr = 0.003, batch_size = 8 }
[scales.smoke]
seeds = [0]
targets = [0.6]
[scales.small]
targets = [0.6]
tuning = "none"
"""


@pytest.fixture
def tiny(tmp_path):
    folder = tmp_path / "experiments"
    (folder / "paper").mkdir(parents=True)
    (folder / "paper/table9.toml").write_text(TINY)
    return folder


def quiet():
    return Console(quiet=True)


def test_every_table_and_figure_has_a_file():
    assert sorted(library(EXPERIMENTS)) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_every_file_makes_configs_at_every_scale(name):
    reproduction = load(library(EXPERIMENTS)[name])
    assert {"smoke", *NEEDED.get(name, ("small", "paper"))} <= set(reproduction.scales)
    assert reproduction.claims
    for size in reproduction.scales:
        for task, comparison in reproduction.comparisons(size).items():
            for label in comparison.entries:
                comparison.config(label, 0, f"{name}, {size}, {task}")
    for size in {"small", "protocol"} & set(reproduction.scales):
        assert len(reproduction.scales[size].seeds) >= 3
        assert reproduction.scales[size].tuning


def test_all_run_at_the_smoke_scale(tmp_path):
    results = reproduce(["all"], "smoke", tmp_path, quiet(), EXPERIMENTS)
    assert sorted(results) == sorted(NAMES)
    for name, result in results.items():
        assert result["failed"] == {}, name
        assert all(claim["verdict"] == "not run" for claim in result["claims"])
        assert (tmp_path / name / "reproduction.md").read_text().startswith("# ")


def test_verdict_and_numbers_follow_from_the_runs(tiny, tmp_path):
    result = reproduce(["paper/table9"], "small", tmp_path / "out", quiet(), tiny)["paper/table9"]
    runs = sorted((tmp_path / "out/runs").iterdir())
    assert len(runs) == 6
    trips = []
    for run in runs:
        if "lr = 0.3\n" in (run / "config.toml").read_text():
            evaluations = [e for e in read_records(run / "events.jsonl") if e["event"] == "evaluation"]
            trips.append(next(e["trips"] for e in evaluations if e["accuracy"] >= 0.6))
    assert result["ours"][""]["A"]["mean"] == pytest.approx(sum(trips) / 3)
    half = 4.302653 * statistics.stdev(trips) / math.sqrt(3)  # Student's t with two degrees of freedom
    assert result["ours"][""]["A"]["interval"] == pytest.approx(
        (sum(trips) / 3 - half, sum(trips) / 3 + half)
    )
    assert result["ours"][""]["B"] == {"mean": None, "sd": None, "reached": 0, "budget": 60}
    [claim] = result["claims"]
    assert claim["verdict"] == "holds"
    assert "at least" in claim["found"]
    text = (tmp_path / "out/paper/table9/reproduction.md").read_text()
    assert "| A | 7 |" in text
    assert "**holds**" in text
    assert "> 60 (0 of 3)" in text
    again = reproduce(["paper"], "small", tmp_path / "out", quiet(), tiny)["paper/table9"]
    assert again == result


def test_the_budget_is_that_of_the_seeds_that_missed_the_target(tiny, tmp_path):
    """The others stop at the target, after fewer trips."""
    reproduce(["paper/table9"], "small", tmp_path / "out", quiet(), tiny)
    best = []
    for run in (tmp_path / "out/runs").iterdir():
        if "lr = 0.3\n" in (run / "config.toml").read_text():
            records = read_records(run / "events.jsonl")
            best.append(max(e["accuracy"] for e in records if e["event"] == "evaluation"))
    target = sorted(best)[1]
    assert min(best) < target
    file = tiny / "paper/table9.toml"
    stop = f"stop = {{ trips = 60, accuracy = {target} }}"
    file.write_text(file.read_text().replace("stop = { trips = 60 }", stop).replace("[0.6]", f"[{target}]"))
    result = reproduce(["paper/table9"], "small", tmp_path / "out", quiet(), tiny)["paper/table9"]
    number = result["ours"][""]["A"]
    assert (number["mean"], number["reached"] in (1, 2), number["budget"]) == (None, True, 60)


def test_runs_are_shared_and_not_repeated(tiny, tmp_path, monkeypatch):
    (tiny / "paper/table10.toml").write_text(TINY.replace("Table 9", "Table 10"))
    reproduce(["paper/table9"], "smoke", tmp_path / "out", quiet(), tiny)
    ran = []

    def run_all(jobs, console, verbosity):
        left = [key for key, job in jobs.items() if not (job.folder / "summary.json").exists()]
        ran.extend(left)
        return {}

    monkeypatch.setattr(module, "run_all", run_all)
    result = reproduce(["paper/table10"], "smoke", tmp_path / "out", quiet(), tiny)["paper/table10"]
    assert ran == []
    assert result["failed"] == {}


def configs_of(name, size):
    """By task and entry, with the first seed."""
    return {
        (task, label): comparison.config(label, 0, name)
        for task, comparison in load(library(EXPERIMENTS)[name]).comparisons(size).items()
        for label in comparison.entries
    }


@pytest.mark.parametrize("size", SIZES)
def test_momentum_approximation_pays_for_private_versions(size):
    """Figure 5: S = 1.1 S_D for MA and MA-light (Appendix B.1); FedBuff uses no versions."""
    for (task, label), config in configs_of("momentum_approximation/figure5", size).items():
        assert config.privacy.versions == ("private" if label.startswith("MA") else "public"), label
        assert config.privacy.version_overhead == 1.1
        assert config.privacy.clip == (0.1 if task.startswith("FLAIR") else 0.2)


FEDBUFFS = [name for name in library(EXPERIMENTS) if name.startswith("fedbuff/")]
CONCURRENCY = {"low": 10, "middle": 100}


@pytest.mark.parametrize("name", FEDBUFFS)
def test_clients_of_fedbuffs_own_simulator_arrive_at_a_constant_rate(name):
    """Appendix B.2: as many are at work on average as the paper says, because the rate is that over the mean
    duration. In Appendix C.2 the mean duration depends on the data, and the concurrency is fixed."""
    asynchronous = 0
    for (_, label), config in configs_of(name, "paper").items():
        if config.algorithm.kind not in ("fedbuff", "fedasync"):
            continue
        asynchronous += 1
        if config.delay.kind == "exponential_by_examples":
            assert (name[-1], config.pace.kind) in (("6", "asynchronous"), ("7", "asynchronous"))
            continue
        assert (config.pace.kind, config.pace.process) == ("arrivals", "constant"), label
        if config.delay.kind == "half_normal":
            mean = config.delay.scale * math.sqrt(2 / math.pi)
        else:
            mean = config.delay.mean if config.delay.kind == "exponential" else config.delay.high / 2
        concurrency = CONCURRENCY.get(label.partition(", ")[2], 1000)
        assert config.pace.rate * mean == pytest.approx(concurrency, rel=1e-3)
        assert config.pace.concurrency >= 1.5 * concurrency, "the cap is never reached"
        config.resolved(99_018)
    assert asynchronous > 0


TABLE_4 = {  # of FedBuff's paper: local lr, server lr (of a sum), beta
    "CelebA": (4.7e-6, 1e3, 0.3),
    "Sent140": (13, 4.9e-2, 0.5),
    "CIFAR-10": (1.95e-4, 40.9, 0.0),
}


@pytest.mark.parametrize("name", [name for name in FEDBUFFS if name != "fedbuff/figure4"])
def test_fedbuff_has_the_papers_rates_of_a_sum(name):
    """Appendix B.2 sums. The paper has no rates for another K than 10; there a mean takes 10 times these."""
    for (task, label), config in configs_of(name, "paper").items():
        if config.algorithm.kind == "fedbuff":
            local_lr, lr, beta = TABLE_4.get(task.split()[0], TABLE_4["Sent140"])
            algorithm = config.algorithm
            assert (config.local.lr, getattr(algorithm.momentum, "beta", 0.0)) == (local_lr, beta), label
            combine, times = ("sum", 1) if config.buffer.size == 10 else ("mean", 10)
            assert (algorithm.combine, algorithm.lr) == (combine, pytest.approx(times * lr))


TABLE_3 = {  # of FedBuff's paper: local lr, server lr (of a sum), beta, clip
    "epsilon 6": (1.0, 4.3, 0.99, 1.2e-4),
    "epsilon 12": (1e-2, 54, 0.0, 1.1e-3),
    "epsilon 24": (0.1, 870, 0.3, 1e-4),
}


@pytest.mark.parametrize("size", SIZES)
def test_private_fedbuff_has_the_papers_discount_momentum_and_rates(size):
    """Figure 4: staleness exponent 0.5 (Appendix B.3.2), rates of a sum of K = 10 (Appendix B.2)."""
    configs = configs_of("fedbuff/figure4", size)
    for task, (local_lr, lr, beta, clip) in TABLE_3.items():
        config = configs[task, "FedBuff, DP-FTRL"]
        assert config.algorithm.law(3) == 0.5
        if size == "paper":
            momentum = config.algorithm.momentum
            assert (getattr(momentum, "beta", 0.0), config.local.lr, config.privacy.clip) == (
                beta, local_lr, clip
            )  # fmt: skip
            assert (config.algorithm.combine, config.algorithm.lr) == ("sum", lr)
        else:
            assert config.algorithm.momentum.kind == "heavy_ball"
    if size == "paper":
        assert "Table 3" in load(library(EXPERIMENTS)["fedbuff/figure4"]).scales[size].tuning


@pytest.mark.parametrize("size", ["smoke", "small", "paper"])
@pytest.mark.parametrize("name", ["figure3", "table2"])
def test_weight_prediction_has_the_server_optimizers_momentum(name, size):
    for (_, label), config in configs_of(f"momentum_approximation/{name}", size).items():
        if label == "WP":
            assert (config.algorithm.momentum.kind, config.algorithm.momentum.beta) == ("ema", 0.9)


@pytest.mark.parametrize("name", ["figures1-2", "table1", "table2", "figure3", "readings", "full"])
def test_fedacs_protocol_tunes_nobody(name):
    """Its section on parameter settings; only the server lr of FedAC's Nadam cannot be 1."""
    configs = configs_of(f"fedac/{name}", "protocol")
    for (task, label), config in configs.items():
        local = config.local
        assert (local.epochs, local.batch_size, local.lr, local.weight_decay) == (5, 50, 0.1, 0.002)
        assert local.gradient_clip == (10.0 if label == "FedAC, gradients of at most 10" else None)
        assert config.stop.trips == 3000
        clients = int(task.split()[0]) if task else 100
        assert config.data.partition.clients == clients
        assert config.data.partition.kind in ("dirichlet_by_label", "iid"), "that of Yurochkin et al."
        if config.pace.kind == "synchronous":
            assert config.pace.cohort == clients / 5, label
        else:
            assert config.pace.concurrency == clients, label
        if config.algorithm.kind in ("fedavg", "fedprox", "fedbuff") or "WTG," in label:
            assert config.algorithm.lr == 1.0, label
        if config.algorithm.kind in ("fedbuff", "fedac"):
            assert (config.buffer.size, config.buffer.once_per_client) == (20, True)


def test_at_every_length_adamasfl_has_the_step_sizes_of_that_length():
    for (task, _), config in configs_of("masfl/horizon", "protocol").items():
        assert config.stop.steps == int(task.removeprefix("T = "))
        if config.algorithm.kind == "adamasfl":
            assert config.algorithm.first_pass
            assert config.algorithm.beta is config.algorithm.gamma is config.algorithm.eta is None


def test_a_papers_name_stands_for_those_of_its_tables_that_have_the_scale(tiny, tmp_path):
    (tiny / "paper/table10.toml").write_text(TINY.replace("[scales.small]", "[scales.protocol]"))
    for names in (["paper"], ["all"]):
        assert list(reproduce(names, "small", tmp_path / "out", quiet(), tiny)) == ["paper/table9"]
    for names in (["paper/table10"], ["paper/table9", "paper/table10"], ["all", "paper/table10"]):
        with pytest.raises(ConfigError, match="paper/table10: has no scale 'small', only smoke, protocol"):
            reproduce(names, "small", tmp_path / "out", quiet(), tiny)
    with pytest.raises(ConfigError, match="has no scale 'paper'"):
        reproduce(["all"], "paper", tmp_path / "out", quiet(), tiny)


def test_with_one_seed_claims_are_not_tested(tiny, tmp_path):
    file = tiny / "paper/table9.toml"
    file.write_text(TINY.replace("[scales.small]", "[scales.small]\nseeds = [0]"))
    result = reproduce(["all"], "small", tmp_path / "out", quiet(), tiny)["paper/table9"]
    assert result["claims"][0]["verdict"] == "not tested"
    text = (tmp_path / "out/paper/table9/reproduction.md").read_text()
    assert "**not tested**" in text
    assert "±" not in text


def test_a_run_that_fails_is_shown_and_its_claim_is_not_judged(tiny, tmp_path):
    file = tiny / "paper/table9.toml"
    file.write_text(TINY.replace("lr = 0.003", "lr = 1e30"))
    result = reproduce(["all"], "small", tmp_path / "out", quiet(), tiny)["paper/table9"]
    assert len(result["failed"]) == 3
    assert "not finite" in next(iter(result["failed"].values()))
    assert result["ours"][""]["A"]["mean"] is not None
    [claim] = result["claims"]
    assert claim["verdict"] == "not run"
    assert all(f"B failed with seed {seed}: " in claim["found"] for seed in (0, 1, 2))
    assert "| failed (3 of 3) |" in (tmp_path / "out/paper/table9/reproduction.md").read_text()


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('than = ["B"]', 'than = ["C"]', "is about 'C', which is no entry"),
        ('than = ["B"]', 'than = ["B"], tasks = ["Mars"]', "is about 'Mars', which is no task"),
        ('than = ["B"]', 'then = ["B"]', r"unknown key 'claims\.0\.then'; did you mean 'than'\?"),
        ('measure = "trips"\npaper', 'measure = "joy"\npaper', "measure: must be"),
        ("[scales.small]", "[scales.huge]", "scales"),
    ],
)
def test_a_wrong_file_is_one_sentence(tiny, old, new, said):
    file = tiny / "paper/table9.toml"
    file.write_text(TINY.replace(old, new, 1))
    with pytest.raises(ConfigError, match=said):
        load(file)


def test_without_a_name_there_is_one_line_for_each_reproduction(tmp_path):
    reproductions = {name: load(file) for name, file in library(EXPERIMENTS).items()}
    said = io.StringIO()
    show_list(reproductions, tmp_path, Console(file=said, width=80))
    lines = said.getvalue().splitlines()
    assert [line.split()[0] for line in lines[: len(NAMES)]] == list(reproductions)
    assert len(lines) <= len(NAMES) + 3
    assert max(map(len, lines)) <= 80
    assert all(line.rstrip().endswith("not run") for line in lines[: len(NAMES)])


def test_details_tell_source_entries_claims_and_verdicts(tiny, tmp_path):
    def tardigrad(*arguments):
        return CliRunner().invoke(app, ["reproduce", "--from", str(tiny), "--out", str(tmp_path), *arguments])

    told = json.loads(tardigrad("paper/table9", "--details", "--json").stdout)
    assert told == [
        {
            "name": "paper/table9",
            "title": "Tiny",
            "verdicts": {},
            "source": "A paper, Table 9",
            "claims": ["A needs fewer trips than B"],
            "entries": ["A", "B"],
            "tasks": [],
            "scales": {"smoke": "", "small": "none"},
        }
    ]
    assert not (tmp_path / "runs").exists(), "nothing is run"
    assert json.loads(tardigrad("--json").stdout) == [
        {"name": "paper/table9", "title": "Tiny", "verdicts": {}}
    ]
    reproduce(["paper"], "small", tmp_path, quiet(), tiny)
    shown = tardigrad("paper/table9", "--details").stdout
    assert "A needs fewer trips than B" in shown
    assert "1 holds" in shown
    assert "1 of 1 hold" in tardigrad().stdout


def test_the_command_lists_runs_and_names_what_is_wrong(tiny, tmp_path):
    def tardigrad(*arguments):
        return CliRunner().invoke(app, ["reproduce", "--from", str(tiny), *arguments])

    out = ("--out", str(tmp_path / "out"))
    listed = tardigrad(*out)
    assert "paper/table9" in listed.stdout
    assert "not run" in listed.stdout
    done = tardigrad("paper/table9", "--scale", "smoke", *out, "--json")
    assert json.loads(done.stdout)["paper/table9"]["scale"] == "smoke"
    assert "run, not judged" in tardigrad("--scale", "smoke", *out).stdout
    for wrong, said in (
        (["paper/table8"], "no such table"),
        (["paper/table9", "--scale", "huge"], "must be one of smoke"),
        (["paper/table9", "--scale", "paper"], "has no scale 'paper'"),
        (["--from", str(tmp_path / "nowhere")], "no reproductions"),
    ):
        error = tardigrad(*wrong).exception
        assert isinstance(error, ConfigError)
        assert said in str(error)


@pytest.mark.parametrize(
    ("tasks", "said"),
    [
        (["x y", "x-y"], "'x y' and 'x-y' would have the same folder, 'x-y'"),
        ([".."], "'..' is no name of a folder"),
        (["reproduction.md"], "'reproduction.md' is no name of a folder"),
    ],
)
def test_tasks_have_folders_of_their_own(tiny, tasks, said):
    file = tiny / "paper/table9.toml"
    file.write_text(TINY + "".join(f"[scales.small.tasks.'{name}']\n" for name in tasks))
    with pytest.raises(ConfigError, match=said):
        load(file)


@pytest.mark.parametrize("damaged", ["", "{", "[]", "null", '{"claims": 3}', '{"claims": [1]}'])
def test_a_damaged_result_is_listed_as_not_run(tiny, tmp_path, damaged):
    place = tmp_path / "out/paper/table9"
    place.mkdir(parents=True)
    (place / "reproduction.json").write_text(damaged)
    assert list_of({"paper/table9": load(tiny / "paper/table9.toml")}, tmp_path / "out")[0]["verdicts"] == {}
