"""A resumed run keeps its noise, even if the table of constants or the accountant has changed."""

import json
import multiprocessing
import os
import signal

import pytest
import torch

import tardigrad as td
from event_records import read_records
from observers import InterruptAfter
from private_aggregators import noise_of
from tardigrad.core.event_log import to_record
from tardigrad.core.events import ModelEvaluated, ModelMoved
from tardigrad.experiments.runs.serve import serve
from tardigrad.experiments.runs.server_assembly import build_server
from tardigrad.privacy import blt, settings
from tardigrad.privacy.blt import BLT, Toeplitz
from tardigrad.privacy.chosen import Chosen
from tardigrad.privacy.independent import Independent
from tardigrad.privacy.settings import LocalPrivacy, Participation, PoissonSampling
from tardigrad.service.server.endpoint import Endpoint

OTHER = Toeplitz((0.98, 0.8, 0.3), (-0.002, -0.05, -0.3))
"""Constants that are in no table."""


def another_table(monkeypatch):
    monkeypatch.setattr(blt, "chosen", lambda *limits: OTHER)


def parts(**privacy):
    generator = torch.Generator().manual_seed(1)
    y = torch.tensor([0, 1, 0, 1])
    clients = {i: (torch.randn(4, 3, generator=generator), y) for i in range(30)}
    torch.manual_seed(0)
    config = td.Config(
        privacy=Participation(**{"epsilon": 4.0, "participations": 4, "separation": 6} | privacy),
        stop=td.Stop(steps=24), buffer=td.Buffer(size=4), pace=td.Asynchronous(concurrency=8),
        evaluation=td.Evaluation(every_steps=1),
    )  # fmt: skip
    return {"config": config, "model": torch.nn.Linear(3, 2), "clients": clients, "test": clients[0]}


class Die:
    """Writes down what is told, and dies after so many commits as if killed."""

    def __init__(self, commits, file):
        self.left, self.file = commits, file

    def begin(self, config, history):
        pass

    def see(self, events):
        with self.file.open("a") as told:
            seen = [to_record(e) for e in events if isinstance(e, ModelMoved | ModelEvaluated)]
            told.writelines(json.dumps(e) + "\n" for e in seen)
        self.left -= 1
        if self.left == 0:
            os._exit(1)

    def end(self):
        pass


@pytest.mark.parametrize("budget", [{}, {"noise_multiplier": 3.0}], ids=["epsilon", "epsilon and noise"])
def test_a_killed_simulation_goes_on_with_the_constants_it_began_with(tmp_path, monkeypatch, budget):
    options = {"out": tmp_path / "run", "observers": (Die(60, tmp_path / "told"),), "snapshot_seconds": 1e6}
    process = multiprocessing.get_context("fork").Process(target=td.run, kwargs=parts(**budget) | options)
    process.start()
    process.join()
    assert process.exitcode == 1
    told = [json.loads(line) for line in (tmp_path / "told").read_text().splitlines()]
    assert sum(event["event"] == "step" for event in told) > 3
    straight = td.run(**parts(**budget))
    another_table(monkeypatch)
    resumed = td.run(**parts(**budget), out=tmp_path / "run", resume=True)
    found = [e for e in read_records(tmp_path / "run/events.jsonl") if e["event"] in ("step", "evaluation")]
    assert found[: len(told)] == told
    assert (resumed.steps, resumed.epsilon) == (straight.steps, straight.epsilon)


def test_an_interrupted_simulation_goes_on_with_the_constants_it_began_with(tmp_path, monkeypatch):
    seeded = {"noise_from": "seed"}
    straight = td.run(**parts(**seeded))
    with pytest.raises(KeyboardInterrupt):
        td.run(**parts(**seeded), out=tmp_path / "run", observers=(InterruptAfter(60),))
    another_table(monkeypatch)
    resumed = td.run(**parts(**seeded), out=tmp_path / "run", resume=True)
    assert resumed.model_sha256 == straight.model_sha256
    assert (resumed.epsilon, resumed.history) == (straight.epsilon, straight.history)
    assert td.run(**parts(**seeded)).model_sha256 != straight.model_sha256


