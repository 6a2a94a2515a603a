"""What a run is judged by, from the config to its events, its result and its server."""

import json
import logging

import pytest
import torch

import tardigrad as td
from tardigrad.core.event_log import read_events
from tardigrad.core.metric import Metric
from tardigrad.experiments.config.reading import parse_config
from tardigrad.experiments.runs.run_metrics import names_to_compute
from tardigrad.experiments.runs.server_assembly import build_server
from tardigrad.experiments.runs.simulation_assembly import assemble_simulation

GENERATOR = torch.Generator().manual_seed(11)
SLOPES = torch.tensor([1.0, -2.0, 3.0])
OWN = """
import torch, tardigrad as td

class Quantile(td.Head):
    names = ("loss", "pinball")
    main = "pinball"
    lower_is_better = frozenset({"pinball"})

    def __init__(self, q=0.5):
        self.q = q

    def loss(self, outputs, labels):
        error = labels - outputs.flatten()
        return torch.maximum(self.q * error, (self.q - 1) * error).mean()

    def metrics(self, outputs):
        losses = [float(self.loss(x, y)) for x, y in outputs]
        return {"loss": sum(losses) / len(losses), "pinball": sum(losses) / len(losses)}
"""


def numbers(n):
    features = torch.randn(n, 3, generator=GENERATOR)
    return features, features @ SLOPES + 5 + 0.1 * torch.randn(n, generator=GENERATOR)


NUMBERS = {f"site-{n}": numbers(12) for n in range(8)}
TEST = numbers(60)
RARE = {
    f"site-{n}": (torch.randn(20, 3, generator=GENERATOR), torch.tensor([0] * 18 + [1] * 2)) for n in range(8)
}
RARE_TEST = (torch.randn(100, 3, generator=GENERATOR), torch.tensor([0] * 93 + [1] * 7))


def run(**changes):
    torch.manual_seed(0)
    settings = {
        "model": torch.nn.Linear(3, 1), "clients": NUMBERS, "test": TEST, "head": "regression",
        "stop": {"trips": 120}, "pace": td.Asynchronous(concurrency=4), "local": td.Local(lr=0.1),
        "buffer": td.Buffer(size=4), "evaluation": {"every_steps": 5},
    } | changes  # fmt: skip
    return td.run(**settings)


def test_regression_is_judged_by_its_rmse(tmp_path):
    result = run(out=tmp_path / "a", stop={"trips": 400, "target": 1.0}, evaluation={"metrics": ["r2"]})
    assert (result.main, result.stopped_by, result.accuracy) == ("rmse", "target", None)
    assert result.metrics["rmse"] <= 1.0 < result.history[-2].metrics["rmse"]
    assert result.metrics["r2"] == pytest.approx(
        1 - result.metrics["rmse"] ** 2 / float(TEST[1].double().var(correction=0)), abs=1e-4
    )
    mean = torch.cat([labels for _, labels in NUMBERS.values()]).double().mean()
    error = float((TEST[1].double() - mean).square().mean().sqrt())
    assert result.baseline["metrics"]["rmse"] == pytest.approx(error)
    start = next(read_events(tmp_path / "a" / "events.jsonl"))
    assert (start.metric, start.lower_is_better) == ("rmse", True)
    assert td.load_config(tmp_path / "a" / "config.toml").evaluation.metric == Metric("rmse", True)


def test_runs_by_accuracy_have_the_events_that_they_always_had(tmp_path):
    labels = {name: (x, (y > 5).long()) for name, (x, y) in NUMBERS.items()}
    run(model=torch.nn.Linear(3, 2), head=None, clients=labels, test=None, out=tmp_path / "a")
    first = (tmp_path / "a" / "events.jsonl").read_text().splitlines()[0]
    assert json.loads(first) == {"event": "start", "schema": 1, "seed": 0, "oracle": False}
    assert "main" not in (tmp_path / "a" / "config.toml").read_text()


class Stopping:
    """An observer that interrupts a run after some evaluations."""

    def __init__(self, evaluations):
        self.left = evaluations

    def begin(self, config, history):
        pass

    def see(self, events):
        self.left -= sum(type(event).__name__ == "ModelEvaluated" for event in events)
        if self.left <= 0:
            raise KeyboardInterrupt

    def end(self):
        pass


