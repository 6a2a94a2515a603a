"""Tuning: what may be tried, the same trials however often it is stopped, what it found and what it cost."""

import io
import json
import signal
from dataclasses import replace

import pytest
import tomli_w
from rich.console import Console

import tardigrad as td
from gated_algorithm import gated_algorithm
from observers import InterruptAfter
from tardigrad.algorithms.registry import BUILT_IN
from tardigrad.experiments.compare.compare import Comparison, compare, load_comparison
from tardigrad.experiments.runs.in_memory import InMemory
from tardigrad.experiments.tune.search_space import Dimension
from tardigrad.experiments.tune.shipped_spaces import search_space, shipped_space
from tardigrad.experiments.tune.study import (
    RANDOM_TRIALS,
    StudyResult,
    _make,
    continue_study,
    findings,
    open_study,
)
from tardigrad.experiments.tune.subject import Subject
from tardigrad.experiments.tune.trial_display import show_findings
from tardigrad.experiments.tune.tune import subjects, tune, tuned

FAST = {
    "data": {"kind": "digits", "partition": {"kind": "iid", "clients": 20}},
    "model": {"kind": "mlp", "hidden": [8]},
    "pace": {"kind": "asynchronous", "concurrency": 10},
    "buffer": {"size": 5},
    "evaluation": {"every_trips": 10},
    "stop": {"trips": 60},
}
RATES = {"local.lr": Dimension(low=0.01, high=1.0, log=True)}


def subject(space=RATES, **changes):
    default = Subject("a", "test", FAST, space, seeds=(3,), trials=4, pruning=False)
    return replace(default, **changes)


def finish(subject, file, observers=()):
    study = open_study(file, subject)
    words = list(continue_study(study, subject, observers))
    return study, words


def made(study):
    """Settings and outcome of every trial that counts, in order."""
    trials = [trial for trial in study.trials if trial.state.name in ("COMPLETE", "PRUNED")]
    return [(t.user_attrs["settings"], t.value, t.state.name, t.user_attrs["trips"]) for t in trials]


def test_the_first_trial_is_the_entry_itself_and_the_best_is_the_largest(tmp_path):
    study, words = finish(subject(), tmp_path / "s.db")
    found, trials = findings(study, subject()), made(study)
    assert trials[0][0] == {"local.lr": 0.1}
    assert len(words) == len(trials) == found.trials == 4
    assert len({settings["local.lr"] for settings, *_ in trials}) == 4
    assert all(0.01 <= settings["local.lr"] <= 1.0 for settings, *_ in trials)
    assert found.trips == 4 * 60
    value = max(value for _, value, *_ in trials)
    assert found.value == value
    assert found.best in [settings for settings, v, *_ in trials if v == value]
    config = subject().with_settings(found.best, seed=3)
    assert td.run(config).accuracy == found.value


NETWORK = {
    "network": {"upload": {"kind": "log_normal", "median": 2e4}, "latency": 0.1},
    "availability": {"kind": "on_off", "on": 20.0, "off": 10.0},
    "encoding": {"kind": "int8", "error_feedback": True},
}


@pytest.mark.parametrize("more", [{}, NETWORK], ids=["plain", "network"])
def test_stopped_in_every_trial_and_gone_on_with_gives_the_same_trials(more, tmp_path):
    few = subject(trials=7, pruning=True, values=FAST | more)
    straight, _ = finish(few, tmp_path / "a.db")
    for commits in (30, 200, 350, 100, 10_000):
        try:
            stopped, _ = finish(few, tmp_path / "b.db", (InterruptAfter(commits),))
        except KeyboardInterrupt:
            continue
    assert made(stopped) == made(straight)
    assert len(stopped.trials) == 7 + 4, "stopped in the middle of four trials, which do not count"
    assert findings(stopped, few) == findings(straight, few)


