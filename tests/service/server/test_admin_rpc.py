"""The calls of operators: who may make them, what is refused, and what an export and a follower get."""

import asyncio
import hashlib
import json

import grpc
import pytest
from safetensors.torch import load_file
from service_harness import PATIENCE, FakeClock, enrolled_key, replay, serving, trace_of

import tardigrad as td
from tardigrad.errors import ConfigError, RunError
from tardigrad.service.access.admins import Admins
from tardigrad.service.access.enrolment import ADMINS, LIST, Enrolled
from tardigrad.service.access.new_clients import add_clients, enroll_clients
from tardigrad.service.access.signed_requests import Signer
from tardigrad.service.client.connection import Connection
from tardigrad.service.client.operator_connection import OperatorConnection, entered
from tardigrad.service.client.received_export import receive_export
from tardigrad.service.protocol.refusals import Cause
from tardigrad.service.protocol.v1 import admin_pb2 as admin_v1
from tardigrad.service.server.admin_rpc import AdminServicer, SteeredRun
from tardigrad.service.store.audit_verification import verified

CONFIG = td.Config(
    data=td.Digits(partition=td.IID(clients=4)), model=td.MLP(hidden=(8,)),
    pace=td.Asynchronous(concurrency=2), buffer=td.Buffer(size=2), stop=td.Stop(trips=6),
    local=td.Local(steps=2, lr=0.1), service={"requests_per_second": 10_000, "poll_seconds": 0.05},
)  # fmt: skip


def run(scene):
    return asyncio.run(asyncio.wait_for(scene, PATIENCE))


