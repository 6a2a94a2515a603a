"""Encodings on a real server: the simulator's bits, and uploads that cannot be decoded."""

import asyncio
from dataclasses import replace

import grpc
import pytest
import torch
from service_harness import (
    PATIENCE,
    app_of,
    assert_served_as_simulated,
    failed,
    fetched,
    serving,
    trace_of,
)

import tardigrad as td
from tardigrad.errors import RunError
from tardigrad.service.client import participant as client_module
from tardigrad.service.client.client_memory import ClientMemory
from tardigrad.service.client.client_trainer import ClientTrainer
from tardigrad.service.client.participant import Participant
from tardigrad.service.protocol.task_settings import to_json, upload_encoding

FEEDBACK = td.Int8(block=64, error_feedback=True)
PRIVATE = {
    "kind": "participation", "clip": 0.5, "noise_multiplier": 0.1, "participations": 20, "noise_from": "seed",
}  # fmt: skip


def config(encoding, **changes):
    settings = {
        "data": td.Digits(partition=td.IID(clients=8)), "model": td.MLP(hidden=(8,)),
        "local": td.Local(batch_size=32, lr=0.1), "pace": td.Asynchronous(concurrency=5),
        "buffer": td.Buffer(size=3, staleness_bound=3), "delay": td.LogNormal(spread=1.0, give_up=0.1),
        "algorithm": td.FedBuff(staleness="polynomial"), "stop": td.Stop(trips=24), "encoding": encoding,
        "service": {"requests_per_second": 10_000}, "evaluation": td.Evaluation(every_steps=4),
    }  # fmt: skip
    return td.Config(**(settings | changes))


CASES = {
    "int8 with error feedback": config(FEEDBACK),
    "bfloat16": config(td.BFloat16()),
    "grid": config(td.Grid(bits=16, denominator=16)),
    "int4": config(td.Int4()),
    "sign": config(td.Sign()),
    "topk": config(td.TopK(share=0.1)),
    "randomk": config(td.RandomK(share=0.1)),
    "fedasync, int8": config(td.Int8(), algorithm="fedasync", buffer=td.Buffer(size=1)),
    "fedac, int8 with error feedback": config(FEEDBACK, algorithm="fedac"),
    "ca2fl, grid": config(td.Grid(), algorithm="ca2fl"),
}
LOCALLY_PRIVATE = {
    encoding.kind: config(encoding, privacy=PRIVATE | {"kind": "local"}, stop=td.Stop(trips=12))
    for encoding in (
        td.BFloat16(), td.Int8(), td.Int4(), td.Sign(error_feedback=False), td.Grid(bits=16, denominator=16),
        td.TopK(share=0.1, error_feedback=False), td.RandomK(share=0.1, error_feedback=False),
    )
}  # fmt: skip
"""Noise is added before the encoding, in the simulator and by real clients."""
CASES |= {f"local privacy, {kind}": made for kind, made in LOCALLY_PRIVATE.items()}


@pytest.mark.parametrize("case", CASES)
def test_server_gives_the_simulators_bits_and_bytes(case, tmp_path):
    assert_served_as_simulated(CASES[case], tmp_path)


def test_client_that_dies_sends_the_very_same_upload_again(tmp_path):
    trainer = ClientTrainer("ann", app_of(trace_of(config(FEEDBACK))[0], 0))

    async def trained():
        async with serving(config(FEEDBACK), tmp_path) as running, running.connect("ann") as connection:
            return trainer.train(await fetched(connection), {})

    finished = asyncio.run(trained())
    assert trainer.remembers(to_json(td.FedBuff(), td.Local(), encoding=FEEDBACK))
    ClientMemory(tmp_path / "state").keep(finished)
    (again,) = ClientMemory(tmp_path / "state").pending()
    assert again.encoding == "int8"
    assert again.upload.vectors.keys() == finished.upload.vectors.keys()
    for name, vector in finished.upload.vectors.items():
        assert again.upload.vectors[name].dtype == vector.dtype
        assert torch.equal(again.upload.vectors[name], vector)
    assert torch.equal(again.memory["encoding/delta"], finished.memory["encoding/delta"])


