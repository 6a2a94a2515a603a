"""The server's certificate: the hosts it is for, warnings before it expires, errors that name it."""

import asyncio
import logging
import signal
from pathlib import Path

import grpc
import pytest
from certificate_files import signed_anew, with_certificates
from cryptography import x509
from service_harness import FakeClock, enrolled_key, failed, serving
from test_metrics import CONFIG, scrape

from tardigrad.errors import ConfigError
from tardigrad.service.access.certificates import expiries, make_certificates
from tardigrad.service.client.connection import Connection
from tardigrad.service.monitor.metrics import MetricsCollector, publish
from tardigrad.service.server.endpoint import Endpoint
from tardigrad.service.server.expiry_warnings import warn_of_expiry
from tardigrad.service.server.listener import Server


@pytest.mark.parametrize(
    ("hosts", "names"),
    [
        ((), ["localhost", "127.0.0.1"]),
        (("fl.example.org", "10.0.0.7"), ["fl.example.org", "localhost", "10.0.0.7", "127.0.0.1"]),
        (("localhost",), ["localhost", "127.0.0.1"]),
    ],
)
def test_server_certificate_is_always_valid_for_localhost_and_127_0_0_1(hosts, names, tmp_path):
    with_certificates(tmp_path, *hosts)
    certificate = x509.load_pem_x509_certificate((tmp_path / "server.pem").read_bytes())
    found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    addresses = [str(address) for address in found.get_values_for_type(x509.IPAddress)]
    assert [*found.get_values_for_type(x509.DNSName), *addresses] == names


def test_clients_connect_with_the_servers_authority_and_with_no_other(tmp_path):
    ours, others = tmp_path / "ours", tmp_path / "others"
    for folder in (ours, others):
        folder.mkdir()
        make_certificates(folder, [])

    async def scene():
        async with serving(CONFIG, tmp_path) as running:
            server = Server(running.server.servicer)
            port = await server.start("127.0.0.1:0", Endpoint(keys=ours).credentials())
            signer = running.signer("ann")
            async with Connection(f"localhost:{port}", signer, (ours / "ca.pem").read_bytes()) as ann:
                assert ann.run == running.coordinator.run
            wrong = Connection(f"localhost:{port}", signer, (others / "ca.pem").read_bytes())
            assert await failed(wrong.__aenter__()) is grpc.StatusCode.UNAVAILABLE
            plain = Connection(f"localhost:{port}", signer, None)
            assert await failed(plain.__aenter__()) is grpc.StatusCode.UNAVAILABLE
            await server.stop(0)

    asyncio.run(scene())


@pytest.mark.parametrize(
    ("name", "of"), [("server.pem", None), ("server.key", None), ("server.key", "ca.key")]
)
def test_a_certificate_or_key_that_cannot_be_used_is_named(name, of, tmp_path):
    make_certificates(tmp_path, ["localhost"])
    (tmp_path / name).write_bytes(b"junk" if of is None else (tmp_path / of).read_bytes())

    async def scene():
        async with serving(CONFIG, tmp_path / "run") as running:
            with pytest.raises(ConfigError, match=r"server\.pem and server\.key cannot be used"):
                await Server(running.server.servicer).start(
                    "127.0.0.1:0", Endpoint(keys=tmp_path).credentials()
                )

    asyncio.run(scene())


def test_a_server_warns_of_certificates_before_they_expire(tmp_path, caplog):
    signed_anew(with_certificates(tmp_path), 29)
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
    keys = signed_anew(with_certificates(tmp_path / "keys"), 10)

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


def test_serve_warns_of_expiring_certificates_at_its_start(commands, tmp_path):
    keys = signed_anew(with_certificates(tmp_path / "keys"), 3)
    signed_anew(keys, 4, "ca.pem")
    enrolled_key(keys, "ann")
    (tmp_path / "run.toml").write_text(CONFIG.to_toml())
    process = commands.start(
        "serve", tmp_path / "run.toml", "--out", tmp_path / "live", "--keys", keys, "--port", 0
    )
    try:
        assert process.stdout.readline().startswith("listening on ")
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate()
    finally:
        if process.poll() is None:
            process.kill()
    assert process.returncode == 0
    assert "WARNING server.pem expires on " in said
    assert "WARNING ca.pem expires on " in said
