"""The example of examples/tables, in processes of their own: three sites with CSV files and no code."""

import json
import runpy
import shutil
import signal
from pathlib import Path

from typer.testing import CliRunner

from tardigrad.cli import app

EXAMPLE = Path(__file__).parents[3] / "examples" / "tables"


def test_three_sites_train_with_their_tables_over_tls(commands, tmp_path, monkeypatch):
    shutil.copy(EXAMPLE / "run.toml", tmp_path)
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(EXAMPLE / "make_tables.py"))
    for words in (("data", "prepare", "run.toml", "public.csv"), ("enroll", "north", "south", "east")):
        assert CliRunner().invoke(app, words).exit_code == 0
    server = commands.start(
        "serve", "run.toml", "--out", "live", "--port", "0", "--log-level", "error",
        "--set", "stop.trips=45", "--set", "service.linger_seconds=300",
    )  # fmt: skip
    try:
        line = server.stdout.readline()
        assert line.startswith("listening on "), server.stderr.read()
        address = line.split()[-1]
        (tmp_path / "bad.csv").write_text("age,sex\n3,f\n")
        refused = commands.start(
            "join", address, "--data", "bad.csv", "--key", "keys/north.key", "--check", "--json"
        )
        out, _ = refused.communicate()
        assert refused.returncode == 2
        problems = {column["name"] for column in json.loads(out)["columns"] if "problem" in column}
        assert problems == {"pressure", "department", "visit", "returned"}
        joined = [
            commands.start("join", address, "--data", f"{name}.csv", "--key", f"keys/{name}.key")
            for name in ("north", "south", "east")
        ]
        for site in joined:
            out, err = site.communicate()
            assert site.returncode == 0, err
            assert "the run is over (trips)" in out
        server.send_signal(signal.SIGTERM)
        assert server.wait() == 0
    finally:
        if server.poll() is None:
            server.kill()
        server.communicate()
    live = tmp_path / "live"
    assert (live / "preparation.json").read_bytes() == (tmp_path / "preparation.json").read_bytes()
    events = [json.loads(text) for text in (live / "events.jsonl").read_text().splitlines()]
    accuracy = [event["accuracy"] for event in events if event["event"] == "evaluation"]
    assert accuracy[-1] > max(0.65, accuracy[0])
