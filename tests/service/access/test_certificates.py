"""Certificates: who warns before they expire, and what a client says of one that it cannot trust."""

import asyncio
import contextlib
import datetime
import logging
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from service_harness import FakeClock, app_of, enrolled_key, serving
from test_metrics import CONFIG, scrape
from test_participant import APP

from tardigrad.errors import ConfigError
from tardigrad.experiments.runs.simulation_assembly import build
from tardigrad.service.access.certificates import expiries, make_certificates
from tardigrad.service.access.tls_probe import tls_fault
from tardigrad.service.client.client_trainer import ClientTrainer
from tardigrad.service.client.participant import Participant
from tardigrad.service.monitor.metrics import MetricsCollector, publish
from tardigrad.service.monitor.watching import watch_server
from tardigrad.service.server.lifecycle import Endpoint, warn_of_expiry
from tardigrad.service.server.rpc import Server

SIMULATION = build(CONFIG)
DAY = datetime.timedelta(days=1)


def with_certificates(folder, *hosts):
    folder.mkdir(parents=True, exist_ok=True)
    make_certificates(folder, hosts or ["localhost", "127.0.0.1"])
    return folder


def expiring(folder, days, name="server.pem"):
    """Have the certificate in this file signed anew, to expire so many days from now."""
    key = serialization.load_pem_private_key((folder / "ca.key").read_bytes(), None)
    old = x509.load_pem_x509_certificate((folder / name).read_bytes())
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(old.subject)
        .issuer_name(old.issuer)
        .public_key(old.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - 400 * DAY)
        .not_valid_after(now + days * DAY)
    )
    for extension in old.extensions:
        builder = builder.add_extension(extension.value, extension.critical)
    (folder / name).write_bytes(builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    return folder


@contextlib.asynccontextmanager
async def listening(running, keys):
    """The same server once more, with the certificate in this folder; without one, without TLS."""
    server = Server(running.server.servicer)
    credentials = None if keys is None else Endpoint(keys=keys).credentials()
    try:
        yield await server.start("127.0.0.1:0", credentials)
    finally:
        await server.stop(0)


FAULTS = {
    "wrong authority": "is not of the authority that was given",
    "wrong host": "is not for localhost",
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
        keys = with_certificates(tmp_path / "elsewhere", "fl.example.org")
        authority = (keys / "ca.pem").read_bytes()
    elif fault == "expired":
        expiring(ours, -1)
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
                await asyncio.wait_for(client.take_part(), 60)
            assert "\n" not in str(caught.value)
            with pytest.raises(ConfigError, match=FAULTS[fault]):
                await anext(watch_server(address, running.signer("ann"), authority))

    asyncio.run(scene())


def test_the_command_ends_with_code_two(tmp_path):
    ours, others = with_certificates(tmp_path / "ours"), with_certificates(tmp_path / "others")
    (tmp_path / "app.py").write_text(APP)
    enrolled_key(others, "ann")

    async def scene():
        async with serving(CONFIG, tmp_path) as running, listening(running, ours) as port:
            words = "join", f"127.0.0.1:{port}", "--app", f"{tmp_path}/app.py:client"
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "tardigrad", *words, "--key", others / "ann.key",
                stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            )  # fmt: skip
            return process, (await asyncio.wait_for(process.communicate(), 60))[1].decode()

    process, said = asyncio.run(scene())
    assert process.returncode == 2, said
    assert said.count("error:") == 1
    assert "is not of the authority that was given" in said
    assert "Traceback" not in said


def test_a_server_that_may_get_better_has_no_fault(tmp_path):
    ours = with_certificates(tmp_path / "ours")
    authority = (ours / "ca.pem").read_bytes()
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    for address in (f"127.0.0.1:{port}", "nowhere.invalid:7433"):
        assert tls_fault(address, authority) is None
        assert tls_fault(address, None) is None

    async def scene():
        async with serving(CONFIG, tmp_path) as running, listening(running, ours) as port:
            for host in ("localhost", "127.0.0.1"):
                assert await asyncio.to_thread(tls_fault, f"{host}:{port}", authority) is None
            assert await asyncio.to_thread(tls_fault, running.address, None) is None

    asyncio.run(scene())


def test_a_server_warns_of_certificates_before_they_expire(tmp_path, caplog):
    expiring(with_certificates(tmp_path), 29)
    found = expiries(tmp_path)
    assert sorted(found) == ["ca.pem", "server.pem"]
    clock = FakeClock()

    async def said():
        """What is logged at a start."""
        caplog.clear()
        task = asyncio.ensure_future(warn_of_expiry(found, clock))
        await asyncio.sleep(0)  # up to where it waits for the next day
        task.cancel()
        return [record.getMessage() for record in caplog.records if record.event == "certificate"]

    caplog.set_level(logging.WARNING, "tardigrad")
    (line,) = asyncio.run(said())
    assert line.startswith("server.pem expires on ")
    clock.advance(30 * 86_400)
    (line,) = asyncio.run(said())
    assert line.startswith("server.pem has expired on ")
    clock.advance(780 * 86_400)
    assert len(asyncio.run(said())) == 2
    (tmp_path / "ca.pem").write_text("junk")
    assert list(expiries(tmp_path)) == ["server.pem"]


def test_the_metric_says_when_each_certificate_expires(tmp_path):
    keys = expiring(with_certificates(tmp_path / "keys"), 10)

    async def scene():
        async with serving(CONFIG, tmp_path, keys=keys) as running:
            numbers = MetricsCollector(running.coordinator, running.server.servicer, tmp_path, expiries(keys))
            port, end = publish("127.0.0.1", 0, numbers)
            text, found = await asyncio.to_thread(scrape, port)
            await asyncio.to_thread(end)
            return text, found

    text, found = asyncio.run(scene())
    name = "tardigrad_certificate_expiry_seconds"
    assert 9 * 86_400 < found[name, "server.pem"] <= 10 * 86_400
    assert 824 * 86_400 < found[name, "ca.pem"] < 825 * 86_400
    described = (Path(__file__).parents[3] / "docs" / "deployment.md").read_text()
    assert f"`{name}" in described
    assert name in text


def test_a_process_that_serves_warns_at_its_start(tmp_path):
    keys = expiring(with_certificates(tmp_path / "keys"), 3)
    expiring(keys, 4, "ca.pem")
    enrolled_key(keys, "ann")
    (tmp_path / "run.toml").write_text(CONFIG.to_toml())
    process = subprocess.Popen(
        [sys.executable, "-m", "tardigrad", "serve", str(tmp_path / "run.toml"), "--out",
         str(tmp_path / "live"), "--keys", str(keys), "--port", "0"],
        env=os.environ | {"OMP_NUM_THREADS": "1"}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stdout.readline().startswith("listening on ")
        process.terminate()
        _, said = process.communicate(timeout=60)
    finally:
        if process.poll() is None:
            process.kill()
    assert process.returncode == 0
    assert "WARNING server.pem expires on " in said
    assert "WARNING ca.pem expires on " in said
