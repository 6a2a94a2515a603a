"""Flower's server on the job of `service.py`: run by the Python of Flower's own virtual environment.

    .bench-venvs/flower/bin/python benchmarks/service_peers.py --seconds 15

A SuperLink, a ServerApp that adds up what comes and always has two messages out for each node, and client
processes that answer through Flower's own connection at once, without training and without its poll of three
seconds. One value of an upload changes each time, for equal ones are sent once. Prints one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

SIZE = 1_000_000
CLIENTS = 4
BIN = Path(sys.executable).parent

PROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "uploads"
version = "1.0.0"
description = ""
license = "Apache-2.0"
dependencies = ["flwr"]
[tool.hatch.build.targets.wheel]
packages = ["."]
[tool.flwr.app]
publisher = "benchmark"
[tool.flwr.app.components]
serverapp = "uploads.server:app"
clientapp = "uploads.client:app"
[tool.flwr.app.config]
result = ""
clients = 4
seconds = 10.0
"""
CLIENT = "from flwr.clientapp import ClientApp\napp = ClientApp()\n"
SERVER = """
import json, time
import numpy as np
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import ServerApp

app = ServerApp()

@app.main()
def main(grid, context):
    config = context.run_config
    while len(nodes := list(grid.get_node_ids())) < config["clients"]:
        time.sleep(0.1)
    model, out, times = np.zeros(1_000_000, np.float32), {}, []

    def ask(nodes):
        tasks = [ConfigRecord({"number": len(times) + n}) for n, _ in enumerate(nodes)]
        records = [RecordDict({"task": task}) for task in tasks]
        messages = [Message(record, node, "train") for record, node in zip(records, nodes)]
        out.update(zip(grid.push_messages(messages), nodes))

    ask(nodes * 2)
    while not times or time.monotonic() - times[0] < config["seconds"]:
        answers = list(grid.pull_messages(list(out)))
        for answer in answers:
            node = out.pop(answer.metadata.reply_to_message_id)
            if not answer.has_error():
                model += 0.1 * answer.content["arrays"]["w"].numpy()
                times.append(time.monotonic())
            ask([node])
        if not answers:
            time.sleep(0.005)
    with open(config["result"], "w") as file:
        json.dump({"uploads": len(times) - 1, "seconds": times[-1] - times[0]}, file)
"""


def client(address: str, number: int) -> None:
    """Answer every message at once."""
    import numpy as np
    from flwr.app import Array, ArrayRecord, Message, RecordDict
    from flwr.supercore.inflatable import inflatable_object as objects
    from flwr.supercore.inflatable import inflatable_utils as travel
    from flwr.supernode.fleet_http_connection import http_request_response

    values, count = np.full(SIZE, 1e-6, np.float32), number * 1_000_000
    with http_request_response(address, insecure=True) as connection:
        _, receive, send, _, _, pull, push, confirm = connection
        while True:
            got = receive()
            if got is None:
                time.sleep(0.005)
                continue
            message, tree = got
            run, name = message.metadata.run_id, message.metadata.message_id
            wanted = [one.object_id for one in objects.iterate_object_tree(tree)]
            contents = travel.pull_objects(wanted, pull_object_fn=lambda one, run=run: pull(run, one))
            confirm(run, name)
            message = travel.inflate_object_from_contents(name, contents)
            message.metadata.__dict__["_message_id"] = name
            count += 1
            values[0] = count
            answer = Message(RecordDict({"arrays": ArrayRecord({"w": Array(values)})}), reply_to=message)
            with objects.no_object_id_recompute():
                answer.metadata.__dict__["_message_id"] = answer.object_id
                parts = {n: one.deflate() for n, one in objects.get_all_nested_objects(answer).items()}
                missing, session = send(answer, objects.get_object_tree(answer), 0.0)
            travel.push_object_contents_from_iterable(
                ((n, part) for n, part in parts.items() if n in missing),
                push_object_fn=lambda n, part, run=run, session=session: push(run, session, n, part),
            )


def free_port() -> int:
    """That nobody listens on."""
    with socket.socket() as own:
        own.bind(("127.0.0.1", 0))
        return int(own.getsockname()[1])


def measure(folder: Path, seconds: float) -> dict[str, Any]:
    """Uploads that the server has added up, and in how long."""
    address, home, app = f"127.0.0.1:{free_port()}", folder / "home", folder / "app"
    home.mkdir()
    (app / "uploads").mkdir(parents=True)
    (app / "pyproject.toml").write_text(PROJECT)
    for name, text in (("__init__", ""), ("server", SERVER), ("client", CLIENT)):
        (app / "uploads" / f"{name}.py").write_text(text)
    link = f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "{address}"\ninsecure = true\n'
    (home / "config.toml").write_text(link)
    os.environ |= {"FLWR_HOME": str(home), "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
    os.environ["PATH"] = f"{BIN}:{os.environ['PATH']}"
    host, port = address.split(":")
    command = [str(BIN / "flower-superlink"), "--insecure", "--host", host, "--port", port]
    command += ["--disable-runtime-dependency-installation"]
    with (folder / "log").open("w") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    clients = []
    try:
        for _ in range(300):
            try:
                socket.create_connection((host, int(port)), 1).close()
                break
            except OSError:
                time.sleep(0.2)
        context = multiprocessing.get_context("spawn")
        for number in range(CLIENTS):
            clients.append(context.Process(target=client, args=(address, number + 1), daemon=True))
            clients[-1].start()
        result = folder / "result.json"
        config = f'result="{result}" clients={CLIENTS} seconds={seconds}'
        asked = [str(BIN / "flwr"), "run", str(app), "here", "--run-config", config]
        subprocess.run(asked, check=True, capture_output=True, timeout=120)
        deadline = time.monotonic() + seconds + 90
        while not result.exists() or not result.read_text():
            if time.monotonic() > deadline:
                raise SystemExit(f"no result: {(folder / 'log').read_text()[-2000:]}")
            time.sleep(0.2)
        found: dict[str, Any] = json.loads(result.read_text())
        return found
    finally:
        for one in clients:
            one.kill()
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=15.0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(measure(Path(folder), given.seconds)))


if __name__ == "__main__":
    main()
