"""A real SuperLink and real SuperNodes on loopback, and apps that run on them."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

from tardigrad.flower.requirement import numbers

EXAMPLES = Path(__file__).parents[2] / "examples" / "flower"
BIN = Path(sys.executable).parent
PATIENCE = 600.0
"""Seconds to wait for something that happens in any case."""
ONE_PORT = numbers(version("flwr")) >= (1, 38)
"""Whether a SuperLink has one port for all."""

SERVER_APP = """
from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp import ServerApp
from tardigrad import Config
from tardigrad.flower import AsyncStrategy
from digits_app.task import make_model

app = ServerApp()


@app.main()
def main(grid, context):
    told = context.run_config
    config = Config(
        algorithm=told["algorithm"],
        buffer={"size": 2},
        stop={"trips": told["trips"]},
        evaluation={"every_steps": 1000},
    )
    strategy = AsyncStrategy(
        config,
        out=told["out"],
        min_available_nodes=told["nodes"],
        fraction_evaluate=0.0,
        snapshot_seconds=0.01,
    )
    arrays = ArrayRecord(make_model().state_dict())
    strategy.start(grid, arrays, train_config=ConfigRecord({"lr": 0.1}))
"""


def wait_for(condition, what):
    """Wait until the condition holds."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, f"waited too long for {what}"
        time.sleep(0.2)


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def make_app(folder):
    """Copy the example's ClientApp, with a ServerApp for tests."""
    shutil.copytree(EXAMPLES / "asynchronous", folder)
    (folder / "digits_app" / "server_app.py").write_text(SERVER_APP)
    text = (folder / "pyproject.toml").read_text()
    more = 'out = ""\ntrips = 8\nnodes = 2\nalgorithm = "fedbuff"\n'
    (folder / "pyproject.toml").write_text(text.replace('out = ""\n', more))
    return folder


def command_line(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").replace("\0", " ")
    except OSError:
        return ""


def children_of(pid):
    """Return the processes that descend from one."""
    parents = {}
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                parents[int(process.name)] = int((process / "stat").read_text().rsplit(")", 1)[1].split()[1])
            except OSError:
                continue
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {pid}


class Federation:
    """The processes of a federation, which end with it."""

    def __init__(self, folder):
        self.folder = folder
        self.environment = os.environ | {
            "FLWR_HOME": str(folder / "home"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "OMP_NUM_THREADS": "1",
            "PATH": f"{BIN}:{os.environ['PATH']}",
        }
        (folder / "home").mkdir()
        self._processes = []
        self.nodes = {}

    def __enter__(self):
        ports = [free_port() for _ in range(3)]
        self._fleet, control = f"127.0.0.1:{ports[0]}", f"127.0.0.1:{ports[0 if ONE_PORT else 1]}"
        options = [
            "--host",
            "127.0.0.1",
            "--port",
            str(ports[0]),
            "--disable-runtime-dependency-installation",
        ]
        if not ONE_PORT:
            options = ["--fleet-api-address", self._fleet, "--control-api-address", control]
            options += ["--serverappio-api-address", f"127.0.0.1:{ports[2]}"]
        (self.folder / "home" / "config.toml").write_text(
            f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "{control}"\ninsecure = true\n'
        )
        self.superlink = self._start("superlink", "flower-superlink", "--insecure", *options)
        for port in ports[: 1 if ONE_PORT else 3]:
            wait_for(lambda port=port: _listens(port), "the SuperLink")
        return self

    def __exit__(self, *error):
        for process in reversed(self._processes):
            self.kill(process)

    def _start(self, name, command, *options):
        log = (self.folder / f"{name}.log").open("w")
        process = subprocess.Popen(
            [str(BIN / command), *options],
            stdout=log, stderr=log, env=self.environment, cwd=self.folder, start_new_session=True,
        )  # fmt: skip
        self._processes.append(process)
        return process

    def add_node(self, number, of, slow=0.0):
        """Start a SuperNode."""
        port = str(free_port())
        options = ["--port", port] if ONE_PORT else ["--clientappio-api-address", f"127.0.0.1:{port}"]
        told = f"partition-id={number} num-partitions={of} slow-seconds={slow}"
        self.nodes[number] = self._start(
            f"node{number}", "flower-supernode", "--insecure", "--superlink", self._fleet, *options,
            "--node-config", told,
        )  # fmt: skip

    def kill(self, process):
        """Kill a process and all that it has started."""
        for pid in [process.pid, *children_of(process.pid)]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        process.wait(PATIENCE)

    def run(self, app, **told):
        """Start a run and return; it goes on by itself."""
        config = " ".join(f"{name}={json.dumps(value)}" for name, value in told.items())
        done = subprocess.run(
            [str(BIN / "flwr"), "run", str(app), "here", "--run-config", config],
            env=self.environment, cwd=self.folder, capture_output=True, text=True, timeout=PATIENCE,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr

    def kill_server_app(self):
        """Kill the process of the ServerApp, without a warning."""
        (pid,) = [
            child
            for child in children_of(self.superlink.pid)
            if "flwr-serverapp" in command_line(child) and "python" in command_line(child)
        ][:1]
        os.kill(pid, signal.SIGKILL)

    def said(self):
        """Return all logs, for messages of failed assertions."""
        return "\n".join(f"== {file.name}\n{file.read_text()[-3000:]}" for file in self.folder.glob("*.log"))


def _listens(port):
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True
