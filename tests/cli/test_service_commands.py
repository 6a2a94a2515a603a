"""The commands serve, join and enroll, with the example of examples/service."""

import asyncio
import json
import signal
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tardigrad.cli import app
from tardigrad.errors import ConfigError, RunError
from tardigrad.service.access.enrolment import make_key, read_key
from tardigrad.service.access.signed_requests import Signer
from tardigrad.service.client.app import load_app
from tardigrad.service.client.client_trainer import ClientTrainer
from tardigrad.service.client.participant import Participant

EXAMPLE = Path(__file__).parents[2] / "examples" / "service"
NAMES = ("ann", "bob", "eve")


def command(*words):
    result = CliRunner().invoke(app, list(map(str, words)), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture
def serve(commands, tmp_path):
    """Starts a server that lingers until it is stopped, so that all clients learn of the end."""

    def start(*more):
        return commands.start(
            "serve", EXAMPLE / "run.toml", "--out", tmp_path / "live", "--keys", tmp_path / "keys",
            "--model", f"{EXAMPLE / 'my_client.py'}:model", "--port", 0,
            "--set", "stop.trips=30", "--set", "service.linger_seconds=300", *more,
        )  # fmt: skip

    return start


def listening(process):
    line = process.stdout.readline()
    assert line.startswith("listening on "), line + process.stderr.read()
    return line.split()[-1]


def participant(folder, address, name, seen):
    keys = folder / "keys"
    signer = Signer(name, read_key(keys / f"{name}.key"))
    trainer = ClientTrainer(name, load_app(f"{EXAMPLE / 'my_client.py'}:client", name))
    authority = (keys / "ca.pem").read_bytes()
    return Participant(address, signer, authority, trainer, keys / f"{name}.state", 300.0, seen.append)


def test_a_served_run_that_was_stopped_is_continued_and_shown(serve, tmp_path):
    command("enroll", *NAMES, "--keys", tmp_path / "keys")
    seen = []

    async def scene():
        process = serve()
        try:
            address = listening(process)
            clients = [participant(tmp_path, address, name, seen) for name in NAMES]
            work = asyncio.gather(*(client.take_part() for client in clients))
            while len(seen) < 9:
                await asyncio.sleep(0.01)
            process.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(process.wait) == 0
            assert "the same command goes on" in process.stdout.read()
            process = serve()
            address = await asyncio.to_thread(listening, process)
            for client in clients:
                client._address = address  # a port of its own, in a test
            assert await asyncio.wait_for(work, 300) == ["trips"] * 3
            process.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(process.wait) == 0
        finally:
            if process.poll() is None:
                process.kill()
            process.communicate()

    asyncio.run(scene())
    live = tmp_path / "live"
    events = [json.loads(line) for line in (live / "events.jsonl").read_text().splitlines()]
    assert sum(event["event"] == "upload" for event in events) == 30
    assert events[-1]["event"] == "end"
    found = [event for event in events if event["event"] == "evaluation"]
    assert all(event["federated"] for event in found)
    assert found[0]["version"] == 0
    assert found[-1]["accuracy"] > found[0]["accuracy"]
    assert not (live / "journal.sqlite").exists()
    shown = command("show", live)
    assert "30" in shown
    assert "time served" in shown
    assert "virtual time" not in shown

    ended = serve("--set", "service.linger_seconds=0")  # a limit may be changed
    out, err = ended.communicate()
    assert ended.returncode == 0, err
    assert "the run is over (trips)" in out
    (live / "summary.json").rename(live / "summary.elsewhere")
    lost, told = serve(), (live / "events.jsonl").read_bytes()
    assert "put them back from a backup" in lost.communicate()[1]
    assert lost.returncode == 3
    assert (live / "events.jsonl").read_bytes() == told
    (live / "summary.elsewhere").rename(live / "summary.json")
    changed = serve("--set", "local.lr=0.2")
    _, err = changed.communicate()
    assert changed.returncode == 2
    assert "local.lr" in err


def test_sighup_reads_the_list_of_clients_again(serve, tmp_path):
    command("enroll", *NAMES, "--keys", tmp_path / "keys")
    process = serve()
    try:
        listening(process)
        said = []

        def hear(words):
            while not said or words not in said[-1]:
                line = process.stderr.readline()
                assert line, said
                said.append(line)

        command("enroll", "zoe", "--keys", tmp_path / "keys")
        process.send_signal(signal.SIGHUP)
        hear("the list has 4 clients")
        (tmp_path / "keys" / "clients.txt").write_text("nonsense\n")
        process.send_signal(signal.SIGHUP)
        hear("going by the list as it was")
        hear("the list has 4 clients")
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 0
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.mark.parametrize("damage", ["service = [", "service = 3", "[service]\npopulation = 'many'", "\x00"])
def test_a_damaged_config_of_a_run_is_one_sentence(damage, tmp_path):
    command("enroll", "ann", "--keys", tmp_path / "keys")
    (tmp_path / "live").mkdir()
    (tmp_path / "live" / "config.toml").write_text(damage)
    with pytest.raises(
        RunError, match=r"config\.toml is damaged \(.*\); put it back from a backup"
    ) as caught:
        command(
            "serve", EXAMPLE / "run.toml", "--out", tmp_path / "live", "--keys", tmp_path / "keys",
            "--model", f"{EXAMPLE / 'my_client.py'}:model", "--port", 0,
        )  # fmt: skip
    assert "\n" not in str(caught.value)


def test_an_unexpected_error_ends_with_exit_code_1(commands, tmp_path):
    """Here it is in the user's file."""
    make_key(tmp_path / "ann.key")
    (tmp_path / "app.py").write_text("def client():\n    return 1 / 0\n")
    words = ["join", "127.0.0.1:1", "--app", "app.py:client", "--key", "ann.key", "--insecure"]
    process = commands.start(*words, cwd=tmp_path)
    _, said = process.communicate()
    assert process.returncode == 1
    assert "ZeroDivisionError" in said
    assert "Traceback" not in said


def test_the_example_is_short():
    code = [line for line in (EXAMPLE / "my_client.py").read_text().splitlines() if line.strip()]
    assert len(code) < 30


@pytest.mark.parametrize(
    ("address", "ca", "said"),
    [
        ("localhost", b"", r"'localhost' has no port; write it after a colon"),
        ("localhost:70000", b"", r"'70000' is not a port from 1 to 65535"),
        ("localhost:7433", b"junk", r"ca\.pem: is not a certificate in PEM"),
        ("localhost:7433", b"", r"ca\.pem: is not a certificate in PEM"),
    ],
)
def test_join_with_a_wrong_address_or_authority_file_ends_at_once(address, ca, said, tmp_path):
    make_key(tmp_path / "ann.key")
    (tmp_path / "ca.pem").write_bytes(ca)
    with pytest.raises(ConfigError, match=said):
        command("join", address, "--app", EXAMPLE / "my_client.py:client", "--key", tmp_path / "ann.key")


def test_join_with_a_wrong_path_of_the_key_names_the_key(tmp_path):
    with pytest.raises(ConfigError, match=r"ann\.key: there is no such key"):
        command(
            "join", "localhost:7433", "--app", EXAMPLE / "my_client.py:client", "--key", tmp_path / "ann.key"
        )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["a.toml", "b.toml"], "--out: give the folder of the runs"),
        (["a.toml", "sub/a.toml", "--out", "live"], "both are called a; rename one"),
        (["a.toml", "sub", "--out", "live"], "sub: is a folder; give several configs, or one folder"),
        (["a.toml", "b b.toml", "--out", "live"], r"b b\.toml: run 'b b': a name is up to 64 letters"),
        (["a.toml", "b.toml", "--out", "live", "--model", "m.py:m"], "--model: is for one run"),
        (["a.toml", "b.toml", "--out", "live", "--flower", "app"], "--flower: is for one run"),
        (["a.toml", "b.toml", "--out", "live", "--run-config", "x=1"], "--run-config: is for one run"),
        (
            ["a.toml", "b.toml", "--out", "live", "--guard", "none"],
            "--guard none: with several runs it must be",
        ),
        (["a.toml", "bad.toml", "--out", "live"], r"bad\.toml: .*stop\.tripss"),
        (["a.toml", "poisson.toml", "--out", "live"], r"poisson\.toml: pace\.kind: 'poisson'"),
        (["a.toml", "bare.toml", "--out", "live"], r"bare\.toml: model: .*model = \"FILE\.py:NAME\" in it"),
        (["empty"], "empty: has neither configs"),
        (["a.toml"], "--out: give the folder of the run"),
    ],
)
def test_several_runs_that_cannot_be_served_are_refused_with_a_sentence(words, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    command("enroll", *NAMES)
    (tmp_path / "sub").mkdir()
    (tmp_path / "empty").mkdir()
    text = f'[model]\nkind = "{EXAMPLE / "my_client.py"}:model"\n[pace]\nkind = "asynchronous"\n'
    text += "concurrency = 2\n"
    for name in ("a", "b", "b b", "sub/a"):
        (tmp_path / f"{name}.toml").write_text(text)
    (tmp_path / "bad.toml").write_text("[stop]\ntripss = 3\n")
    (tmp_path / "bare.toml").write_text("[stop]\ntrips = 3\n")
    (tmp_path / "poisson.toml").write_text(
        text.replace("asynchronous", "poisson").replace("concurrency = 2", "")
    )
    with pytest.raises(ConfigError, match=said) as caught:
        command("serve", *words, "--port", 0, "--insecure")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "live").exists()