def test_workers_and_a_resumed_run_give_the_same_bits(tmp_path):
    settings = {
        "head": {"kind": "regression", "loss": "huber"},
        "evaluation": {"every_steps": 5, "metrics": ["r2"]},
    }
    alone = run(out=tmp_path / "alone", **settings)
    run(out=tmp_path / "two", workers=2, **settings)
    with pytest.raises(KeyboardInterrupt):
        run(out=tmp_path / "stopped", observers=(Stopping(3),), **settings)
    resumed = run(out=tmp_path / "stopped", resume=True, **settings)
    assert resumed.model_sha256 == alone.model_sha256
    assert resumed.baseline == alone.baseline
    events = {name: (tmp_path / name / "events.jsonl").read_bytes() for name in ("alone", "two", "stopped")}
    assert events["two"] == events["alone"] == events["stopped"]


def test_head_of_ones_own_file_with_arguments_declares_its_direction(tmp_path):
    (tmp_path / "mine.py").write_text(OWN)
    place = f"{tmp_path / 'mine.py'}:Quantile"
    result = run(head={"kind": place, "q": 0.9}, out=tmp_path / "run")
    assert result.main == "pinball"
    assert result.baseline is None
    assert next(read_events(tmp_path / "run" / "events.jsonl")).lower_is_better
    again = run(head={"kind": place, "q": 0.9}, out=tmp_path / "again", workers=2)
    assert again.model_sha256 == result.model_sha256 != run(head=place).model_sha256


@pytest.mark.parametrize(
    ("head", "said"),
    [
        ("{file}:Nothing", "has nothing called Nothing"),
        ("{file}:torch", "is neither a class of heads"),
        ({"kind": "{file}:Quantile", "p": 1}, "cannot be made .*unexpected keyword argument 'p'"),
        ("regresion", "kind must be one of"),
    ],
)
def test_head_that_cannot_be_is_refused_before_the_run(tmp_path, head, said):
    (tmp_path / "mine.py").write_text(OWN)
    file = str(tmp_path / "mine.py")
    if isinstance(head, dict):
        head = head | {"kind": head["kind"].format(file=file)}
    else:
        head = head.format(file=file)
    with pytest.raises(td.ConfigError, match=said):
        run(head=head, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"evaluation": {"metrics": ["auc"]}}, "evaluation.metrics: the head Regression has no metric 'auc'"),
        ({"evaluation": {"main": "accuracy"}}, "evaluation.main: the head Regression has no metric"),
        ({"stop": {"trips": 9, "target": 1, "metric": "f1"}}, "stop.metric: the head Regression"),
        ({"stop": {"trips": 9, "accuracy": 0.9}}, "stop.accuracy: .*give stop.target, which is about RMSE"),
        ({"head": None}, 'labels are fractions .*set head = "regression"'),
        ({"head": "multiclass"}, 'labels are fractions .*set head = "regression"'),
    ],
)
def test_what_does_not_fit_the_task_is_refused_before_the_run(tmp_path, changes, said):
    with pytest.raises(td.ConfigError, match=said):
        run(out=tmp_path / "out", **changes)
    assert not (tmp_path / "out").exists()


def test_balanced_weights_are_numbers_by_the_clients_label_counts():
    config = td.Config(head={"kind": "binary", "class_weights": "balanced"})
    assembly = assemble_simulation(config, torch.nn.Linear(3, 1), RARE, RARE_TEST)
    assert assembly.federation.head.class_weights == pytest.approx((160 / (2 * 144), 160 / (2 * 16)))
    assert assembly.config.head.class_weights == "balanced"
    result = run(head={"kind": "binary", "class_weights": "balanced"}, clients=RARE, test=RARE_TEST)
    assert result.baseline["metrics"]["accuracy"] == 0.93


def test_balanced_weights_are_outside_the_promise_of_a_private_run():
    privacy = {"kind": "participation", "noise_multiplier": 1.0, "clip": 1.0}
    with pytest.raises(
        td.ConfigError, match="outside of what the privacy of this run promises; give numbers"
    ):
        run(
            head={"kind": "binary", "class_weights": "balanced"},
            clients=RARE,
            test=RARE_TEST,
            privacy=privacy,
        )


def test_there_is_a_weight_for_each_class():
    with pytest.raises(td.ConfigError, match="there are 3 weights, but 2 classes; give one for each"):
        run(head={"kind": "binary", "class_weights": [1, 2, 3]}, clients=RARE, test=RARE_TEST)


def test_main_metric_is_computed_without_being_listed_and_clients_are_judged_by_it():
    result = run(
        head="binary", clients=RARE, test=RARE_TEST,
        evaluation={"main": "average_precision", "held_out": 0.5, "every_steps": 20},
    )  # fmt: skip
    assert result.main == "average_precision"
    assert {"average_precision", "client_average_precision", "accuracy"} <= result.metrics.keys()


