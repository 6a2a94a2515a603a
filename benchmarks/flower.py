"""What asynchrony buys on Flower's own SuperLink and SuperNodes when one of them is slow.

    python benchmarks/flower.py

A SuperLink and four SuperNodes on loopback train the app of examples/flower. One of them sleeps in every trip
for nine times as long as a trip takes where each node has a core of its own. First they train with Flower's
FedAvg, then with FedBuff by `AsyncStrategy`, until the model has the same accuracy on all nodes' held-out
examples, which the ServerApp computes after each step. The clock of each starts when its ServerApp does; the
nodes are connected by then. Results: benchmarks/flower.json, docs/performance.md.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from report import Machine, sentence, table, write

ROOT = Path(__file__).parents[1]

NODES, FACTOR, TARGET, AIM = 4, 10, 0.80, 0.5
FEDAVG, FEDBUFF = "FedAvg", "FedBuff"

SERVER_APP = """
import json, time
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from tardigrad import Buffer, Config, Evaluation, Stop
from tardigrad.flower import AsyncStrategy
from digits_app.task import load_data, make_model
from digits_app.task import test as test_model

app = ServerApp()


class Reached(Exception):
    pass


@app.main()
def main(grid, context):
    told, began = context.run_config, time.monotonic()
    held_out = [load_data(part, told["nodes"])[1] for part in range(told["nodes"])]

    def evaluate(step, arrays):
        model = make_model()
        model.load_state_dict(arrays.to_torch_state_dict())
        right = sum(test_model(model, part)[1] * len(part) for part in held_out)
        accuracy = right / sum(map(len, held_out))
        with open(told["out"], "a") as file:
            line = {"step": step, "accuracy": accuracy, "seconds": time.monotonic() - began}
            file.write(json.dumps(line) + "\\n")
        if accuracy >= told["target"]:
            raise Reached
        return MetricRecord({"accuracy": accuracy})

    if told["strategy"] == "FedAvg":
        strategy = FedAvg(fraction_evaluate=0.0, min_available_nodes=told["nodes"])
    else:
        config = Config(buffer=Buffer(size=3), evaluation=Evaluation(every_steps=1), stop=Stop(steps=1000))
        strategy = AsyncStrategy(config, min_available_nodes=told["nodes"])
    try:
        strategy.start(
            grid=grid, initial_arrays=ArrayRecord(make_model().state_dict()), num_rounds=told["most"],
            train_config=ConfigRecord({"lr": 0.1}), evaluate_fn=evaluate,
        )
    except Reached:
        pass
"""


def make_app(folder: Path) -> Path:
    """Copy the example's ClientApp, with a ServerApp that has both strategies and stops at the target."""
    shutil.copytree(ROOT / "examples" / "flower" / "fedavg", folder)
    (folder / "digits_app" / "server_app.py").write_text(SERVER_APP)
    file = folder / "pyproject.toml"
    more = f'strategy = ""\nout = ""\nnodes = {NODES}\ntarget = {TARGET}\nmost = 200\n'
    file.write_text(file.read_text().replace("local-epochs = 1\n", f"local-epochs = 2\n{more}"))
    return folder


def measure(folder: Path, slow_seconds: float) -> dict[str, list[dict[str, float]]]:
    """Return the evaluations of both strategies, each until it has reached the target."""
    sys.path.insert(0, str(ROOT / "tests" / "flower"))
    from flower_harness import Federation, wait_for  # the tests' own, which starts all processes

    app, found = make_app(folder / "app"), {}
    with Federation(folder) as federation:
        for number in range(NODES):
            federation.add_node(number, NODES, slow_seconds if number == NODES - 1 else 0.0)
        for strategy in (FEDAVG, FEDBUFF):
            out = folder / f"{strategy}.jsonl"
            began = time.monotonic()
            federation.run(app, strategy=strategy, out=str(out))
            wait_for(lambda out=out: _reached(out), f"{strategy}\n{federation.said()}")
            found[strategy] = [json.loads(line) for line in out.read_text().splitlines()]
            print(f"{strategy}: {time.monotonic() - began:.0f} seconds", file=sys.stderr)
    return found


def _reached(file: Path) -> bool:
    lines = file.read_text().splitlines() if file.exists() else []
    return bool(lines) and json.loads(lines[-1])["accuracy"] >= TARGET


def rows_of(found: dict[str, list[dict[str, float]]], slow_seconds: float) -> list[list[str]]:
    """Return the results as the rows of a table."""
    (fedavg, fedbuff) = (found[strategy][-1] for strategy in (FEDAVG, FEDBUFF))
    figures = (
        f"{fedbuff['seconds']:.0f} over {fedavg['seconds']:.0f} s, {fedbuff['step']:.0f} steps and "
        f"{fedavg['step']:.0f} rounds"
    )
    slow = f"one node sleeps for {slow_seconds:.0f} s in every trip"
    return [
        ["what over what", "ratio", "aim", "figures behind it (this machine only)"],
        [f"FedBuff over FedAvg: wall-clock time to {TARGET:.0%} if {slow}",
         f"{fedbuff['seconds'] / fedavg['seconds']:.2f}", f"{AIM}", figures],
    ]  # fmt: skip


def part(results: dict[str, Any]) -> str:
    """Return the results as a part of docs/performance.md."""
    rows = rows_of(results["evaluations"], results["slow_seconds"])
    return f"{table(rows)}\n\n*Flower {results['flwr']}. {sentence(results['machine'])}*"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trip-seconds", type=float, default=6.0, help="of a fast node, all in all")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the processes end with this one
    machine = Machine()
    slow_seconds = (FACTOR - 1) * given.trip_seconds
    with tempfile.TemporaryDirectory() as folder:
        found = measure(Path(folder), slow_seconds)
    results: dict[str, Any] = {"evaluations": found, "slow_seconds": slow_seconds}
    results |= {"machine": machine.description(), "flwr": version("flwr")}
    write("flower", results)
    print(part(results))


if __name__ == "__main__":
    main()