class Watched(ClientTrainer):
    """Keeps the memory that each trip began with, and what it came to."""

    def __init__(self, *given):
        super().__init__(*given)
        self.lost, self.trained = [], []

    def train(self, assignment, memory):
        self.lost.append(memory.get("encoding/delta"))
        self.trained.append(super().train(assignment, memory))
        return self.trained[-1]


def participant(running, name, app, state):
    return Participant(running.address, running.signer(name), None, Watched(name, app), state, PATIENCE)


def test_what_a_refused_upload_lost_is_forgotten_also_by_a_client_that_is_started_again(
    tmp_path, monkeypatch
):
    """The first upload counts, the second is refused, and the client dies while it sends the third."""
    made = config(FEEDBACK, buffer=td.Buffer(size=1))
    app, right, sent = app_of(trace_of(made)[0], 0), client_module.Connection.deliver, []

    async def deliver(connection, finished):
        sent.append(finished)
        if len(sent) == 2:
            return await right(connection, spoilt(finished, "delta/codes", -128))
        if len(sent) == 3:
            raise asyncio.CancelledError  # killed: nothing of what follows happens
        return await right(connection, finished)

    monkeypatch.setattr(client_module.Connection, "deliver", deliver)
    monkeypatch.setattr(Participant, "_leave", lambda self, connection: asyncio.sleep(0))

    async def scene():
        async with serving(made, tmp_path / "run") as running:
            one = participant(running, "0", app, tmp_path / "state")
            with pytest.raises(asyncio.CancelledError):
                await one.take_part()
            again = participant(running, "0", app, tmp_path / "state")
            task = asyncio.ensure_future(again.take_part())
            while len(sent) < 6:
                await asyncio.sleep(0.01)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            return one._trainer, again._trainer

    one, again = asyncio.run(asyncio.wait_for(scene(), PATIENCE))
    kept = [finished.memory["encoding/delta"] for finished in one.trained]
    assert one.lost[0] is None
    assert torch.equal(one.lost[1], kept[0])
    assert torch.equal(one.lost[2], kept[0]), "the refused upload has left nothing behind"
    assert sent[3].trip == sent[2].trip, "the very same upload is sent again"
    assert torch.equal(sent[3].upload.vectors["delta/codes"], sent[2].upload.vectors["delta/codes"])
    assert torch.equal(again.lost[0], kept[2])
    assert torch.equal(again.lost[1], again.trained[0].memory["encoding/delta"])


@pytest.mark.parametrize(
    "encoding", [td.Int8(), td.BFloat16(), td.Grid(bits=16, denominator=16)], ids=lambda e: e.kind
)
@pytest.mark.parametrize(
    ("scale", "lr", "said"),
    [(1e38, 0.1, "the training loss is not finite"), (1e15, 1e30, "so that it cannot be encoded")],
    ids=["nan", "infinite"],
)
def test_client_whose_upload_is_not_finite_gives_its_trip_back(encoding, scale, lr, said, tmp_path):
    made = config(encoding, local=td.Local(steps=1, lr=lr))
    app = app_of(trace_of(config(encoding))[0], 0)
    features, labels = app.examples
    wild = replace(app, examples=(features * scale, labels))

    async def scene():
        async with serving(made, tmp_path / "run") as running:
            with pytest.raises(RunError, match=said):
                await asyncio.wait_for(
                    participant(running, "0", wild, tmp_path / "state").take_part(), PATIENCE
                )
            book = running.coordinator.run_state.book
            assert (book.next_trip, book.accepted, len(book.in_flight)) == (1, 0, 0)

    asyncio.run(scene())