def test_finished_trials_are_not_repeated_and_more_can_be_asked_for(tmp_path):
    study, _ = finish(subject(trials=2), tmp_path / "s.db")
    first = made(study)
    _, words = finish(subject(trials=2), tmp_path / "s.db")
    assert words == []
    study, words = finish(subject(trials=3), tmp_path / "s.db")
    assert len(words) == 1
    assert made(study)[:2] == first
    assert findings(study, subject(trials=2)).trips == 2 * 60


def test_a_study_of_something_else_is_not_gone_on_with(tmp_path):
    finish(subject(trials=1), tmp_path / "s.db")
    with pytest.raises(td.ConfigError, match=r"another --out"):
        finish(subject(trials=1, seeds=(4,)), tmp_path / "s.db")


def test_a_trial_that_diverges_is_the_worst_and_its_trips_count(tmp_path):
    wild = {"local.lr": Dimension(choices=(0.1, 1e30))}
    study, words = finish(subject(wild, trials=8), tmp_path / "s.db")
    found = findings(study, subject(wild, trials=8))
    assert 0 < words.count("failed") == found.failed < 8
    assert found.best == {"local.lr": 0.1}
    assert all((value == 0) == (settings["local.lr"] > 1) for settings, value, *_ in made(study))
    assert found.trips < 8 * 60


def test_a_trial_whose_settings_are_refused_has_failed_and_the_study_goes_on(tmp_path):
    values = FAST | {"algorithm": {"kind": "basgd", "buckets": 4}, "buffer": {"size": 1}}
    space = {"algorithm.buckets": Dimension(choices=(4, 80))}  # 20 clients cannot fill 80 buckets
    study, words = finish(subject(space, values=values, trials=6), tmp_path / "s.db")
    found = findings(study, subject(space, values=values, trials=6))
    assert 0 < words.count("failed") == found.failed < 6
    assert found.best == {"algorithm.buckets": 4}
    values["algorithm"] = {"kind": "basgd", "buckets": 80}
    with pytest.raises(td.ConfigError, match="cannot fill 80 buckets"):  # the entry itself
        finish(subject(RATES, values=values), tmp_path / "t.db")


def test_when_all_trials_diverge_there_is_no_best(tmp_path):
    wild = {"local.lr": Dimension(choices=(1e30,))}
    study, _ = finish(subject(wild, trials=2), tmp_path / "s.db")
    found = findings(study, subject(wild, trials=2))
    assert (found.failed, found.best, found.value) == (2, {}, None)


def test_a_trial_behind_the_others_is_ended_early(tmp_path):
    """Five trials at a good rate, then one at a hopeless one."""
    both = {"local.lr": Dimension(choices=(0.3, 1e-9))}
    study = open_study(tmp_path / "t.db", subject(both, pruning=True))
    for lr in [0.3] * RANDOM_TRIALS + [1e-9]:
        study.enqueue_trial({"local.lr": lr})
        said = _make(study, subject(both, pruning=True), (), InMemory())
    assert said == "ended early"
    last = study.trials[-1]
    assert last.state.name == "PRUNED"
    assert last.user_attrs["trips"] < 60
    assert findings(study, subject(both, trials=6)).pruned == 1


def test_the_objective_trips_ranks_by_trips_to_the_target(tmp_path):
    values = FAST | {"stop": {"trips": 200, "accuracy": 0.6}}
    slow_and_fast = {"local.lr": Dimension(choices=(1e-9, 0.5))}
    one = subject(slow_and_fast, values=values, target=0.6, trials=5)
    study, words = finish(one, tmp_path / "s.db")
    found = findings(study, one)
    assert found.best == {"local.lr": 0.5}
    assert found.reached
    config = one.with_settings(found.best, seed=3)
    assert td.run(config).client_trips == found.value
    missed = [line for line in words if line.startswith("missed 0.6, came to 0.")]
    assert 0 < len(missed) < 5
    hopeless = replace(one, space={"local.lr": Dimension(choices=(1e-9, 1e-8))}, trials=2)
    found = findings(finish(hopeless, tmp_path / "h.db")[0], hopeless)
    assert (found.value, found.reached, set(found.best)) == (None, False, {"local.lr"})
    history = td.run(hopeless.with_settings(found.best, seed=3)).history
    assert found.nearest == max(event.metric("accuracy") for event in history)
    said = io.StringIO()
    show_findings([hopeless], {"a": found}, Console(file=said, width=120))
    assert f"missed 0.6, came to {found.nearest:.3f}" in said.getvalue()
    assert "a: no trial reached the target; try a larger `tune.budget`" in said.getvalue()
    assert min(value for _, value, *_ in made(study)) < -200


