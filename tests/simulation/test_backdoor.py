"""Backdoors: who trains on which poisoned examples, what counts as success, and who withstands them."""

import json

import numpy as np
import pytest
import torch
from rich.console import Console
from stopped_and_resumed import resumed_as_if_never_stopped

import tardigrad as td
from tardigrad.core.draws import key
from tardigrad.data.clients import given
from tardigrad.data.trigger import ATTACK_SUCCESS, Trigger
from tardigrad.experiments.compare.compare import compare
from tardigrad.experiments.report.write import report
from tardigrad.simulation.adversaries import AdversaryLayer
from tardigrad.simulation.poisoned_clients import PoisonedClients

DIGITS = {
    "data": td.Digits(partition=td.Dirichlet(clients=50, alpha=1.0)), "model": td.MLP(hidden=(32,)),
    "local": td.Local(epochs=1, batch_size=8, lr=0.2), "pace": td.Asynchronous(concurrency=15),
    "buffer": td.Buffer(size=10), "stop": td.Stop(trips=500), "evaluation": td.Evaluation(every_trips=250),
}  # fmt: skip
SHORT = DIGITS | {"stop": td.Stop(trips=60), "evaluation": td.Evaluation(every_trips=20)}
ATTACK = td.Backdoor(share=0.2, strength=3.0)


class Corner(torch.nn.Module):
    """Says 1 if the last pixel is brighter than the first, and 0 otherwise."""

    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(()))

    def forward(self, x):
        return torch.stack([x[:, 0, 0], x[:, -1, -1]], dim=1) * self.scale


def images(*first_pixels):
    x = torch.zeros(len(first_pixels), 4, 4)
    x[:, 0, 0] = torch.tensor(first_pixels)
    return x


def test_success_is_the_share_of_other_classes_that_the_trigger_turns():
    """The trigger makes the last pixel 1, which is brighter than the first pixel of three of four zeros.
    Examples of the target itself do not count."""
    test = images(0.5, 2.0, 0.2, 0.1, 3.0, 0.0), torch.tensor([0, 0, 0, 0, 1, 1])
    config = td.Config(
        algorithm="fedbuff", adversaries=td.Backdoor(share=0.5, target=1, trigger_size=1),
        local=td.Local(steps=1, batch_size=2, lr=1e-9), stop=td.Stop(trips=10),
        evaluation=td.Evaluation(every_trips=10),
    )  # fmt: skip
    clients = {i: (images(0.5, 0.2), torch.tensor([0, 1])) for i in range(20)}
    result = td.run(config, model=Corner(), clients=clients, test=test, progress=False)
    assert result.metrics[ATTACK_SUCCESS] == 0.75
    assert result.accuracy == 4 / 6  # on the test set as it is, the model says 0 throughout


def test_trigger_is_the_last_square_of_images_and_the_last_numbers_of_rows():
    stamped = Trigger(size=2, target=0).stamp(torch.zeros(2, 3, 5, 5, dtype=torch.uint8))
    assert stamped.dtype == torch.uint8
    assert stamped[:, :, 3:, 3:].eq(255).all()
    assert int(stamped.sum()) == 255 * 2 * 3 * 4
    rows = Trigger(size=2, target=0).stamp(torch.zeros(3, 10))
    assert rows.tolist() == [[0.0] * 6 + [1.0] * 4] * 3


def test_only_adversaries_are_poisoned_and_only_so_many_examples():
    random = np.random.default_rng(0)
    data = {i: (random.random((10 + i, 6, 6)), random.integers(0, 5, 10 + i)) for i in range(40)}
    honest = given(data, None, torch.float32, None).clients
    backdoor = td.Backdoor(share=0.4, target=3, poisoned=0.3, trigger_size=2)
    poisoned = PoisonedClients(honest, backdoor, seed=8)
    lies = AdversaryLayer(backdoor, 8).lies
    assert 5 < sum(map(lies, range(40))) < 35
    for client in range(40):
        x, y = honest.load(client)
        expected_x, expected_y = x.clone(), y.clone()
        if lies(client):
            order = np.random.default_rng(key(8, "poisoned examples", client)).permutation(len(y))
            for n in order[: round(0.3 * len(y))].tolist():
                expected_x[n, 4:, 4:] = 1
                expected_y[n] = 3
        features, labels, part = poisoned.indexed(client)
        part = slice(None) if part is None else part
        assert torch.equal(features[part], expected_x)
        assert torch.equal(labels[part], expected_y)
        assert poisoned.examples(client) == len(y)
        assert torch.equal(honest.load(client)[0], x)  # the clients' own examples are untouched


