"""AsyncStrategy in Flower's own simulation engine."""

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("flwr")
pytest.importorskip("ray")

from flower_harness import EXAMPLES, PATIENCE

PROGRAM = """
import sys
from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp import ServerApp
from flwr.simulation import run_simulation
from digits_app.client_app import app as client_app
from digits_app.task import make_model
from tardigrad import Config
from tardigrad.flower import AsyncStrategy

app = ServerApp()

@app.main()
def main(grid, context):
    config = Config(buffer={"size": 2}, evaluation={"every_steps": 4})
    strategy = AsyncStrategy(config, out=sys.argv[1])
    arrays = ArrayRecord(make_model().state_dict())
    strategy.start(grid, arrays, num_rounds=4, train_config=ConfigRecord({"lr": 0.1}))

run_simulation(
    app, client_app, num_supernodes=3,
    backend_config={
        "client_resources": {"num_cpus": 1},
        "init_args": {"num_cpus": 2, "log_to_driver": False},
    },
)
"""


def test_a_run_in_the_simulation_engine(tmp_path):
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(EXAMPLES / "asynchronous"), *sys.path]),
        "FLWR_HOME": str(tmp_path / "home"),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "RAY_DISABLE_MEMORY_MONITOR": "1",
    }
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "run")],
        env=environment, capture_output=True, text=True, timeout=PATIENCE,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["steps"], summary["given_up"], summary["stopped_by"]) == (4, 0, "steps")
    assert 0 < summary["accuracy"] <= 1
