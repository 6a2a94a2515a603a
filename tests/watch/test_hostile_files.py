"""Files of a run that somebody else wrote: whatever is in them, the page answers, in bounded memory."""

import json
import random
import resource

import pytest
from page_server import append, get, served, stream
from some_events import a_run

from tardigrad.core.plain_json import plain_json
from tardigrad.watch.panels import PANELS, overview
from tardigrad.watch.run_readers import FolderReader

ODD = [
    None, True, 0, -1, 2**63, 10**400, -(10**400), 1e308, -1e308, 5e-324, float("nan"), float("inf"), "", "x",
    "\x00\x1b[2J\u202e\ud800", "<script>alert(1)</script>", "9" * 5000, [], [[]], {}, {"a": {"b": [1]}},
]  # fmt: skip


def shown(folder):
    """Read a run's folder and return everything that the page would send, as JSON."""
    reader = FolderReader(folder)
    for _ in range(10_000):
        if not reader.read():
            break
    reader.run.tick(1.0)
    reader.run.tick(2.0)
    parts = {name: panel(reader.run) for name, panel in PANELS.items()}
    parts["overview"] = overview(reader.run)
    for order in ("client", "trips", "share", "staleness", "last", "given_up", "refused", "nonsense"):
        parts[order] = reader.run.clients.page("", order, True, 0, reader.run.status)
    return json.loads(plain_json(parts))


def lines_of(folder):
    return [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]


def write_lines(folder, records):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "events.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))


def test_events_with_any_values_are_shown_or_left_out(tmp_path):
    append(tmp_path / "good", a_run(trips=30, private=True))
    good = lines_of(tmp_path / "good")
    draws = random.Random(11)
    for number in range(150):
        records = [dict(record) for record in good]
        for record in draws.sample(records, 8):
            name = draws.choice([*record, "metrics", "epsilon", "accuracy", "event"])
            record[name] = draws.choice(ODD)
        write_lines(tmp_path / str(number), records)
        found = shown(tmp_path / str(number))
        assert found["facts"]["trips"] >= 0, number


@pytest.mark.parametrize("name", ["status.json", "config.toml"])
def test_other_files_with_any_content_are_shown_or_left_out(tmp_path, name):
    append(tmp_path, a_run(trips=30))
    contents = [b"", b"\xff\xfe\x00", b"[" * 100_000, b"{" * 100_000, b'{"a":' * 50_000,
                b"a = " + b"[" * 50_000, b"NaN", b"null", b"[]", b"a = 1e999", b"stop = 3",
                b"[stop]\ntrips = nan\nsteps = inf",
                b"[stop]\ntrips = " + b"9" * 4000, b"[stop]\ntrips = 'x'\n[buffer]\nsize = [1]",
                b"[privacy]\nkind = 3\nepsilon = -inf\ndelta = '<b>'", b"x" * 3_000_000]  # fmt: skip
    for content in contents:
        (tmp_path / name).write_bytes(content)
        assert shown(tmp_path)["facts"]["trips"] == 30, content[:50]


def test_a_status_with_any_values_is_shown_or_refused(tmp_path):
    append(tmp_path, a_run(trips=30, end=False))
    good = {
        "version": 1, "trips": 2, "time": 3.0, "in_flight": 0, "waiting": 0, "staleness": 0.5, "given_up": 0,
        "uploads_refused": {"x": 1}, "metrics": {"loss": 1.0}, "over": "", "written": 5.0,
        "requests_refused": {"y": 2}, "last_seen": {"ann": 1.0}, "at_work": {"ann": 3},
        "started": {"ann": 1.0},
        "explanations": [{"severity": "error", "sentence": "No.", "remedy": "Yes.", "since": 3.0}],
    }  # fmt: skip
    draws = random.Random(12)
    for _ in range(400):
        status = json.loads(json.dumps(good))
        for name in draws.sample([*good], 2):
            value = draws.choice(ODD)
            kind = type(good[name])
            if kind is dict and draws.random() < 0.5:
                value = {str(draws.choice(ODD)): value}
            elif kind is list and draws.random() < 0.7:
                value = [
                    dict(good["explanations"][0], **{draws.choice(["severity", "sentence", "since"]): value})
                ]
            status[name] = value
        (tmp_path / "status.json").write_text(json.dumps(status))
        shown(tmp_path)


def test_huge_lines_control_characters_and_deep_nesting_are_left_out(tmp_path):
    append(tmp_path, a_run(trips=20, end=False))
    good = (tmp_path / "events.jsonl").read_bytes()
    bad = [
        b"[" * 200_000, b'{"event":' * 30_000, b"\x00" * 5000, b"{}", b"[]", b"null", b"1e999",
        b'"' + b"\\u0000" * 900,
        b'{"event": "upload", "client": "' + b"n" * 250_000 + b'"}', b"x" * 2_000_000,
    ]  # fmt: skip
    (tmp_path / "events.jsonl").write_bytes(good + b"\n".join(bad) + b"\n" + good.split(b"\n", 1)[1])
    found = shown(tmp_path)
    assert found["facts"]["accepted"] == 2 * 18
    assert found["facts"]["damaged"] >= len(bad) - 1


def test_names_and_reasons_of_any_length_are_cut(tmp_path):
    append(tmp_path, a_run(trips=20, end=False))
    records = lines_of(tmp_path)
    for record in records:
        if "client" in record:
            record["client"] = "n" * 100_000
        if record.get("reason"):
            record["reason"] = "r" * 100_000
    write_lines(tmp_path, records)
    assert len(json.dumps(shown(tmp_path))) < 600_000


def test_a_million_clients_cost_bounded_memory(tmp_path):
    append(tmp_path, a_run(trips=1, end=False))
    line = next(line for line in (tmp_path / "events.jsonl").read_text().splitlines() if '"upload"' in line)
    record = json.loads(line)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with (tmp_path / "events.jsonl").open("a") as file:
        for number in range(200_000):  # above the limit already; more cost only time
            record["trip"], record["client"] = number + 1, f"client-{number * 5}"
            file.write(json.dumps(record) + "\n")
    found = shown(tmp_path)
    assert found["facts"]["trips"] == 200_001
    assert found["client"]["unlisted"]
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert grown < 150, "megabytes"


def test_many_different_reasons_cost_bounded_memory(tmp_path):
    append(tmp_path, a_run(trips=1, end=False))
    records = lines_of(tmp_path)
    upload = next(one for one in records if one["event"] == "upload")
    records += [
        dict(upload, trip=n, accepted=False, reason=f"reason {n}", client="ann") for n in range(30_000)
    ]
    write_lines(tmp_path, records)
    found = shown(tmp_path)
    assert len(found["refusals"]["rows"]) <= 50
    assert all(len(row["refused"]) <= 50 for row in found["client"]["rows"])
    assert len(json.dumps(found)) < 300_000


def test_a_page_of_hostile_runs_is_served(tmp_path):
    draws = random.Random(13)
    for number in range(5):
        folder = tmp_path / f"<b>run {number}"
        append(folder, a_run(trips=30))
        records = lines_of(folder)
        for record in draws.sample(records, 15):
            record[draws.choice([*record])] = draws.choice(ODD)
        write_lines(folder, records)
    with served([tmp_path]) as address:
        for number in range(5):
            with stream(address, number) as following:
                assert "facts" in following()
            assert get(address, f"/clients?run={number}&sort=staleness")[0] == 200