def test_another_accountant_changes_neither_noise_nor_steps(tmp_path, monkeypatch):
    budget = {"noise_multiplier": 3.0, "epsilon": 2.5, "noise_from": "seed"}
    straight = td.run(**parts(**budget))
    assert straight.stopped_by == "privacy budget"
    with pytest.raises(KeyboardInterrupt):
        td.run(**parts(**budget), out=tmp_path / "run", observers=(InterruptAfter(20),))
    monkeypatch.setattr(settings, "allowed_steps", lambda *given: 1)
    assert td.run(**parts(**budget), out=tmp_path / "run", resume=True).steps == straight.steps


@pytest.mark.parametrize(
    "privacy",
    [
        Participation(epsilon=3.0, participations=4, separation=6),
        Participation(epsilon=3.0, noise_multiplier=2.5, participations=4, separation=6),
        Participation(epsilon=3.0, participations=4, separation=6, noise=Independent()),
        PoissonSampling(epsilon=3.0, sampling_rate=0.1),
        LocalPrivacy(epsilon=3.0, participations=4),
    ],
    ids=repr,
)
def test_chosen_noise_survives_writing_and_reading(tmp_path, monkeypatch, privacy):
    given = 24, 40, td.Asynchronous(), td.Buffer(size=4, once_per_client=True), 100
    began = privacy.guarantee(*given)
    began.chosen.write(tmp_path / "privacy.json")
    another_table(monkeypatch)
    again = privacy.guarantee(*given, Chosen.read(tmp_path / "privacy.json"))
    assert again == began
    assert again.epsilon(10) == began.epsilon(10)
    if isinstance(getattr(privacy, "noise", None), BLT):
        assert privacy.guarantee(*given) != began


def test_missing_or_damaged_choice_is_an_error(tmp_path):
    out = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        td.run(**parts(), out=out, observers=(InterruptAfter(60),))
    whole = (out / "privacy.json").read_text()
    for text in ("", "{}", "[1, 2]", whole.replace("inverse_decay", "decay"), whole[:-9]):
        (out / "privacy.json").write_text(text)
        with pytest.raises(td.RunError, match=r"privacy\.json is damaged .* start a new run"):
            td.run(**parts(), out=out, resume=True)
    (out / "privacy.json").unlink()
    with pytest.raises(td.RunError, match=r"privacy\.json is gone, .* start a new run"):
        td.run(**parts(), out=out, resume=True)
    (out / "privacy.json").write_text(whole)
    assert td.run(**parts(), out=out, resume=True).steps == 24


# -- on a server ---------------------------------------------------------------------------------------

SERVED = td.Config(
    data={"kind": "synthetic", "clients": 40, "examples": 6}, model={"kind": "mlp", "hidden": [4]},
    privacy=Participation(epsilon=4.0, participations=4, separation=6), stop=td.Stop(steps=24),
    buffer=td.Buffer(size=4), pace=td.Asynchronous(concurrency=8),
)  # fmt: skip


def test_server_uses_the_constants_its_run_began_with(tmp_path, monkeypatch):
    began = build_server(SERVED)
    began.assembly.guarantee.chosen.write(tmp_path / "privacy.json")
    another_table(monkeypatch)
    again = build_server(SERVED, chosen=Chosen.read(tmp_path / "privacy.json"))
    assert again.assembly.guarantee == began.assembly.guarantee
    assert again.plan.budget == began.plan.budget
    noise, first = (noise_of(run.plan.aggregator) for run in (again, began))
    assert (noise["decay"], noise["scale"]) == (first["decay"], first["scale"])
    assert build_server(SERVED).assembly.guarantee != began.assembly.guarantee


def test_restarted_server_writes_the_same_statement(tmp_path, monkeypatch):
    def until_it_listens():
        said = []

        def stop(line):
            said.append(line)
            os.kill(os.getpid(), signal.SIGTERM)

        endpoint = Endpoint(keys=tmp_path / "keys", insecure=True)
        assert serve(SERVED, out=tmp_path / "run", endpoint=endpoint, say=stop) is None
        assert said
        return (tmp_path / "run/privacy.md").read_text()

    (tmp_path / "keys").mkdir()
    (tmp_path / "keys/clients.txt").touch()
    began = until_it_listens()
    another_table(monkeypatch)
    assert until_it_listens() == began