def test_metric_without_a_value_is_left_out_and_said_once(caplog):
    test = (RARE_TEST[0], torch.zeros(100, dtype=torch.long))
    with caplog.at_level(logging.WARNING, "tardigrad.data"):
        result = run(
            head="binary", clients=RARE, test=test, evaluation={"metrics": ["auc"], "every_steps": 5}
        )
    assert "auc" not in result.metrics
    said = [record.getMessage() for record in caplog.records]
    assert said == ["auc has no value on the test set, because all examples are of one class; it is left out"]


def test_private_run_learns_its_baseline_from_the_test_set_alone():
    privacy = {"kind": "participation", "noise_multiplier": 1.0, "clip": 1.0, "noise_from": "seed"}
    result = run(
        privacy=privacy, pace=td.Asynchronous(concurrency=4), stop={"steps": 4}, buffer={"size": 2}
    )  # fmt: skip
    assert result.baseline["of"] == "the test set's labels"


def test_table_of_a_file_is_read_as_numbers_for_regression_and_asks_otherwise(tmp_path):
    rows = [f"{'ab'[n % 2]},{n / 7:.4f},{n / 3:.4f}" for n in range(40)]
    (tmp_path / "t.csv").write_text("\n".join(["client,x,price", *rows]) + "\n")
    data = {"kind": "files", "path": str(tmp_path / "t.csv"), "label": "price"}
    base = {
        "data": data,
        "model": "mlp",
        "stop": {"trips": 4},
        "pace": {"kind": "asynchronous", "concurrency": 2},
    }
    config = parse_config(base | {"head": "regression", "buffer": {"size": 2}}, "c")
    assembly = assemble_simulation(config)
    labels = assembly.federation.test[1]
    assert labels.dtype == torch.float32
    assert assembly.federation.classes == 1
    assert assembly.config.evaluation.main == "rmse"
    with pytest.raises(td.ConfigError, match=r"'price': its labels are fractions .*head = .regression"):
        assemble_simulation(parse_config(base, "c"))


def test_server_without_data_takes_and_asks_for_the_metrics_that_its_config_names():
    config = td.Config(
        data=None, model=None, head="regression", evaluation={"metrics": ["r2", "mine"]},
        stop={"steps": 5, "target": 2.0}, service={"population": 5},
        pace={"kind": "asynchronous", "concurrency": 2}, local={"steps": 2},
    )  # fmt: skip
    server = build_server(config, torch.nn.Linear(3, 1))
    assert server.plan.metrics == {"loss", "rmse", "mae", "r2", "mine"}
    assert server.plan.asked == ("r2", "mine", "rmse")
    assert server.plan.stop.reason(0, 0, 0.0, {"rmse": 1.9}) == "target"


def test_names_to_compute_are_those_that_the_head_does_not_give():
    config = td.Config(evaluation={"metrics": ["rmse", "r2"], "main": "rmse"})
    assert names_to_compute(config, td.Regression()) == ("r2",)


def test_baseline_is_of_the_examples_that_the_model_is_evaluated_on():
    """A model that cannot leave the commonest class has the accuracy of the baseline, to the last digit."""
    labels = torch.tensor([0] * 6 + [1] * 4)
    clients = {n: (torch.zeros(10, 2), labels) for n in range(2)}
    test = torch.zeros(40, 2), (torch.arange(40) % 3 == 0).long()
    result = td.run(
        model=torch.nn.Linear(2, 2), clients=clients, test=test, evaluation=td.Evaluation(examples=7),
        pace=td.Asynchronous(concurrency=2), buffer=td.Buffer(size=2), stop=td.Stop(trips=40),
        local=td.Local(lr=0.5, epochs=20),
    )  # fmt: skip
    assert result.baseline["metrics"]["accuracy"] == result.accuracy
    assert result.accuracy * 7 == pytest.approx(round(result.accuracy * 7))


@pytest.mark.parametrize(
    ("stop", "said"),
    [
        ({"target": 2.0}, r"stop\.target: 2 is never reached, because accuracy is at most 1"),
        ({"target": 1.1, "metric": "auc"}, r"stop\.target: 1\.1 is never reached, because AUC is at most 1"),
        ({"accuracy": 90.0}, r"stop\.accuracy: 90 is never reached, because accuracy is at most 1"),
    ],
)
def test_a_target_that_no_value_can_reach_is_refused(stop, said):
    config = parse_config({"data": "digits", "stop": {"trips": 10} | stop}, "a file")
    with pytest.raises(td.ConfigError, match=said):
        assemble_simulation(config)


def test_a_target_above_1_of_an_error_is_allowed():
    assert run(stop={"trips": 120, "target": 30.0, "metric": "rmse"}).stopped_by == "target"
