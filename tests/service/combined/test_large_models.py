"""A large model: uploads and old versions are in files, and everything is as with a small one."""

import asyncio
import shutil

import pytest
import torch
from service_harness import comparable, replay, serving, settled, trace_of
from upload_clients import CONFIG as SMALL
from upload_clients import code_of, trained, two_clients

import tardigrad as td
from tardigrad.service.protocol.v1 import service_pb2 as v1

pytestmark = pytest.mark.usefixtures("in_files")


def config(algorithm, **changes):
    settings = {
        "algorithm": algorithm, "data": td.Digits(partition=td.IID(clients=12)), "stop": td.Stop(trips=40),
        "local": td.Local(batch_size=8, lr=0.1), "model": td.MLP(hidden=(8,)),
        "evaluation": td.Evaluation(every_steps=2), "delay": td.HalfNormal(give_up=0.05),
        "pace": td.Asynchronous(concurrency=6), "buffer": td.Buffer(size=3, staleness_bound=3),
        "service": {"requests_per_second": 10_000},
    }  # fmt: skip
    return td.Config(**(settings | changes))


CASES = {
    "fedbuff": config(td.FedBuff()),
    "two vectors and memories": config(td.FedAC()),
    "single uploads": config(td.FedAsync(), buffer=td.Buffer(size=1)),
    "int8 with error feedback": config(td.FedBuff(), encoding=td.Int8(error_feedback=True)),
    "private": config(
        td.FedBuff(), encoding=td.Int8(),
        privacy={
            "kind": "participation", "clip": 0.5, "noise_multiplier": 0.1, "participations": 20,
            "noise_from": "seed",
        },
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("durable", [True, False])
def test_server_of_a_large_model_gives_the_simulators_bits(case, durable, tmp_path):
    simulation, events, steps = trace_of(CASES[case])

    async def served():
        async with serving(CASES[case], tmp_path, durable=durable) as running:
            assert await replay(running, simulation, steps) == events[-1]["reason"]
            versions = running.coordinator.model_state.broadcasts
            newest = max(versions)
            assert [n for n in versions if versions[n].in_memory] == [newest]
            return running

    running = asyncio.run(served())
    assert torch.equal(running.coordinator.model_state.aggregator.evaluated_model, simulation.model)
    assert comparable(running.record.events) == comparable(events)


def test_half_an_upload_is_gone_when_its_client_hangs_up_or_the_server_is_killed(tmp_path):
    uploads = tmp_path / "run" / "uploads"

    async def scene():
        async with two_clients(tmp_path / "run") as (running, ann, bob):
            coordinator = running.coordinator
            coordinator.settings = coordinator.settings.model_copy(update={"idle_seconds": 600.0})
            finished, received = await trained(ann), asyncio.Event()
            honest = ann._stub.Deliver

            async def half(parts):
                async for part in parts:
                    if not part.chunk:
                        yield part
                        continue
                    yield v1.UploadPart(chunk=part.chunk[: len(part.chunk) // 2])
                    await received.wait()

            ann._stub.Deliver = lambda parts, timeout: honest(half(parts), timeout=timeout)
            delivery = asyncio.ensure_future(ann.deliver(finished))
            while not any(file.stat().st_size for file in uploads.iterdir()):
                await asyncio.sleep(0.01)
            shutil.copytree(tmp_path / "run", tmp_path / "copy")  # as if the server were killed here
            delivery.cancel()
            while coordinator.busy:
                await asyncio.sleep(0.01)
            await settled(running)
            assert list(uploads.iterdir()) == []
            assert running.server.servicer.reception.memory.used == 0
            ann._stub.Deliver = honest
            assert (await ann.deliver(finished)).accepted
            assert (await bob.deliver(await trained(bob, 1))).accepted
            assert coordinator.run_state.book.version == 1

    async def recovered():
        assert any((tmp_path / "copy" / "uploads").iterdir())
        async with serving(SMALL, tmp_path / "copy") as running:
            assert list((tmp_path / "copy" / "uploads").iterdir()) == []
            assert running.coordinator.run_state.trips == 0
            assert len(running.coordinator.run_state.book.in_flight) == 1

    asyncio.run(scene())
    asyncio.run(recovered())


def test_refused_norm_leaves_no_file(tmp_path):
    bounded = SMALL.model_copy(update={"service": SMALL.service.model_copy(update={"norm_bound": 1e-9})})

    async def scene():
        async with serving(bounded, tmp_path) as running, running.connect("ann") as ann:
            answer = await ann.deliver(await trained(ann))
            assert (answer.accepted, answer.reason) == (False, "norm too large")
            await settled(running)
            assert list((tmp_path / "uploads").iterdir()) == []

    asyncio.run(scene())


def test_an_old_client_is_told_to_upgrade_when_it_joins(tmp_path):
    encoded = SMALL.model_copy(update={"encoding": td.Int8()})

    async def scene(made, folder):
        async with serving(made, folder) as running:
            connection = running.connect("ann")
            request = v1.JoinRequest().SerializeToString()  # of a client that knows no encodings
            call = connection._stub.Join(connection._signer.sign("Join", request))
            code, said = await code_of(call), await call.details()
            await connection._channel.close()
            return code.name, said

    assert asyncio.run(scene(SMALL, tmp_path / "plain")) == ("OK", "")
    assert asyncio.run(scene(encoded, tmp_path / "encoded")) == (
        "FAILED_PRECONDITION",
        "this run takes uploads that are encoded as 'int8', not plain ones; upgrade this client",
    )