def spoilt(finished, name, value):
    vectors = {n: v.clone() for n, v in finished.upload.vectors.items()}
    vectors[name][-1] = value
    return replace(finished, upload=replace(finished.upload, vectors=vectors))


def changed(encoding, finished):
    """Uploads that no client of this encoding sends."""
    yield replace(finished, encoding="int4")
    yield replace(finished, encoding="")
    vectors = finished.upload.vectors
    yield replace(finished, upload=replace(finished.upload, vectors={"delta": torch.zeros(10)}))
    for name, vector in vectors.items():
        longer = vectors | {name: torch.cat([vector, vector[:1]])}
        yield replace(finished, upload=replace(finished.upload, vectors=longer))
        other = vectors | {name: vector.to(torch.int16 if vector.dtype != torch.int16 else torch.int32)}
        yield replace(finished, upload=replace(finished.upload, vectors=other))
    if encoding.kind == "int8":
        yield spoilt(finished, "delta/codes", -128)
        for scale in (0.0, float("nan"), float("inf"), -1.0):
            yield spoilt(finished, "delta/scales", scale)
    elif encoding.kind == "grid":
        yield spoilt(finished, "delta/codes", 2**15 - 1)
    elif encoding.kind == "bfloat16":
        for value in (float("nan"), float("inf"), -float("inf")):
            yield spoilt(finished, next(iter(vectors)), value)
    else:
        yield spoilt(finished, "delta/positions", 2**31 - 1)
        yield spoilt(finished, "delta/positions", -1)


@pytest.mark.parametrize(
    "encoding", [td.Int8(), td.Grid(bits=16), td.TopK(share=0.1), td.BFloat16()], ids=lambda e: e.kind
)
def test_bad_uploads_are_refused_and_nothing_is_counted(encoding, tmp_path):
    made = config(encoding)
    trainer = ClientTrainer("ann", app_of(trace_of(made)[0], 0))

    async def served():
        async with serving(made, tmp_path) as running, running.connect("ann") as connection:
            finished = trainer.train(await fetched(connection), {})
            for bad in changed(encoding, finished):
                assert await failed(connection.deliver(bad)) is grpc.StatusCode.INVALID_ARGUMENT
            assert running.coordinator.run_state.book.accepted == 0
            assert (await connection.deliver(finished)).accepted
            assert running.coordinator.run_state.book.accepted == 1

    asyncio.run(served())


@pytest.mark.parametrize("kind", ["participation", "local"])
def test_private_run_counts_an_upload_that_cannot_be_decoded_as_zeros(kind, tmp_path):
    """Whether an upload counts must not depend on its values, and a bad one must not end the run."""
    made = config(
        td.TopK(share=0.1, error_feedback=False), privacy=PRIVATE | {"kind": kind}, buffer=td.Buffer(size=1),
    )  # fmt: skip
    trainer = ClientTrainer("ann", app_of(trace_of(made)[0], 0))

    async def served():
        async with serving(made, tmp_path) as running, running.connect("ann") as connection:
            aggregator = running.coordinator.model_state.aggregator
            for value in (2**31 - 1, -1):
                finished = trainer.train(await fetched(connection), {})
                assert (await connection.deliver(spoilt(finished, "delta/positions", value))).accepted
            async with running.coordinator.moved:
                await running.coordinator.moved.wait_for(lambda: aggregator.version == 2)
            assert bool(torch.isfinite(aggregator.state["model"]).all())

    asyncio.run(served())


def test_client_is_told_to_upgrade_if_it_does_not_know_the_encoding():
    with pytest.raises(
        td.ConfigError, match=r"encoding that this client does not know .*; upgrade this client"
    ):
        upload_encoding('{"encoding": {"kind": "int3"}}')
    assert upload_encoding("{}") == td.Float32()
    assert upload_encoding(to_json(td.FedBuff(), td.Local(), encoding=FEEDBACK)) == FEEDBACK