def test_a_folder_of_runs_is_served_and_shown(commands, tmp_path):
    """Configs in a folder are started there; later the folders of their runs go on by themselves."""
    folder, keys = tmp_path / "runs", tmp_path / "keys"
    folder.mkdir()
    (folder / "simulated").mkdir()
    (folder / "simulated" / "config.toml").write_text("")
    command("enroll", *NAMES, "--keys", keys)
    command("enroll", "joe", "--run", "lung", "--keys", keys)
    for name, trips in (("heart", 6), ("lung", 1_000_000)):
        (folder / f"{name}.toml").write_text(
            f'[model]\nkind = "{EXAMPLE / "my_client.py"}:model"\n[stop]\ntrips = {trips}\n'
            '[pace]\nkind = "asynchronous"\nconcurrency = 2\n[buffer]\nsize = 1\n'
        )

    def serve():
        return commands.start(
            "serve", folder, "--keys", keys, "--port", 0, "--set", "service.linger_seconds=0"
        )

    def first_lines(process):
        said = [process.stdout.readline()]
        while not said[-1].startswith("listening on "):
            assert said[-1], process.stderr.read()
            said.append(process.stdout.readline())
        return said

    process = serve()
    try:
        *left_out, line = first_lines(process)
        assert "simulated: holds a run that no server has begun" in left_out[0]
        words = ["--app", f"{EXAMPLE / 'my_client.py'}:client", "--ca", keys / "ca.pem"]
        ann = commands.start("join", line.split()[-1], "--run", "heart", "--key", keys / "ann.key", *words)
        assert "the run is over (trips)" in ann.communicate()[0]
        joe = commands.start("join", line.split()[-1], "--run", "heart", "--key", keys / "joe.key", *words)
        assert "joe is not enrolled for a run 'heart' here" in joe.communicate()[1]
        assert joe.returncode == 2
        assert process.stdout.readline().startswith("heart: the run is over (trips): tardigrad show")
        shown = command("status", folder, "--once")
        assert (
            shown.index("heart") < shown.index("over (trips)") < shown.index("lung") < shown.index("goes on")
        )
        rows = [json.loads(row) for row in command("status", folder, "--once", "--json").splitlines()]
        assert [row["run"] for row in rows] == ["heart", "lung"]
        assert rows[0]["software"]["ann"].startswith("tardigrad ")
        assert "lung" in command("status", folder, "--run", "lung", "--once")
        asked = ["--key", keys / "ann.key", "--once", "--json"]
        watched = command("status", line.split()[-1], "--run", "lung", *asked)
        assert json.loads(watched)["over"] == ""
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 0
        assert "stopped; the same command goes on" in process.stdout.read()
        (folder / "heart.toml").unlink()
        (folder / "lung.toml").unlink()
        process = serve()
        assert any("heart: the run is over (trips)" in line for line in first_lines(process))
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 0
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()