async def refused(call):
    """The cause and the sentence of the server's refusal."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return dict(caught.value.trailing_metadata())["tardigrad-why"], caught.value.details()


def test_clients_cannot_steer_and_operators_cannot_train(tmp_path):
    async def scene():
        async with serving(CONFIG, tmp_path) as running, running.operator():
            ann = OperatorConnection(running.address, running.signer("ann"), None)
            why, sentence = await refused(ann.enter())
            assert why == Cause.NOT_ENROLLED
            assert "not enrolled" in sentence
            root = Connection(running.address, running.signer("root"), None)
            why, _ = await refused(root.__aenter__())
            assert why == Cause.NOT_ENROLLED
            posing = Signer("root", running.signer("ann")._key)  # the name of one, the key of the other
            why, _ = await refused(OperatorConnection(running.address, posing, None).enter())
            assert why == Cause.SIGNATURE
            await ann.close()

    run(scene())


def test_server_without_operators_says_how_to_enroll_one_and_notices_the_list(tmp_path):
    async def scene():
        async with serving(CONFIG, tmp_path) as running:
            key = running.signer("ann")._key
            stranger = OperatorConnection(running.address, Signer("root", key), None)
            why, sentence = await refused(stranger.enter())
            assert why == Cause.NOT_ENROLLED
            assert "no operators" in sentence
            assert "tardigrad enroll --admin" in sentence
            async with running.operator() as root:
                assert [(one.name, one.state) for one in root.runs] == [("", "running")]
            (tmp_path / "keys" / ADMINS).unlink()
            sentence = ""
            while not sentence:  # the list is read again after a second
                try:
                    async with running.operator():
                        await asyncio.sleep(0.1)
                except grpc.aio.AioRpcError as error:
                    sentence = error.details()
            assert "no operators" in sentence
            await stranger.close()

    run(scene())


def test_replayed_misdirected_forged_and_old_requests_are_refused(tmp_path):
    clock = FakeClock()

    async def scene():
        async with serving(CONFIG, tmp_path) as running, running.operator() as root:
            signer, stub = root._signer, root._stub
            request = admin_v1.SteerRequest(act="pause").SerializeToString()
            signed = signer.sign("Steer", request)
            assert (await stub.Steer(signed)).changed
            assert (await refused(stub.Steer(signed)))[0] == Cause.REPLAYED
            assert (await refused(stub.Export(signer.sign("Steer", request)).read()))[0] == Cause.MISDIRECTED
            forged = signer.sign("Steer", request)
            forged.claim += b"\x00"
            assert (await refused(stub.Steer(forged)))[0] in (Cause.SIGNATURE, Cause.UNSIGNED)
            other = Signer("root", signer._key, clock)
            other.session = signer.session
            clock.step(-3600)
            other = Signer("root", signer._key, clock)
            other.session = signer.session
            assert (await refused(stub.Steer(other.sign("Steer", request))))[0] == Cause.TIME
            other = Signer("root", signer._key)
            other.session = b"another session!"
            assert (await refused(stub.Steer(other.sign("Steer", request))))[0] == Cause.SESSION
            async with running.connect("ann") as client:  # the session of clients is another one
                other.session = client._signer.session
            assert (await refused(stub.Steer(other.sign("Steer", request))))[0] == Cause.SESSION
            assert running.coordinator.run_state.steering.paused is not None
        assert [line["act"] for line in verified(tmp_path / "audit.jsonl")] == ["pause"]

    run(scene())


def test_request_to_one_server_is_refused_by_another_of_the_same_operator(tmp_path):
    (tmp_path / "other").mkdir()

    async def scene():
        async with (
            serving(CONFIG, tmp_path / "one") as one,
            one.operator() as root,
            serving(CONFIG, tmp_path / "other", keys=one.keys, signers=one.signers) as other,
            other.operator() as there,
        ):
            signed = root._signer.sign("Steer", admin_v1.SteerRequest(act="stop").SerializeToString())
            assert (await refused(there._stub.Steer(signed)))[0] == Cause.SESSION
            assert other.coordinator.run_state.over is None
            assert (await root._stub.Steer(signed)).changed

    run(scene())


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"act": "explode"}, "is not an act"),
        ({"act": "export"}, "is not an act"),
        ({"act": "eject"}, "a client is given to eject"),
        ({"act": "pause", "client": "ann"}, "a client is given to eject"),
        ({"act": "eject", "client": "nobody"}, "is not an enrolled client"),
        ({"act": "admit", "client": "../x"}, "is not the name of a client"),
        ({"act": "pause", "limits": {"concurrency": 3}}, "cannot be given to pause"),
        ({"act": "limits", "limits": {"seed": 3}}, "is not a limit that can change"),
        ({"act": "limits", "limits": {"concurrency": 2.5}}, "must be a whole number"),
        ({"act": "limits", "limits": {"concurrency": 0}}, "must be positive"),
        ({"act": "limits", "limits": {"ticket_seconds": float("nan")}}, "must be positive"),
        ({"act": "limits", "limits": {"ticket_seconds": 50, "requests_per_second": -1}}, "must be positive"),
        ({"act": "pause", "reason": "x" * 501}, "at most 500"),
        ({"act": "pause", "run": "other"}, "is not a run of this server"),
    ],
)
def test_impossible_acts_are_refused_with_one_sentence_and_change_nothing(tmp_path, given, sentence):
    async def scene():
        async with serving(CONFIG, tmp_path) as running, running.operator() as root:
            before = running.coordinator.run_state.state()
            why, found = await refused(root.steer(**given))
            assert (why, sentence in found) == (Cause.ACT, True), found
            assert running.coordinator.run_state.state() == before
            assert running.coordinator.settings.ticket_seconds == 3600
            assert not (tmp_path / "audit.jsonl").exists()

    run(scene())


def test_runs_are_chosen_by_name(tmp_path):
    async def scene():
        async with serving(CONFIG, tmp_path / "a") as one, serving(CONFIG, tmp_path / "b") as other:
            runs = {
                name: SteeredRun(name, there.coordinator, there.server.servicer, tmp_path / name)
                for name, there in (("a", one), ("b", other))
            }
            servicer = AdminServicer(runs, Admins(Enrolled(one.keys / LIST)))
            assert servicer._run("b") is runs["b"]
            for name, sentence in (("", "several runs; name one of a, b"), ("c", "its runs are a, b")):
                with pytest.raises(Exception, match=sentence):
                    servicer._run(name)

    run(scene())


def test_too_many_requests_of_an_operator_are_refused(tmp_path):
    async def scene():
        async with serving(CONFIG, tmp_path) as running, running.operator() as root:
            causes = set()
            for _ in range(100):
                try:
                    await root.steer("limits")
                except grpc.aio.AioRpcError as error:
                    causes.add(dict(error.trailing_metadata())["tardigrad-why"])
            assert causes == {Cause.RATE}

    run(scene())


def test_exported_model_is_that_of_its_version_and_is_recorded(tmp_path):
    simulation, _, steps = trace_of(CONFIG)

    async def scene():
        async with serving(CONFIG, tmp_path / "run") as running, running.operator() as root:
            (tmp_path / "run" / "config.toml").write_text(CONFIG.to_toml())
            await replay(running, simulation, steps)
            header = await receive_export(root.export(reason="for the hospital"), tmp_path / "out")
            assert not list((tmp_path / "run").glob("*.partial"))
            return running, header

    running, header = run(scene())
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == [
        "config.toml", "export.json", "model.safetensors",
    ]  # fmt: skip
    told = json.loads((tmp_path / "out" / "export.json").read_text())
    assert (told["version"], told["trips"], told["run"]) == (header.version, 6, running.coordinator.run)
    model = (tmp_path / "out" / "model.safetensors").read_bytes()
    assert told["sha256"]["model.safetensors"] == hashlib.sha256(model).hexdigest()
    exported = load_file(tmp_path / "out" / "model.safetensors")
    expected = simulation.flat.state_dict(simulation.model)
    assert exported.keys() == expected.keys()
    assert all((exported[name] == value).all() for name, value in expected.items())
    (line,) = verified(tmp_path / "run" / "audit.jsonl")
    assert line["act"] == "export"
    assert line["reason"] == "for the hospital"
    assert line["arguments"] == {
        "version": header.version,
        "model_sha256": hashlib.sha256(model).hexdigest(),
    }


def test_exported_model_of_a_private_run_was_released(tmp_path):
    private = CONFIG.model_copy(
        update={
            "privacy": td.Participation(participations=6, separation=1, noise_multiplier=0.5, clip=0.5),
            "stop": td.Stop(steps=3),
        }
    )
    simulation, _, steps = trace_of(private)

    async def scene():
        async with serving(private, tmp_path) as running, running.operator() as root:
            released, release = {}, running.coordinator.model_state._release

            def note(version, vectors):
                released[version] = vectors["model"].clone()
                release(version, vectors)

            running.coordinator.model_state._release = note
            await root.steer("pause")
            await root.steer("resume")
            await replay(running, simulation, steps)
            header = await receive_export(root.export(), tmp_path / "out")
            return released[header.version], running.run.assembly.flat

    vector, flat = run(scene())
    found = load_file(tmp_path / "out" / "model.safetensors")
    assert all((found[name] == value).all() for name, value in flat.state_dict(vector).items())


def test_names_and_keys_of_clients_and_operators_are_disjoint(tmp_path):
    enroll_clients(tmp_path, ["ann"])
    enroll_clients(tmp_path, ["root"], list_name=ADMINS)
    (tmp_path / "ann.key").unlink()
    (tmp_path / "root.key").unlink()
    with pytest.raises(ConfigError, match="ann is enrolled already"):
        enroll_clients(tmp_path, ["ann"], list_name=ADMINS)
    with pytest.raises(ConfigError, match="root is enrolled already"):
        enroll_clients(tmp_path, ["root"])
    keys = {name: Enrolled(tmp_path / name) for name in (LIST, ADMINS)}
    text = {name: next(iter(line.split()[1] for line in (tmp_path / name).read_text().splitlines()[1:]))
            for name in keys}  # fmt: skip
    with pytest.raises(ConfigError, match="is enrolled with this public key"):
        add_clients(tmp_path / ADMINS, {"eve": text[LIST]})
    with pytest.raises(ConfigError, match="is enrolled with this public key"):
        add_clients(tmp_path / LIST, {"eve": text[ADMINS]})


def test_operator_whose_key_was_given_to_a_client_by_hand_has_no_say(tmp_path):
    enrolled_key(tmp_path, "ann")
    admins = Admins(Enrolled(tmp_path / LIST))
    (tmp_path / ADMINS).write_text((tmp_path / LIST).read_text().replace("ann ", "root "))
    with pytest.raises(ConfigError, match="needs a name and a key of its own"):
        admins.refresh()
    assert not admins.knows("root")


def test_errors_of_a_connection_are_one_sentence(tmp_path):
    async def scene():
        async with serving(CONFIG, tmp_path) as running:
            with pytest.raises(ConfigError, match="no operators"):
                async with entered(running.address, running.signer("ann"), None):
                    pass
            address = running.address
        with pytest.raises(RunError, match=r"127\.0\.0\.1"):
            async with entered(address, running.signer("ann"), None):
                pass

    run(scene())


def test_streams_end_when_their_reader_is_taken_off_the_list(tmp_path):
    async def scene():
        (tmp_path / "config.toml").touch()
        serves = serving(CONFIG, tmp_path)
        async with serves as running, running.operator() as root, running.connect("ann") as ann:
            for stream, file in ((root.follow(), ADMINS), (ann.watch(), LIST)):
                await anext(stream)
                (running.keys / file).write_text("")
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    async for _ in stream:
                        pass
                assert caught.value.details().endswith("is not enrolled here any more")

    run(scene())