@pytest.mark.parametrize(
    "own", [{"accuracy": 0.15}, {"target": 0.15}, {"target": 0.15, "metric": "accuracy"}]
)
@pytest.mark.parametrize("objective", ["metric", "trips"])
def test_a_trial_does_not_end_at_the_target_of_its_entry(own, objective):
    comparison = Comparison(
        seeds=(0,), targets=(0.3,), base=FAST | {"stop": {"trips": 60} | own}, entries={"a": {}},
        tune={"objective": objective},
    )  # fmt: skip
    (one,) = subjects(comparison, "file.toml")
    assert one.values["stop"] == {"trips": 60} | ({"accuracy": 0.3} if objective == "trips" else {})


def test_several_seeds_are_averaged(tmp_path):
    one = subject({"local.lr": Dimension(choices=(0.2,))}, seeds=(3, 4), trials=1)
    study, _ = finish(one, tmp_path / "s.db")
    alone = [td.run(one.with_settings({"local.lr": 0.2}, seed)).accuracy for seed in (3, 4)]
    assert findings(study, one).value == pytest.approx(sum(alone) / 2)
    assert findings(study, one).trips == 120


MOMENTA = ["none", "ema", "heavy_ball", "nesterov", "approximation", "light_approximation",
           "minimum_norm_approximation"]  # fmt: skip
CONFIGS = [{"kind": algorithm.model_fields["kind"].default} for algorithm in BUILT_IN]
CONFIGS += [{"kind": "fedbuff", "momentum": momentum} for momentum in MOMENTA]
CONFIGS += [{"kind": "fedbuff", "preconditioner": "adam"}, {"kind": "fedac", "momentum": "none"}]
CONFIGS += [
    {"kind": "fedasync", "staleness": s}
    for s in ("constant", "linear", "exponential", "hinge", "cosine_gate")
]


@pytest.mark.parametrize("ranges", ["practical", "papers"])
@pytest.mark.parametrize("algorithm", CONFIGS, ids=lambda a: "-".join(a.values()))
def test_shipped_spaces_are_valid(algorithm, ranges):
    space = shipped_space(td.Config(algorithm=algorithm), ranges)
    subject(space, values={"algorithm": algorithm}).check()
    assert ("local.lr" in space) == (algorithm["kind"] not in ("adamasfl", "fedbuff_corollary"))
    assert ("algorithm.momentum.beta" in space) == (
        algorithm["kind"] == "fedbuff" and algorithm.get("momentum", "none") != "none"
    )
    assert shipped_space(td.Config(algorithm=algorithm), "none") == {}


@pytest.mark.parametrize("algorithm", ["fedbuff", "fedavg"])
def test_learning_rates_of_adamw_are_searched_where_they_are_small(algorithm):
    spaces = [search_space(td.Config(algorithm=algorithm, local={"optimiser": kind}), "practical")
              for kind in ("sgd", "momentum", "adamw")]  # fmt: skip
    assert spaces[0] == spaces[1]
    assert spaces[2] == spaces[0] | {"local.lr": Dimension(low=1e-5, high=0.1, log=True)}


