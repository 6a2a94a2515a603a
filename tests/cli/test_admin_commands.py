"""The commands of operators, over TLS, against a real server process."""

import json
import signal

import pytest
from test_service_commands import command, listening, serve  # noqa: F401 (a fixture)
from typer.testing import CliRunner

from tardigrad.cli import app
from tardigrad.errors import ConfigError, RunError


def test_operator_steers_a_served_run(serve, tmp_path):  # noqa: F811
    keys, out = tmp_path / "keys", tmp_path / "live"
    command("enroll", "ann", "bob", "eve", "--keys", keys)
    told = command("enroll", "--admin", "root", "--keys", keys, "--json")
    assert json.loads(told)["files"] == [str(keys / "root.key"), str(keys / "admins.txt")]
    process = serve()
    where = listening(process)

    def admin(act, *more):
        return command("admin", act, where, *more, "--key", keys / "root.key")

    assert admin("pause", "--reason", "a look").startswith("paused; no trip is under way (line 1 of")
    assert admin("pause") == "the run is paused already\n"
    status = json.loads(command("status", out, "--once", "--json"))
    while not status["paused_by"]:
        status = json.loads(command("status", out, "--once", "--json"))
    assert "paused by root since" in command("status", out, "--once")
    assert admin("eject", "ann").startswith("ejected ann; it had no trip under way")
    assert "requests_per_second = 20" in admin("limits")
    changed = json.loads(admin("limits", "ticket_seconds=60", "--json"))
    assert (changed["changed"], changed["limits"]["ticket_seconds"]) == (True, 60)
    for words in (["limits", where, "foo=1"], ["limits", where, "foo"], ["eject", where, "nobody"]):
        with pytest.raises(ConfigError):
            command("admin", *words, "--key", keys / "root.key")
    with pytest.raises(ConfigError, match="not enrolled"):
        command("admin", "stop", where, "--key", keys / "ann.key")
    assert "wrote version 0 to" in admin("export", "--out", tmp_path / "exported")
    assert admin("admit", "ann").startswith("admitted ann")
    assert admin("resume").startswith("resumed")
    assert admin("stop").startswith("stopped; the server evaluates the model")
    assert admin("resume") == "the run is over; nothing was changed\n"
    process.send_signal(signal.SIGTERM)
    said, errors = process.communicate()
    assert "the run is over (stopped by the operator)" in said, errors
    exported = (tmp_path / "exported" / "model.safetensors").read_bytes()
    assert exported == (out / "model.safetensors").read_bytes(), "no upload came after the export"
    shown = command("audit-log", "show", out).splitlines()
    assert [line.split()[3] for line in shown] == [
        "pause", "eject", "limits", "export", "admit", "resume", "stop",
    ]  # fmt: skip
    assert shown[0].endswith("(a look)")
    assert shown[2].endswith(" limits ticket_seconds=60")
    assert command("audit-log", "verify", out).startswith("whole: 7 acts; first hash ")
    lines = (out / "audit.jsonl").read_text().splitlines()
    (out / "audit.jsonl").write_text("\n".join(lines[:-1]) + "\n")
    with pytest.raises(RunError, match="line 7: is missing"):
        command("audit-log", "verify", out)
    (out / "audit.jsonl").write_text("\n".join([*lines[:2], lines[2].replace("60", "61"), *lines[3:]]) + "\n")
    with pytest.raises(RunError, match="line 3: is broken"):
        command("audit-log", "verify", out)


@pytest.mark.parametrize("words", [("audit-log", "verify", "nothing"), ("admin", "pause", "x", "--key", "k")])
def test_wrong_arguments_are_one_sentence(words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, list(words))
    assert isinstance(result.exception, ConfigError)
