"""A network that is cut while the server is killed: what was acknowledged counts once, and clients come back.

Server and client are two hosts, in network namespaces that this test makes and removes.
"""

import json
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[3] / "examples" / "service"
ADDRESS = "192.0.2.1"  # of a range that is reserved for tests


@pytest.fixture
def hosts():
    """Names of two namespaces with a cable between them."""
    names = [f"td-{os.getpid()}-{host}" for host in ("server", "client")]
    commands = [
        *(f"ip netns add {name}" for name in names),
        f"ip -n {names[0]} link add cable type veth peer name cable netns {names[1]}",
        f"ip -n {names[0]} addr add {ADDRESS}/24 dev cable",
        f"ip -n {names[1]} addr add 192.0.2.2/24 dev cable",
        *(f"ip -n {name} link set {device} up" for name in names for device in ("lo", "cable")),
    ]
    try:
        for command in commands:
            if shutil.which("ip") is None or subprocess.run(command.split(), capture_output=True).returncode:
                pytest.skip("network namespaces can be made by root only, with iproute2")
        yield names
    finally:
        if shutil.which("ip") is not None:
            for name in names:
                subprocess.run(["ip", "netns", "del", name], capture_output=True)


def test_network_is_cut_and_the_server_killed_meanwhile(commands, tmp_path, hosts):
    server_host, client_host = hosts
    here = tmp_path / "service"
    shutil.copytree(EXAMPLE, here, ignore=shutil.ignore_patterns("keys", "live", "__pycache__"))
    enrolling = commands.start("enroll", "ann", "bob", "--host", ADDRESS, cwd=here)
    assert enrolling.wait() == 0
    cut_and_kill(commands, server_host, client_host, here)
    events = [json.loads(line) for line in (here / "live" / "events.jsonl").read_text().splitlines()]
    trips = [event["trip"] for event in events if event["event"] == "upload"]
    assert len(trips) == len(set(trips)) == 30
    assert events[-1]["event"] == "end"


def cut_and_kill(commands, server_host, client_host, here):
    """Start a server and two clients, and wait for the end of the run."""

    def serve():
        process = commands.start(
            "serve", "run.toml", "--out", "live", "--model", "my_client.py:model",
            "--host", ADDRESS, "--set", "stop.trips=30", "--set", "pace.concurrency=2",
            "--set", "buffer.most_per_client=2",  # of a buffer of 3: neither can end the run alone
            "--set", "service.linger_seconds=300", "--set", "service.snapshot_seconds=0.2", cwd=here,
            network=server_host,
        )  # fmt: skip
        line = process.stdout.readline()
        assert line.startswith("listening on "), line + process.stderr.read()
        return process

    server = serve()
    clients = [
        commands.start("join", f"{ADDRESS}:7433", "--app", "my_client.py:client",
                      "--key", f"keys/{name}.key", cwd=here, merged=True, network=client_host)
        for name in ("ann", "bob")
    ]  # fmt: skip
    for _ in range(4):  # each such line is a trip that was acknowledged
        while "staleness" not in (line := clients[0].stdout.readline()):
            assert line, "the client has ended"
    subprocess.run(["ip", "-n", client_host, "link", "set", "cable", "down"], check=True)
    server.kill()
    server.wait()
    server = serve()
    subprocess.run(["ip", "-n", client_host, "link", "set", "cable", "up"], check=True)
    for client in clients:
        told, _ = client.communicate()
        assert client.returncode == 0, told
        assert "the run is over (trips)" in told
    server.send_signal(signal.SIGTERM)
    assert server.wait() == 0
