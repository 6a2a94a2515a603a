"""The command line, as a user types it: what it prints, what it exits with, what it leaves behind."""

import json
import os
import subprocess
import sys

import jsonschema
import pytest

SHORT = ("--set", "stop.trips=120")


def test_a_config_is_written_run_and_shown(cli, tmp_path):
    assert cli("init", "a.toml")[0] == 0
    code, out, _ = cli("run", "a.toml", "--out", "run", *SHORT)
    assert code == 0
    assert "120" in out
    code, out, _ = cli("show", "run", "--plot", "a.png")
    assert code == 0
    assert "staleness" in out
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_json_is_one_object_on_the_last_line(cli):
    cli("init", "a.toml")
    code, out, _ = cli("run", "a.toml", "--json", *SHORT)
    result = json.loads(out.strip().splitlines()[-1])
    assert code == 0
    assert set(result) >= {
        "client_trips", "steps", "virtual_time", "accuracy", "loss", "model_sha256", "wall_seconds",
        "trips_per_second", "refused",
    }  # fmt: skip
    assert result["client_trips"] == 120


def test_the_template_states_the_true_defaults(cli, tmp_path):
    """Every line that is commented out in the template can be switched on without changing the run."""
    import re

    import tardigrad as td

    cli("init", "a.toml")
    template = (tmp_path / "a.toml").read_text()
    lines = [
        re.sub(r"^# ?(?=\w+ = )", "", line)
        for line in template.splitlines()
        if not any(word in line for word in ("staleness_bound", "model_average", "held_out", "accuracy ="))
    ]
    (tmp_path / "b.toml").write_text("\n".join(lines))
    a, b = td.load_config(tmp_path / "a.toml"), td.load_config(tmp_path / "b.toml")
    assert b.local.epochs == 1
    b = b.model_copy(update={"local": b.local.model_copy(update={"epochs": None})})
    assert a.resolved(100) == b.resolved(100)
    assert template.count("\n# ") >= 12


