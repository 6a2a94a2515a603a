"""The command of a helper."""

import asyncio
import json
import signal

import grpc
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from helper_harness import helper_process, prepared
from secure_world import World
from typer.testing import CliRunner
from wire_server import WireServer, connected

from tardigrad.cli import app
from tardigrad.errors import ConfigError
from tardigrad.service.access.enrolment import public_text
from tardigrad.service.access.identity import own_identity
from tardigrad.service.access.new_clients import enroll_clients

CLIENTS = {name: Ed25519PrivateKey.generate() for name in ("ann", "bob", "eve")}


def command(*words):
    result = CliRunner().invoke(app, list(map(str, words)), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def shown(folder):
    return json.loads(
        command("helper", "--show", "--out", folder / "helper", "--keys", folder / "helper-keys", "--json")
    )


def test_helper_is_stopped_continued_and_shown(commands, tmp_path):
    prepared(tmp_path, CLIENTS)
    world = World(identities=[own_identity(tmp_path / "helper-keys")])

    async def first(helper):
        async with connected(helper, world) as server:
            await server.greet()
            await server.begin()
            assert shown(tmp_path)["version"] == 0  # while it runs
            return (await server.round(0, CLIENTS))[2].receipt

    async def second(helper, last):
        async with connected(helper, world) as server:
            await server.greet("run-1", bytes.fromhex(last.hash), last.version)
            await server.round(1, CLIENTS)
            offer = world.offer([server], "fay", 1)
            await server.admit([server.delivery(offer, Ed25519PrivateKey.generate())])

    with helper_process(tmp_path, world.server, commands=commands) as helper:
        last = asyncio.run(first(helper))
        helper.process.send_signal(signal.SIGHUP)  # which ends nothing
        helper.process.send_signal(signal.SIGINT)
        assert helper.process.wait() == 0
        assert helper.process.stdout.read() == "stopped; the same command goes on\n"
        said = helper.process.stderr.read()
        assert "the run run-1 begins" in said
        assert "batch 1 is released" in said
        assert "version 1 has a receipt" in said
    with helper_process(tmp_path, world.server, commands=commands) as helper:
        asyncio.run(second(helper, last))
        helper.process.send_signal(signal.SIGTERM)
        assert helper.process.wait() == 0
    assert shown(tmp_path) == {
        "run": "run-1", "server": public_text(world.server), "helpers": 1, "version": 2,
        "released batches": 2, "abandoned batches": 0, "uploads in a batch": 3, "least clients": 2,
        "epsilon": None, "admitted uploads": 6,
        "refused uploads (the client is not on the helper's own list)": 1, "clients that took part": 3,
        "enrolled clients": 3,
    }  # fmt: skip
    text = command("helper", "--show", "--out", tmp_path / "helper", "--keys", tmp_path / "helper-keys")
    assert "version: 2\n" in text


def test_guardrails_of_the_command_refuse_a_policy(commands, tmp_path):
    prepared(tmp_path, CLIENTS)
    world = World(identities=[own_identity(tmp_path / "helper-keys")])

    async def scene(helper):
        async with connected(helper, world) as server:
            await server.greet()
            with pytest.raises(grpc.aio.AioRpcError, match=r"demands 3 \(--least-clients\)"):
                await server.begin()

    with helper_process(tmp_path, world.server, commands=commands, words=("--least-clients", 3)) as helper:
        asyncio.run(scene(helper))
    assert shown(tmp_path) == {"enrolled clients": 3}


def test_helper_speaks_tls_with_its_own_certificate(commands, tmp_path):
    keys = tmp_path / "helper-keys"
    enroll_clients(keys, ["ann"])
    world = World(identities=[own_identity(keys)])
    process = commands.start(
        "helper", "--out", tmp_path / "helper", "--keys", keys, "--port", 0,
        "--server", public_text(world.server),
    )  # fmt: skip
    try:
        assert (
            process.stdout.readline() == f"the identity of this helper is {public_text(own_identity(keys))}\n"
        )
        port = process.stdout.readline().rpartition(":")[2].strip()

        async def scene():
            credentials = grpc.ssl_channel_credentials((keys / "ca.pem").read_bytes())
            async with grpc.aio.secure_channel(f"localhost:{port}", credentials) as channel:
                server = WireServer(channel, world)
                await server.greet()
                assert (await server.begin()).policy_signature

        asyncio.run(scene())
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 0
    finally:
        process.kill()


@pytest.mark.parametrize(
    ("words", "match"),
    [
        ([], "--server: give the identity of the server"),
        (["--server", "no key"], "--server: 'no key' is not an Ed25519 public key"),
        (
            ["--server", "KEY", "--insecure", "--host", "0.0.0.0"],
            "--insecure: without TLS only on this machine",
        ),
        (["--server", "KEY"], r"no server\.pem with its key is there"),
        (["--server", "KEY", "--insecure"], r"clients\.txt: cannot be read because there is no such file"),
        (["--show"], "is not the folder of a helper"),
    ],
)
def test_wrong_words_are_explained(tmp_path, monkeypatch, words, match):
    monkeypatch.chdir(tmp_path)
    words = [public_text(Ed25519PrivateKey.generate()) if word == "KEY" else word for word in words]
    result = CliRunner().invoke(app, ["helper", "--out", str(tmp_path / "helper"), *words])
    with pytest.raises(ConfigError, match=match):
        raise result.exception