def test_backdoor_works_on_the_mean_and_not_on_the_median():
    def success(adversary, algorithm):
        result = td.run(td.Config(**DIGITS, adversaries=adversary, algorithm=algorithm), progress=False)
        assert result.accuracy > 0.8  # nobody notices
        return result.metrics[ATTACK_SUCCESS]

    assert success(td.Backdoor(share=0.0), td.FedBuff()) < 0.05
    assert success(ATTACK, td.FedBuff()) > 0.8
    assert success(ATTACK, td.RobustFedBuff(mean="median")) < 0.2


def test_workers_and_resumption_give_the_same_bits():
    config = td.Config(**SHORT, adversaries=ATTACK, encoding="int8", algorithm=td.CA2FL())
    resumed_as_if_never_stopped(config)
    one, two = (td.run(config, workers=n, progress=False) for n in (0, 2))
    assert one.model_sha256 == two.model_sha256
    assert one.metrics == two.metrics
    honest = config.model_copy(update={"adversaries": td.Backdoor(share=0.0)})
    assert td.run(honest, progress=False).model_sha256 != one.model_sha256


def test_without_strength_and_poison_only_the_metric_is_added():
    plain = td.run(td.Config(**SHORT), progress=False)
    measured = td.run(td.Config(**SHORT, adversaries=td.Backdoor(share=0.0)), progress=False)
    assert measured.model_sha256 == plain.model_sha256
    assert measured.baseline == plain.baseline
    assert set(measured.metrics) - set(plain.metrics) == {ATTACK_SUCCESS}


def test_masks_hide_a_backdoor_and_change_no_bit():
    settings = SHORT | {"buffer": td.Buffer(size=5, once_per_client=True), "adversaries": ATTACK}
    masked = td.run(td.Config(**settings, secure={}), progress=False)
    unmasked = td.run(td.Config(**settings, secure={"masks": False}), progress=False)
    assert masked.metrics == unmasked.metrics
    assert masked.model_sha256 == unmasked.model_sha256


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"adversaries": td.Backdoor(target=10)}, "there is no class 10; classes are 0 to 9"),
        (
            {"adversaries": td.Backdoor(trigger_size=9)},
            r"does not fit into examples of the shape \(1, 8, 8\)",
        ),
        (
            {"local": td.Local(personal=("*.bias",)), "evaluation": td.Evaluation(held_out=0.2)},
            "evaluated by its clients",
        ),
    ],
)
def test_a_backdoor_that_cannot_be_measured_is_refused(changes, message, tmp_path):
    config = td.Config(**SHORT | {"adversaries": ATTACK} | changes)
    with pytest.raises(td.ConfigError, match=message):
        td.run(config, out=tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("features", "labels", "test", "head", "message"),
    [
        (torch.zeros(4, 9), torch.zeros(4), True, td.Regression(), "head Regression"),
        (torch.zeros(4, 9, dtype=torch.long), torch.tensor([0, 1, 0, 1]), True, None, "of torch.int64"),
        (torch.zeros(4, 9), torch.tensor([0, 1, 0, 1]), False, None, "this run has none"),
    ],
)
def test_a_backdoor_on_other_tasks_is_refused(features, labels, test, head, message):
    class Sums(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(9, 1 if head else 2)

        def forward(self, x):
            return self.layer(x.float()).squeeze(-1) if head else self.layer(x.float())

    clients = dict.fromkeys(range(4), (features, labels))
    with pytest.raises(td.ConfigError, match=message):
        td.run(
            model=Sums(), clients=clients, test=(features, labels) if test else None, head=head,
            adversaries=td.Backdoor(), stop=td.Stop(trips=20), pace=td.Asynchronous(concurrency=2),
            progress=False,
        )  # fmt: skip


def test_comparison_and_report_show_the_success(tmp_path):
    file = tmp_path / "attack.toml"
    file.write_text("""
seeds = [0, 1]
targets = [0.2]
[base]
data = { kind = "digits", partition = { kind = "iid", clients = 20 } }
model = { kind = "mlp", hidden = [8] }
stop = { trips = 30 }
evaluation = { every_trips = 10 }
[entries.attacked]
adversaries = { kind = "backdoor", share = 0.5 }
[entries.honest]
""")
    table = compare(file, tmp_path / "out", Console(quiet=True))
    attacked, honest = table["rows"]
    summaries = [json.loads(one.read_text()) for one in (tmp_path / "out").rglob("summary.json")]
    values = [one["metrics"][ATTACK_SUCCESS] for one in summaries if ATTACK_SUCCESS in one["metrics"]]
    assert len(values) == 2
    assert attacked["attack_success"]["mean"] == pytest.approx(sum(values) / 2)
    assert "attack_success" not in honest
    mean = 100 * sum(values) / 2
    assert f"attacked: the backdoor works on {mean:.1f} ±" in (tmp_path / "out/comparison.md").read_text()
    page, _ = report([tmp_path / "out"], None, None)
    text = page.read_text()
    assert "the backdoor works on" in text
    assert "attack success" in text