def test_every_list_and_the_schema_are_printed(cli):
    from tardigrad.experiments.config.listing import LISTS

    for what in LISTS:
        code, out, _ = cli("list", what)
        assert code == 0
        assert out.strip()
    assert "fedbuff" in cli("list", "algorithms")[1]
    schema = json.loads(cli("schema")[1])
    assert "algorithm" in schema["properties"]
    assert cli("schema", "config")[1] == cli("schema")[1]
    for right in (
        "fedbuff",
        {"kind": "fedbuff", "lr": 2.0},
        "my.py:Mine",
        {"kind": "my.py:Mine", "power": 3},
    ):
        jsonschema.validate({"algorithm": right, "delay": "log_normal"}, schema)
    for wrong in (3, {"lr": 2.0}, {"kind": "fedbuff", "lrr": 2.0}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({"algorithm": wrong}, schema)


def test_schema_of_events_is_printed(cli):
    from tardigrad.core.event_log import events_schema

    code, out, _ = cli("schema", "events")
    assert code == 0
    assert json.loads(out) == events_schema()
    code, _, err = cli("schema", "lunch")
    assert code == 2
    assert "schema lunch: there is no such schema; give config or events" in err


# ruff: noqa: E501
BAD = {
    "an unknown key": (("--set", "pace.concurency=3"), "unknown key 'pace.concurency'; did you mean 'concurrency'?"),
    "a key without its table": (("--set", "lr=1"), "unknown key 'lr'; did you mean 'algorithm.lr' or 'local.lr'?"),
    "one number where a list is wanted": (("--set", "model.hidden=16"), "must be a list, such as [16]"),
    "an unknown table": (("--set", "paice.kind=x"), "unknown key 'paice'"),
    "a wrong type": (("--set", "local.lr=fast"), "local.lr: must be a valid number"),
    "a negative delay": (("--set", "delay.kind=constant", "--set", "delay.duration=-1"), "delay.duration: must be gre"),
    "a negative learning rate": (("--set", "local.lr=-0.1"), "local.lr: must be greater than 0 (got -0.1)"),
    "an unknown kind": (("--set", "algorithm.kind=fedbuf"), "algorithm.kind must be one of"),
    "a buffer that never fills": (("--set", "buffer.size=4000"), "buffer.size: 4000 uploads make a step, but the run"),
    "more at work than there are": (("--set", "pace.concurrency=101"), "pace.concurrency: 101 clients at work"),
    "more once per client than there are": (
        ("--set", "buffer.size=101", "--set", "buffer.once_per_client=true"), "buffer.size: 101 different clients",
    ),
    "rounds without a synchronous pace": (("--set", "algorithm.kind=fedavg"), "pace.kind: fedavg works in rounds"),
    "no end": (("--set", "stop.trips=0"), "stop.trips: must be greater than 0"),
    "a script that is not there": (
        ("--set", "pace.kind=scripted", "--set", "pace.file=no.csv"), "pace.file: there is no file no.csv",
    ),
    "a model that does not fit": (("--set", "model.kind=fedac_cnn"), "model.kind 'fedac_cnn' needs images"),
    "too many clients": (("--set", "data.partition.clients=99999"), "data.partition.clients: 99999 clients cannot"),
    "FedAsync with a buffer": (
        ("--set", "algorithm.kind=fedasync", "--set", "buffer.size=10"), "buffer.size: fedasync moves the model",
    ),
    "not KEY=VALUE": (("--set", "local.lr"), "--set local.lr: must be KEY=VALUE"),
    "a rate that overflows": (("--set", "local.weight_decay=1e308"), "local.weight_decay: must be less than or equal"),
    "too many examples": (
        ("--set", 'data={kind="synthetic", examples=1000000000000000000}'), "data.examples: must be less than or equal",
    ),
    "a layer that no machine holds": (
        ("--set", "model.hidden=[9223372036854775807]"), "model: it cannot be built for examples of the shape (1, 8, 8)",
    ),
    "layers without end": (
        ("--set", 'model={kind="transformer", layers=9223372036854775807}'), "model.layers: must be less than or equal",
    ),
    "epochs and steps": (("--set", "local.epochs=1", "--set", "local.steps=2"), "local: give epochs or steps"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_a_bad_config_is_one_clear_sentence_and_writes_nothing(cli, tmp_path, case):
    settings, sentence = BAD[case]
    cli("init", "a.toml")
    code, out, err = cli("run", "a.toml", "--out", "run", *settings)
    assert code == 2, err
    assert sentence in err
    assert err.count("\n") == 1, f"more than one sentence: {err}"
    assert not out
    assert not (tmp_path / "run").exists()


def test_files_that_cannot_be_read_are_named(cli, tmp_path):
    code, _, err = cli("run", "none.toml")
    assert code == 2
    assert "none.toml: there is no such file; `tardigrad init none.toml` writes one" in err
    err = cli("compare", "none.toml", "--out", "o")[2]
    assert "there is no such file; `tardigrad init" in err
    (tmp_path / "several.toml").write_text("[entries.a]\n")
    assert "`tardigrad compare several.toml` makes them" in cli("run", "several.toml")[2]
    (tmp_path / "bad.toml").write_text("seed = = 3")
    code, _, err = cli("run", "bad.toml")
    assert code == 2
    assert "bad.toml: not valid TOML" in err
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    assert cli("run", "binary.toml")[0] == 2
    assert cli("show", "nowhere")[0] == 2


def test_a_diverging_run_ends_with_3_and_says_what_to_do(cli, tmp_path):
    cli("init", "a.toml")
    code, _, err = cli("run", "a.toml", "--out", "run", "--set", "local.lr=1e30")
    assert code == 3
    assert "is not finite; lower local.lr (now 1e+30)" in err
    assert not (tmp_path / "run/model.safetensors").exists()
    assert not (tmp_path / "run/summary.json").exists()


def test_a_folder_is_never_overwritten_and_resume_wants_the_same_config(cli, tmp_path):
    cli("init", "a.toml")
    assert cli("run", "a.toml", "--out", "run", *SHORT)[0] == 0
    before = {p: p.read_bytes() for p in (tmp_path / "run").iterdir()}
    code, _, err = cli("run", "a.toml", "--out", "run", *SHORT)
    assert code == 2
    assert "already holds a run" in err
    code, out, _ = cli("run", "a.toml", "--out", "run", *SHORT, "--resume", "--json")
    assert code == 0, "a finished run is shown again"
    assert json.loads(out.strip().splitlines()[-1])["client_trips"] == 120
    assert before == {p: p.read_bytes() for p in (tmp_path / "run").iterdir()}
    assert cli("run", "a.toml", "--resume")[0] == 2
    assert cli("run", "a.toml", "--out", "other", "--resume")[0] == 2


def test_resume_with_another_config_or_a_damaged_snapshot(cli, tmp_path):
    import tardigrad as td

    cli("init", "a.toml")
    config = td.load_config(tmp_path / "a.toml", ["stop.trips=120"])
    td.run(config, out=tmp_path / "run", snapshot_seconds=0)
    (tmp_path / "run/summary.json").unlink()  # as if it had been killed just before the end
    code, _, err = cli("run", "a.toml", "--out", "run", *SHORT, "--set", "local.lr=0.2", "--resume")
    assert code == 2
    assert "differs from that of run in local.lr" in err
    snapshot = tmp_path / "run/snapshot.safetensors"
    good = snapshot.read_bytes()
    snapshot.write_bytes(good[: len(good) // 2])
    code, _, err = cli("run", "a.toml", "--out", "run", *SHORT, "--resume")
    assert code == 3
    assert "snapshot.safetensors is damaged" in err
    snapshot.write_bytes(good)
    assert cli("run", "a.toml", "--out", "run", *SHORT, "--resume")[0] == 0


JSON_BY_NATURE = {"schema"}
"""Commands that always print JSON."""
SERVICE = {"serve", "join", "enroll", "watch"}
"""Commands of the service, which log, and the live page."""


def commands(group=None, prefix=""):
    """Yield each command of the tree with its full name."""
    import typer

    from tardigrad.cli import app

    group = group or typer.main.get_command(app)
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{prefix}{name} ")
        else:
            yield f"{prefix}{name}", command


def options_of(command):
    return {option for parameter in command.params for option in parameter.opts}


def test_every_command_that_prints_a_result_can_print_json():
    without = {name for name, command in commands() if "--json" not in options_of(command)}
    assert without <= JSON_BY_NATURE | SERVICE
    assert {"run", "show", "list", "plan", "reproduce", "report", "data show", "privacy plan"} <= {
        name for name, _ in commands()
    }


@pytest.mark.parametrize("name", ["run", "compare", "tune", "reproduce"])
def test_progress_can_be_switched_off_and_made_detailed(name):
    assert options_of(dict(commands())[name]) >= {"--quiet", "-q", "--verbose", "-v"}


def test_json_of_commands_that_show_things(cli, tmp_path):
    def last(*arguments):
        code, out, err = cli(*arguments, "--json")
        assert code == 0, err
        return json.loads(out)

    assert last("init", "a.toml") == {"config": "a.toml"}
    assert last("run", "a.toml", "--out", "run", *SHORT)["client_trips"] == 120
    shown = last("show", "run")
    assert shown["summary"]["client_trips"] == 120
    assert shown["evaluations"][-1]["trips"] == 120
    assert shown["evaluations"][-1]["accuracy"] == shown["summary"]["accuracy"]
    held = last("data", "show", "a.toml")
    assert held["clients"] == len(held["examples"]) == 100
    assert sum(held["labels"]) == sum(held["examples"])
    kinds = {entry["kind"]: entry for entry in last("list", "algorithms")}
    assert "lr" in {setting["name"] for setting in kinds["fedbuff"]["settings"]}
    assert "algorithms" in last("list")
    page = last("report", "run")
    assert (tmp_path / page["report"]).exists()
    assert (tmp_path / page["pictures"]).is_dir()


def test_a_quiet_run_shows_the_result_and_a_verbose_one_each_evaluation(cli, tmp_path):
    (tmp_path / "a.toml").write_text("evaluation = { every_trips = 40 }\n")
    quiet = cli("run", "a.toml", *SHORT, "--quiet")[1]
    verbose = cli("run", "a.toml", *SHORT, "-v")[1]
    assert "client trips" in quiet
    assert "40 trips, version" not in quiet
    lines = [line for line in verbose.splitlines() if "trips, version" in line]
    assert [line.split()[0] for line in lines] == ["0", "40", "80", "120"]
    assert all("accuracy" in line for line in lines)
    code, _, err = cli("run", "a.toml", "-q", "-v")
    assert code == 2
    assert "--quiet and --verbose: give one of them" in err


def test_a_shell_completes_commands_and_options():
    def completed(words, number):
        done = subprocess.run(
            [
                sys.executable,
                "-c",
                "import sys; sys.argv[0] = 'tardigrad'; from tardigrad.cli import app; app()",
            ],
            env=os.environ
            | {"_TARDIGRAD_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(number)},
            capture_output=True,
            text=True,
        )
        return done.stdout.split()

    assert completed("tardigrad com", 1) == ["compare"]
    assert "--verbose" in completed("tardigrad compare --v", 2)


def test_import_and_help_do_not_import_torch():
    check = "import sys, tardigrad, tardigrad.cli; assert not {'torch', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", check], check=True)


def test_compare_shows_failures_and_repeats_only_what_was_edited(cli, tmp_path):
    (tmp_path / "c.toml").write_text(
        """
        title = "two"
        seeds = [0, 1]
        targets = [0.3, 0.99]
        [base]
        stop = { trips = 300 }
        local = { batch_size = 8 }
        evaluation = { every_trips = 50 }
        [entries.FedBuff]
        [entries.broken]
        local = { lr = 1e30 }
        [entries."never there"]
        local = { lr = 1e-9 }
        """
    )
    code, out, err = cli("compare", "c.toml", "--out", "cmp", "--json")
    assert code == 3, "some runs failed"
    table = json.loads(out.strip().splitlines()[-1])
    rows = {row["entry"]: row for row in table["rows"]}
    assert rows["FedBuff"]["targets"]["0.3"]["reached"] == 2
    assert len(rows["broken"]["failed"]) == 2, "a failed run does not sink the others"
    assert rows["never there"]["targets"]["0.3"]["trips"] is None
    assert rows["FedBuff"]["targets"]["0.3"]["bytes"]["mean"] > 1e6
    assert "> 300" in err
    assert "never there missed 0.3 with every seed: the nearest came to 0." in err
    assert "FedBuff " in err, "entries are named on a terminal of 80 columns, too"
    for name in ("png", "json", "md", "csv", "tex"):
        assert (tmp_path / f"cmp/comparison.{name}").stat().st_size > 100
    assert "-seed0-" not in err, "without --verbose there is no line for each run"
    (finished,) = (tmp_path / "cmp").glob("FedBuff-seed0-*/summary.json")
    before = finished.stat().st_mtime_ns
    (tmp_path / "cmp/comparison.json").unlink()
    code, out, _ = cli("compare", "c.toml", "--out", "cmp", "--json")
    assert json.loads(out.strip().splitlines()[-1])["rows"][0] == rows["FedBuff"]
    assert finished.stat().st_mtime_ns == before, "a finished run is not repeated"
    text = (tmp_path / "c.toml").read_text()
    (tmp_path / "c.toml").write_text(text.replace("trips = 300", "trips = 200"))
    code, out, err = cli("compare", "c.toml", "--out", "cmp", "--json", "--verbose")
    assert json.loads(out.strip().splitlines()[-1])["rows"][0]["budget"]["trips"] == 200, (
        "an edited one is run anew"
    )
    ended = [line for line in err.splitlines() if "-seed" in line]
    assert sum("finished" in line for line in ended) == 4
    assert sum("is not finite" in line for line in ended if line.startswith("broken")) == 2


def test_compare_refuses_what_would_overwrite_itself(cli, tmp_path):
    (tmp_path / "c.toml").write_text('[entries."a b"]\n[entries."a-b"]\n')
    code, _, err = cli("compare", "c.toml", "--out", "cmp")
    assert code == 2
    assert "'a-b' and 'a b' would share a folder" in err
    (tmp_path / "file").write_text("")
    (tmp_path / "d.toml").write_text('[entries."a"]\n')
    assert cli("compare", "d.toml", "--out", "file")[0] == 2


def test_events_of_a_finished_run_that_were_cut_are_said_to_be(cli, tmp_path):
    cli("init", "a.toml")
    assert cli("run", "a.toml", "--out", "run", *SHORT)[0] == 0
    assert "was lost" not in " ".join(cli("show", "run")[1].split())
    events = tmp_path / "run/events.jsonl"
    events.write_text("".join(events.read_text().splitlines(keepends=True)[:-20]))
    code, out, _ = cli("show", "run")
    assert code == 0
    assert "Its end was lost, so that curves and counts of it are not of the whole run" in " ".join(
        out.split()
    )


@pytest.mark.parametrize("damage", ["[]", "{", "3", ""])
def test_damaged_records_are_named(cli, tmp_path, damage):
    cli("init", "a.toml")
    assert cli("run", "a.toml", "--out", "run", *SHORT)[0] == 0
    (tmp_path / "run/summary.json").write_text(damage)
    code, _, err = cli("show", "run")
    assert code == 3
    assert "summary.json is damaged" in err
    (tmp_path / "run/events.jsonl").write_text(damage + "\n")
    code, _, err = cli("show", "run")
    assert code == 3
    assert "events.jsonl, line 1: not an event" in err
    (tmp_path / "run/events.jsonl").write_text('{"event": "upload", "trip": 0}\n')
    code, _, err = cli("show", "run")
    assert code == 3
    assert "events.jsonl: the event in line 1 is damaged (client is missing)" in err


def test_a_folder_name_that_looks_like_markup_is_printed_as_it_is(cli):
    cli("init", "a.toml")
    assert cli("run", "a.toml", "--out", "out[/bold]", *SHORT)[0] == 0
    assert cli("show", "out[/bold]")[0] == 0


def test_an_unexpected_error_is_one_sentence(cli, monkeypatch):
    cli("init", "a.toml")

    def broken(*_):
        raise ZeroDivisionError("a bug\nof the package")

    monkeypatch.setattr("tardigrad.experiments.config.reading.load_config", broken)
    code, _, err = cli("run", "a.toml")
    assert code == 1
    assert "ZeroDivisionError: a bug of the package" in err
    assert "TARDIGRAD_DEBUG=1 shows where" in err
    assert err.count("\n") == 1


def test_an_error_in_an_own_algorithm_names_file_and_line(cli, tmp_path):
    cli("init", "a.toml")
    code = [
        "import tardigrad as td",
        "class Wrong(td.SumOnly):",
        "    def step(self, state, buffer):",
        "        1 / 0",
    ]
    (tmp_path / "wrong.py").write_text("\n".join(code))
    code, _, err = cli("run", "a.toml", "--set", "algorithm.kind=wrong.py:Wrong", *SHORT)
    assert code == 1
    assert "ZeroDivisionError: division by zero, at wrong.py:4 (TARDIGRAD_DEBUG=1" in err


def test_a_config_of_one_run_is_not_compared(cli):
    cli("init", "a.toml")
    code, _, err = cli("compare", "a.toml", "--out", "out")
    assert code == 2
    assert "a.toml: has no [entries.NAME] table, so that it is no comparison; `tardigrad run a.toml`" in err


def test_a_list_whose_name_is_nearly_right_is_suggested(cli):
    assert "did you mean 'algorithms'?" in cli("list", "algorithm")[2]