OWN = """
import tardigrad as td
class Own(td.SumOnly):
    lr: float = 1.0
    def step(self, state, buffer):
        state["model"] = state["model"] - self.lr * buffer.mean("delta")
        return {}
class Declared(Own):
    tuning_space = {"algorithm.lr": {"low": 0.5, "high": 2.0, "log": True}}
class Wrong(Own):
    tuning_space = {"algorithm.lr": {"low": 0.5}}
"""


def own_entry(tmp_path, name, more=""):
    (tmp_path / "own.py").write_text(
        OWN.replace("tuning_space =", "tuning_space: ClassVar =").replace(
            "import tardigrad", "from typing import ClassVar\nimport tardigrad"
        )
    )
    text = f"[entries.FedBuff]\n[entries.own]\nalgorithm = {{ kind = '{tmp_path}/own.py:{name}' }}\n{more}"
    return subjects(comparison(tmp_path, text), "c.toml")


def test_an_algorithm_of_ones_own_has_the_same_trials_over_local_lr(tmp_path):
    shipped, own = own_entry(tmp_path, "Own")
    assert set(own.space) == {"local.lr"}
    assert own.space["local.lr"] == shipped.space["local.lr"]
    assert own.trials == shipped.trials > 1
    assert own_entry(tmp_path, "Own", "[tune]\nranges = 'none'")[1].space == {}


def test_the_space_that_an_algorithm_declares_is_searched(tmp_path):
    (_, own) = own_entry(tmp_path, "Declared")
    assert set(own.space) == {"local.lr", "algorithm.lr"}
    assert own.space["algorithm.lr"] == Dimension(low=0.5, high=2.0, log=True)
    small = replace(own, values=own.values | FAST, trials=3, pruning=False)
    study, words = finish(small, tmp_path / "s.db")
    assert "failed" not in words
    settings = [settings for settings, *_ in made(study)]
    assert settings[0] == {"local.lr": 0.1, "algorithm.lr": 1.0}
    assert len({one["algorithm.lr"] for one in settings}) == 3
    (_, own) = own_entry(tmp_path, "Declared", "[tune.spaces.own]\n'algorithm.lr' = { choices = [1.5] }")
    assert own.space["algorithm.lr"].choices == (1.5,), "the file comes before the declaration"
    with pytest.raises(td.ConfigError, match=r"Wrong\.tuning_space: algorithm\.lr: give low and high"):
        own_entry(tmp_path, "Wrong")


@pytest.mark.parametrize(("verbosity", "lines"), [("quiet", 0), ("normal", 2), ("verbose", 2)])
def test_trials_are_shown_as_asked(tmp_path, verbosity, lines):
    (tmp_path / "c.toml").write_text(tomli_w.dumps(FILE | {"tune": {"trials": 2}}))
    said = io.StringIO()
    tune(tmp_path / "c.toml", tmp_path / "out", Console(file=said), verbosity)
    assert said.getvalue().count("FedBuff: trial ") == lines
    assert "next: tardigrad compare" in said.getvalue()


