"""A server that cannot be reached: the client says why in one sentence, and ends if it can never connect."""

import asyncio
import socket

import pytest
from certificate_files import listening, signed_anew, with_certificates
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from service_harness import PATIENCE, app_of, closed_port, enrolled_key, serving
from test_metrics import CONFIG
from test_participant import APP

from tardigrad.errors import ConfigError, RunError
from tardigrad.experiments.runs.simulation_assembly import build
from tardigrad.service.access.signed_requests import Signer
from tardigrad.service.access.tls_probe import tls_fault, unreachable
from tardigrad.service.client.client_trainer import ClientTrainer
from tardigrad.service.client.participant import Participant
from tardigrad.service.monitor.watching import watch_server

SIMULATION = build(CONFIG)


FAULTS = {
    "wrong authority": "is not of the authority that was given; give its ca.pem as --ca",
    "wrong host": "is not for localhost; use a name that it is for: fl.example.org",
    "expired": "has expired",
    "not TLS": "does not speak TLS",
    "TLS": "the server uses TLS; leave --insecure out",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_client_that_can_never_connect_says_why_and_ends(fault, tmp_path):
    ours = with_certificates(tmp_path / "ours")
    authority = (ours / "ca.pem").read_bytes()
    keys = ours
    if fault == "wrong authority":
        authority = (with_certificates(tmp_path / "others") / "ca.pem").read_bytes()
    elif fault == "wrong host":
        signed_anew(ours, 1, only_for="fl.example.org")
    elif fault == "expired":
        signed_anew(ours, -1)
    elif fault == "not TLS":
        keys = None
    else:
        authority = None

    async def scene():
        async with serving(CONFIG, tmp_path) as running, listening(running, keys) as port:
            address = f"localhost:{port}"
            trainee = ClientTrainer("ann", app_of(SIMULATION, 0))
            client = Participant(address, running.signer("ann"), authority, trainee, tmp_path / "state")
            with pytest.raises(ConfigError, match=f"{address}: .*{FAULTS[fault]}") as caught:
                await asyncio.wait_for(client.take_part(), PATIENCE)
            assert "\n" not in str(caught.value)
            with pytest.raises(ConfigError, match=FAULTS[fault]):
                await anext(watch_server(address, running.signer("ann"), authority))

    asyncio.run(scene())


def test_join_with_the_wrong_authority_ends_with_exit_code_2(commands, tmp_path):
    ours, others = with_certificates(tmp_path / "ours"), with_certificates(tmp_path / "others")
    (tmp_path / "app.py").write_text(APP)
    enrolled_key(others, "ann")

    async def scene():
        async with serving(CONFIG, tmp_path) as running, listening(running, ours) as port:
            words = "join", f"127.0.0.1:{port}", "--app", f"{tmp_path}/app.py:client"
            process = commands.start(*words, "--key", others / "ann.key")
            return process, (await asyncio.to_thread(process.communicate))[1]

    process, said = asyncio.run(scene())
    assert process.returncode == 2, said
    assert said.count("error:") == 1
    assert "is not of the authority that was given" in said
    assert "Traceback" not in said


def test_a_server_that_does_not_answer_yet_has_no_tls_fault(tmp_path):
    ours = with_certificates(tmp_path / "ours")
    authority = (ours / "ca.pem").read_bytes()
    with closed_port() as closed:
        for address in (closed, "nowhere.invalid:7433"):
            assert tls_fault(address, authority) is None
            assert tls_fault(address, None) is None

    async def scene():
        async with serving(CONFIG, tmp_path) as running, listening(running, ours) as port:
            for host in ("localhost", "127.0.0.1"):
                assert await asyncio.to_thread(tls_fault, f"{host}:{port}", authority) is None
            assert await asyncio.to_thread(tls_fault, running.address, None) is None

    asyncio.run(scene())


def test_unreachable_servers_are_explained_in_one_sentence():
    with closed_port() as address:
        assert unreachable(address) == (
            f"no server listens at {address}; check that it runs, and its host and port"
        )
    assert unreachable("nowhere.invalid:7433").startswith("the host nowhere.invalid is not known; check ")
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert unreachable(f"127.0.0.1:{server.getsockname()[1]}").endswith("was lost")


def test_status_of_a_server_that_does_not_run_is_one_sentence(tmp_path):
    signer = Signer("ann", Ed25519PrivateKey.generate())

    async def scene(address):
        with pytest.raises(RunError, match=f"^no server listens at {address}; [^\n]*$"):
            await anext(watch_server(address, signer, None))

    with closed_port() as address:
        asyncio.run(scene(address))
