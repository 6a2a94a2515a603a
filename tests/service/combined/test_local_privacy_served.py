"""Local privacy on a server: clients clip and noise by themselves, once, and count what they send."""

import asyncio
import json

import pytest
import torch
from service_harness import PATIENCE, app_of, comparable, enrolled_key, replay, serving, trace_of

import tardigrad as td
from tardigrad.errors import RunError
from tardigrad.service.access.signed_requests import Signer
from tardigrad.service.client import participant as client_module
from tardigrad.service.client.client_memory import ClientMemory
from tardigrad.service.client.client_trainer import ClientTrainer
from tardigrad.service.client.participant import SPENT, Participant
from tardigrad.service.protocol.task_settings import LocalNoise, local_noise, to_json

LOCAL = {"kind": "local", "participations": 12, "noise_multiplier": 0.3, "clip": 0.5}


def config(algorithm, **settings):
    common = {
        "algorithm": algorithm, "data": td.Digits(partition=td.IID(clients=8)), "model": td.MLP(hidden=(4,)),
        "pace": td.Asynchronous(concurrency=4), "local": td.Local(batch_size=32, lr=0.1),
        "buffer": td.Buffer(size=1 if algorithm.single_upload else 3, most_per_client=3),
        "stop": td.Stop(trips=24), "evaluation": td.Evaluation(every_steps=2),
        "service": {"requests_per_second": 10_000, "poll_seconds": 0.2},
        "privacy": LOCAL | {"noise_from": "seed"},
    }  # fmt: skip
    if algorithm.single_upload:
        common["buffer"] = td.Buffer(size=1)
    return td.Config(**(common | settings))


@pytest.mark.parametrize("algorithm", [td.FedAsync(), td.FedAC(), td.FedBuff()], ids=lambda a: a.kind)
def test_server_gives_the_simulators_bits(tmp_path, algorithm):
    simulation, events, steps = trace_of(config(algorithm))

    async def served():
        async with serving(config(algorithm), tmp_path) as running:
            await replay(running, simulation, steps)
            return running

    running = asyncio.run(served())
    assert torch.equal(running.coordinator.model_state.aggregator.evaluated_model, simulation.model)
    assert comparable(running.record.events) == comparable(events)


def test_client_draws_noise_from_its_own_system():
    settings = to_json(
        td.FedAC(), td.Local(), True, LocalNoise(clip=0.5, noise_multiplier=1.0, participations=2)
    )
    noise = local_noise(settings)
    assert noise == LocalNoise(clip=0.5, noise_multiplier=1.0, participations=2)
    normals = noise.layer()._normals
    assert not torch.equal(normals(1)(50), normals(1)(50)), "the seed of the run does not tell it"
    with pytest.raises(td.ConfigError, match="is it newer"):
        local_noise(settings.replace('"clip"', '"clop"'))


class Watched(ClientTrainer):
    """Keeps what it trained; the server sees the same, clipped and noised."""

    def __init__(self, *given):
        super().__init__(*given)
        self.finished = []

    def train(self, assignment, memory):
        self.finished.append(super().train(assignment, memory))
        return self.finished[-1]


def private(participations, **settings):
    privacy = LOCAL | {"participations": participations}
    return config(td.FedAC(), privacy=privacy, stop=td.Stop(trips=40), **settings)


def participant(running, simulation, name, tmp_path, patience=PATIENCE):
    key = enrolled_key(running.keys, name)
    trainee = Watched(name, app_of(simulation, int(name)))
    return Participant(
        running.address, Signer(name, key), None, trainee, tmp_path / f"{name}.state", patience
    )


def test_client_stops_when_it_took_part_as_often_as_it_may(tmp_path, caplog):
    """Also where the server forgot how often that was, or did not count what it refused."""
    caplog.set_level("INFO")
    simulation = trace_of(private(12))[0]

    async def scene():
        async with serving(private(3), tmp_path / "run") as running:
            book = running.coordinator.run_state.book
            book.ledger = None  # a server that does not keep the ledger
            one = participant(running, simulation, "0", tmp_path)
            reason = await asyncio.wait_for(one.take_part(), PATIENCE)
            assert not book.in_flight, "the ticket was given back"
            return reason, one

    reason, one = asyncio.run(scene())
    assert reason == SPENT
    said = [r.getMessage() for r in caplog.records if "local privacy" in r.getMessage()]
    assert said == [
        "this run has local privacy: each upload is clipped to 0.5 and gets noise of 0.3 times that from "
        "this system; this client makes at most 3 uploads"
    ]
    assert len(one._trainer.finished) == 3
    assert one._memory.contributions == 3
    norms = [float(f.upload.vectors["delta"].norm()) for f in one._trainer.finished]
    assert all(f.upload.examples == 1 and f.upload.loss == 0.0 for f in one._trainer.finished)
    assert min(norms) > 0.5, "there is noise on top of the clip"


def test_upload_is_saved_before_it_is_sent_and_never_noised_twice(tmp_path, monkeypatch):
    """The client dies while it sends. Started again, it sends the very same upload."""
    simulation = trace_of(private(12))[0]
    sent = []

    async def scene():
        async with serving(private(12), tmp_path / "run") as running:
            one = participant(running, simulation, "0", tmp_path)
            right = client_module.Connection.deliver

            async def dying(connection, finished):
                sent.append(finished.upload.vectors["delta"].clone())
                if len(sent) == 1:
                    raise asyncio.CancelledError  # killed: nothing of what follows happens
                return await right(connection, finished)

            monkeypatch.setattr(client_module.Connection, "deliver", dying)
            monkeypatch.setattr(Participant, "_leave", lambda self, connection: asyncio.sleep(0))
            with pytest.raises(asyncio.CancelledError):
                await one.take_part()
            again = Participant(
                running.address, one._signer, None, Watched("0", app_of(simulation, 0)), one._state, PATIENCE
            )
            task = asyncio.ensure_future(again.take_part())
            while len(sent) < 2:
                await asyncio.sleep(0.01)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            return again

    again = asyncio.run(asyncio.wait_for(scene(), PATIENCE))
    assert torch.equal(sent[0], sent[1])
    assert again._memory.contributions >= 1


def test_damaged_count_ends_the_clients_part(tmp_path):
    remembering = ClientMemory(tmp_path / "state")
    remembering.count_contribution()
    assert ClientMemory(tmp_path / "state").contributions == 1
    (tmp_path / "state" / "contributions").write_text("many")
    with pytest.raises(RunError, match="how often this client took part is not known"):
        _ = remembering.contributions


def test_server_keeps_nothing_that_clients_say_of_themselves(tmp_path):
    simulation, _, steps = trace_of(config(td.FedAC()))

    async def served():
        async with serving(config(td.FedAC()), tmp_path / "run") as running:
            await replay(running, simulation, steps)
            return running.coordinator._store.entries(0)

    entries = asyncio.run(served())
    delivered = [entry for _, entry in entries if entry.kind == "deliver"]
    assert delivered
    assert {(e.examples, e.steps, e.loss, e.metrics) for e in delivered} == {(1, 1, 0.0, json.dumps({}))}