def comparison(tmp_path, text):
    (tmp_path / "c.toml").write_text(text)
    return load_comparison(tmp_path / "c.toml")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[entries.a]\n[tune]\ntrial = 3", "did you mean 'trials'"),
        ("[entries.a]\n[tune]\ntrials = 0", "tune.trials: must be greater than 0"),
        ("[entries.a]\n[tune]\nobjective = 'loss'", "tune.objective: must be 'metric', 'accuracy' or"),
        ("[entries.a]\n[tune.spaces.a]\n'local.lr' = {low = 1}", "give low and high, or choices"),
        ("[entries.a]\n[tune.spaces.a]\n'local.lr' = {low = 2, high = 1}", "low must be below high"),
        ("[entries.a]\n[tune.spaces.a]\n'local.lr' = {low = 0, high = 1, log = true}", "low must be above 0"),
        ("[entries.a]\n[tune.spaces.b]\n'local.lr' = {low = 1, high = 2}", "there is no entry 'b'"),
        (
            "[entries.a]\n[tune.spaces.a]\n'local.rate' = {low = 1, high = 2}",
            "there is no setting 'rate'",
        ),
        ("[entries.a]\n[tune.spaces.a]\n'stop.trips' = {low = 1, high = 2}", "stop.trips is not for tuning"),
        ("[entries.a]\n[tune.spaces.a]\n'seed' = {low = 1, high = 2}", "seed is not for tuning"),
        (
            "[entries.a]\n[tune.spaces.a]\n'algorithm.kind' = {choices = ['fedbuff', 'fedasync']}",
            "algorithm.kind is not for tuning",
        ),
        ("[entries.a]\n[tune.spaces.a]\n'local.batch_size' = {low = 1.0, high = 9.0}", "valid integer"),
        ("[entries.a]\n[tune.spaces.a]\n'server.lr' = {low = 1, high = 2}", "there is no table 'server'"),
        (
            "[entries.a]\n[tune.spaces.a]\n'local.lr' = {low = -1, high = 2}",
            "local.lr: must be greater than 0",
        ),
        ("seeds = [0, 1]\n[entries.a]\n[tune]\nseeds = [1]", "1 is among `seeds`"),
    ],
)
def test_bad_tables_are_named(tmp_path, text, said):
    with pytest.raises(td.ConfigError, match=said.replace("(", r"\(")):
        subjects(comparison(tmp_path, text), "c.toml")


def test_subjects_have_the_space_seeds_trials_and_budget_of_the_file(tmp_path):
    text = """
    seeds = [4, 7]
    targets = [0.8, 0.9]
    [base]
    stop = { trips = 100, accuracy = 0.5 }
    [entries.a]
    [entries.b]
    algorithm = "adamasfl"
    [tune]
    trials = 9
    objective = "trips"
    budget = { trips = 50 }
    [tune.spaces.a]
    "buffer.size" = { low = 1, high = 10 }
    "local.lr" = { choices = [0.1, 0.2] }
    """
    a, b = subjects(comparison(tmp_path, text), "c.toml")
    assert set(a.space) == {"local.lr", "algorithm.lr", "buffer.size"}
    assert a.space["local.lr"].choices == (0.1, 0.2)
    assert a.seeds == b.seeds == (8,)
    assert (a.trials, b.trials) == (9, 1)
    assert a.config.stop == td.Stop(trips=50, accuracy=0.8)
    text = text.replace('"trips"', '"accuracy"').replace("budget", "# budget")
    assert subjects(comparison(tmp_path, text), "c.toml")[0].config.stop == td.Stop(trips=100)


@pytest.mark.parametrize(
    "base",
    [
        "",
        "algorithm = 'fedbuff'",
        "algorithm = { kind = 'fedbuff', staleness = 'constant' }",
        "local = { epochs = 2 }",
    ],
)
def test_the_tuned_file_says_what_the_best_trial_ran(tmp_path, base):
    text = f"""
    title = "T"
    [base]
    {base}
    [entries.a]
    algorithm = {{ kind = "fedbuff", momentum = "ema" }}
    [entries.b]
    [tune.spaces.b]
    "algorithm.lr" = {{ low = 0.5, high = 1.5 }}
    """
    before = comparison(tmp_path, text)
    a, b = subjects(before, "c.toml")
    some = StudyResult(trials=1, pruned=0, failed=0, trips=60, best={}, value=0.5, reached=True)
    best = {"a": {"local.lr": 0.25, "algorithm.momentum.beta": -0.5}, "b": {"algorithm.lr": 1.25}}
    found = {label: some.model_copy(update={"best": settings}) for label, settings in best.items()}
    after = comparison(tmp_path, tomli_w.dumps(tuned(before, [a, b], found)))
    assert after.tune is None
    for one in (a, b):
        expected = one.with_settings(found[one.label].best, seed=0)
        assert after.config(one.label, 0, "tuned") == expected
    assert after.config("a", 0, "").algorithm.momentum == td.EMA(beta=-0.5)


