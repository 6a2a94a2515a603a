"""The address on which a server listens."""

import asyncio
import socket

import pytest
from service_harness import serving
from test_metrics import CONFIG

from tardigrad.errors import ConfigError
from tardigrad.service.client.connection import Connection
from tardigrad.service.server.endpoint import Endpoint
from tardigrad.service.server.listener import Server


def test_insecure_is_for_this_machine_only_and_no_durability_for_insecure_only():
    Endpoint("127.0.0.1", insecure=True, durable=False).check()
    with pytest.raises(ConfigError, match="--insecure"):
        Endpoint("0.0.0.0", insecure=True).check()
    with pytest.raises(ConfigError, match="--no-durability"):
        Endpoint(durable=False).check()


@pytest.mark.parametrize("port", [-1, 65536])
def test_a_number_that_is_no_port_is_refused(port):
    with pytest.raises(ConfigError, match=r"port: .* is not a port from 1 to 65535"):
        Endpoint(port=port).check()
    with pytest.raises(ConfigError, match=r"metrics_port: .* is not a port from 1 to 65535"):
        Endpoint(metrics_port=port).check()


def test_an_address_on_which_no_server_can_listen_is_named(tmp_path):
    async def scene():
        async with serving(CONFIG, tmp_path) as running:
            port = running.port
            for address, said in (
                (f"127.0.0.1:{port}", f"--host 127.0.0.1 --port {port}: cannot listen there .*in use"),
                ("nowhere.invalid:7433", r"--host nowhere\.invalid --port 7433: cannot listen there"),
                ("192.0.2.1:0", r"--host 192\.0\.2\.1 --port 0: cannot listen there"),
                (":7433", "--host '' --port 7433: cannot listen there"),
                ("a" * 70 + ".example:7433", "cannot listen there"),
            ):
                with pytest.raises(ConfigError, match=said):
                    await Server(running.server.servicer).start(address, None)

    asyncio.run(scene())


def test_a_server_listens_on_an_ipv6_address(tmp_path):
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")

    async def scene():
        async with serving(CONFIG, tmp_path) as running:
            for address in ("::1:0", "[::1]:0"):
                server = Server(running.server.servicer)
                port = await server.start(address, None)
                async with Connection(f"[::1]:{port}", running.signer("ann"), None) as ann:
                    assert ann.run == running.coordinator.run
                await server.stop(0)

    asyncio.run(scene())
