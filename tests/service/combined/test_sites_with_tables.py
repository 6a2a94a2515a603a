"""The example of examples/tables, with real processes: three sites with CSV files and no code."""

import json
import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

from typer.testing import CliRunner

from tardigrad.cli import app

EXAMPLE = Path(__file__).parents[3] / "examples" / "tables"
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1"}


def start(folder, *words):
    return subprocess.Popen(
        [sys.executable, "-m", "tardigrad", *words],
        cwd=folder, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def run(folder, *words):
    process = start(folder, *words)
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


def test_three_sites_train_with_their_tables_over_tls(tmp_path, monkeypatch):
    shutil.copy(EXAMPLE / "run.toml", tmp_path)
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(EXAMPLE / "make_tables.py"))
    for words in (("data", "prepare", "run.toml", "public.csv"), ("enroll", "north", "south", "east")):
        assert CliRunner().invoke(app, words).exit_code == 0
    server = start(
        tmp_path, "serve", "run.toml", "--out", "live", "--port", "0", "--log-level", "error",
        "--set", "stop.trips=45", "--set", "service.linger_seconds=12",
    )  # fmt: skip
    try:
        line = server.stdout.readline()
        assert line.startswith("listening on "), server.stderr.read()
        address = line.split()[-1]
        (tmp_path / "bad.csv").write_text("age,sex\n3,f\n")
        code, out, _ = run(
            tmp_path, "join", address, "--data", "bad.csv", "--key", "keys/north.key", "--check", "--json"
        )
        assert code == 2
        problems = {column["name"] for column in json.loads(out)["columns"] if "problem" in column}
        assert problems == {"pressure", "department", "visit", "returned"}
        joined = [
            start(tmp_path, "join", address, "--data", f"{name}.csv", "--key", f"keys/{name}.key")
            for name in ("north", "south", "east")
        ]
        for site in joined:
            out, err = site.communicate(timeout=120)
            assert site.returncode == 0, err
            assert "the run is over (trips)" in out
        assert server.wait(120) == 0
    finally:
        if server.poll() is None:
            server.kill()
        server.communicate()
    live = tmp_path / "live"
    assert (live / "preparation.json").read_bytes() == (tmp_path / "preparation.json").read_bytes()
    events = [json.loads(text) for text in (live / "events.jsonl").read_text().splitlines()]
    accuracy = [event["accuracy"] for event in events if event["event"] == "evaluation"]
    assert accuracy[-1] > max(0.65, accuracy[0])