FILE = {
    "title": "Small",
    "seeds": [0],
    "targets": [0.5],
    "base": FAST,
    "entries": {"FedBuff": {}},
    "tune": {"trials": 8},
}


@pytest.mark.parametrize(("number", "code"), [(signal.SIGKILL, -9), (signal.SIGINT, 130)])
def test_stopped_from_outside_and_started_again_finds_the_same(commands, tmp_path, number, code):
    file, out = tmp_path / "c.toml", tmp_path / "out"
    algorithm, gate = gated_algorithm(tmp_path, step=30)  # 12 steps a trial
    file.write_text(
        tomli_w.dumps(FILE | {"tune": {"trials": 5}, "entries": {"gated": {"algorithm": algorithm}}})
    )
    process = commands.start("tune", file, "--out", out)
    for line in process.stdout:
        if "trial 2" in line:
            break
    process.send_signal(number)
    process.communicate()
    assert process.returncode == code
    assert not (out / "tuning.json").exists()
    gate.unlink()
    (one,) = subjects(load_comparison(file), str(file))
    expected = findings(finish(one, tmp_path / "straight.db")[0], one).model_dump()
    said = io.StringIO()
    assert tune(file, out, Console(file=said)) == {"trials": 5, "per_entry": {"gated": expected}}
    assert "trial 2 of 5" not in said.getvalue()
    assert "trial 5 of 5" in said.getvalue()


def test_compare_takes_what_was_tuned_and_says_the_cost(tmp_path):
    (tmp_path / "c.toml").write_text(tomli_w.dumps(FILE | {"entries": {"Ada": {"algorithm": "adamasfl"}}}))
    said = io.StringIO()
    told = tune(tmp_path / "c.toml", tmp_path / "tuned", Console(file=said))
    assert "Ada: nothing to tune" in said.getvalue()
    assert told["per_entry"]["Ada"] | {"value": 0} == {
        "trials": 1, "pruned": 0, "failed": 0, "trips": 60, "best": {}, "value": 0, "reached": True,
        "nearest": None, "metric": "accuracy", "lower_is_better": False,
    }  # fmt: skip
    table = compare(tmp_path / "tuned/tuned.toml", tmp_path / "out", Console(file=said))
    assert table["tuning"] == told == json.loads((tmp_path / "out/tuning.json").read_text())
    line = "Tuned with 8 trials an entry, 60 client trips in all"
    assert line in (tmp_path / "out/comparison.md").read_text()
    assert line in said.getvalue()


def test_a_damaged_study_is_named(tmp_path):
    (tmp_path / "s.db").write_bytes(b"SQLite format 3\0 no more")
    with pytest.raises(td.RunError, match=r"s\.db is damaged or cannot be written \(.*\); remove it"):
        open_study(tmp_path / "s.db", subject())


def test_a_tuning_file_that_is_none_is_named(tmp_path):
    (tmp_path / "c.toml").write_text('tuning = "t.json"\n[entries.a]\n')
    (tmp_path / "t.json").write_text("[]")
    with pytest.raises(td.ConfigError, match=r"t\.json is no tuning\.json"):
        compare(tmp_path / "c.toml", tmp_path / "out", Console())
    assert not (tmp_path / "out").exists()


def test_numbers_of_a_cosine_gate_are_tuned():
    config = td.Config(algorithm={"kind": "fedasync", "staleness": "cosine_gate"})
    assert {"algorithm.staleness.a", "algorithm.staleness.cutoff"} <= set(shipped_space(config, "practical"))


def test_a_learning_rate_without_effect_is_not_tuned():
    for eta, tried in (("local", True), ("theorem", False)):
        space = search_space(td.Config(algorithm={"kind": "masfl", "eta": eta}), "practical")
        assert ("local.lr" in space) == tried
        assert ("algorithm.beta" in space) == tried
