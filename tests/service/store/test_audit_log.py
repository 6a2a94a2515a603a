"""The audit log: its chain of hashes, what is noticed, and what recovery repairs."""

import hashlib
import json
import os
from itertools import pairwise

import pytest

from tardigrad.errors import RunError
from tardigrad.service.store.audit_log import AUDIT, FIELDS, FIRST, AuditHead, AuditLog
from tardigrad.service.store.audit_verification import verified
from tardigrad.service.store.contract import JournalEntry, StoreError

ACTS = [
    JournalEntry("pause", 1.0, admin="root", wall=1_700_000_000.25, reason="é and \x1b"),
    JournalEntry("limits", 2.0, admin="root", wall=1_700_000_001.0, limits='{"concurrency": 3.0}'),
    JournalEntry("eject", 3.0, client="ann", admin="eve", wall=1_700_000_002.0),
    JournalEntry("export", 4.0, version=7, digest=b"\x01" * 32, admin="eve", wall=1_700_000_003.0),
]


def written(folder, acts=ACTS):
    log = AuditLog(folder / AUDIT)
    for position, entry in enumerate(acts, 5):
        log.add(position, entry)
    log.sync()
    return log


def test_lines_say_who_did_what_and_have_the_hash_of_the_line_before(tmp_path):
    log = written(tmp_path)
    lines = [json.loads(line) for line in (tmp_path / AUDIT).read_text().splitlines()]
    assert verified(tmp_path / AUDIT) == lines
    assert [line["number"] for line in lines] == [1, 2, 3, 4]
    assert [line["arguments"] for line in lines] == [
        {}, {"concurrency": 3.0}, {"client": "ann"}, {"version": 7, "model_sha256": "01" * 32},
    ]  # fmt: skip
    assert lines[0]["previous"] == FIRST
    assert lines[0]["time"] == "2023-11-14T22:13:20.250+00:00"
    for before, line in pairwise(lines):
        assert line["previous"] == before["hash"]
    content = {name: value for name, value in lines[3].items() if name != "hash"}
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
    assert lines[3]["hash"] == hashlib.sha256(canonical.encode()).hexdigest() == log.head.hash
    assert log.synced == log.head


@pytest.mark.parametrize("name", sorted(FIELDS - {"number"}))
def test_every_changed_field_is_noticed(tmp_path, name):
    written(tmp_path)
    lines = (tmp_path / AUDIT).read_text().splitlines()
    fields = json.loads(lines[1])
    fields[name] = "x"
    lines[1] = json.dumps(fields)
    (tmp_path / AUDIT).write_text("\n".join(lines) + "\n")
    with pytest.raises(RunError, match=r"line 2: is broken"):
        verified(tmp_path / AUDIT)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda lines: lines[:1] + lines[2:], "line 2: is broken: it has the number 3"),
        (lambda lines: [lines[1], lines[0], *lines[2:]], "line 1: is broken: it has the number 2"),
        (lambda lines: [*lines[:2], "{", *lines[3:]], "line 3: is broken: it is not JSON"),
        (lambda lines: [*lines[:3], "[1]"], "line 4: is broken: it does not have the fields"),
        (lambda lines: ["[" * 100_000], "line 1: is broken"),
    ],
)
def test_missing_moved_and_malformed_lines_are_noticed(tmp_path, change, sentence):
    written(tmp_path)
    lines = change((tmp_path / AUDIT).read_text().splitlines())
    (tmp_path / AUDIT).write_text("\n".join(lines) + "\n")
    with pytest.raises(RunError, match=sentence):
        verified(tmp_path / AUDIT)


def test_line_without_an_end_is_broken(tmp_path):
    written(tmp_path)
    os.truncate(tmp_path / AUDIT, (tmp_path / AUDIT).stat().st_size - 1)
    with pytest.raises(RunError, match="line 4: is broken: it has no end"):
        verified(tmp_path / AUDIT)


def test_lines_that_were_cut_off_are_noticed_by_the_status(tmp_path):
    log = written(tmp_path)
    (tmp_path / "status.json").write_text(json.dumps({"acts": 4, "last_act": log.head.hash}))
    assert len(verified(tmp_path / AUDIT)) == 4
    kept = (tmp_path / AUDIT).read_text().splitlines()[:3]
    (tmp_path / AUDIT).write_text("\n".join(kept) + "\n")
    with pytest.raises(RunError, match=r"line 4: is missing: status\.json knows of 4 acts"):
        verified(tmp_path / AUDIT)
    (tmp_path / AUDIT).unlink()
    with pytest.raises(RunError, match="line 1: is missing"):
        verified(tmp_path / AUDIT)
    written(tmp_path, ACTS[::-1])  # another chain of the same length
    with pytest.raises(RunError, match=r"line 4: is broken: status\.json has another hash"):
        verified(tmp_path / AUDIT)


def test_recovery_writes_the_lines_that_are_missing_and_removes_a_torn_one(tmp_path):
    head = written(tmp_path).head
    whole = (tmp_path / AUDIT).read_bytes()
    for size in (0, 10, len(whole) - 1, len(whole) - 30, whole.index(b"\n") + 1, len(whole)):
        (tmp_path / AUDIT).write_bytes(whole[:size])
        log = AuditLog(tmp_path / AUDIT)
        for position, entry in enumerate(ACTS, 5):
            log.add(position, entry)
        log.recover(accept_loss=False)
        assert (tmp_path / AUDIT).read_bytes() == whole
        assert (log.head, log.synced, log.pending) == (head, head, False)


def test_recovery_from_a_snapshot_compares_the_lines_that_it_contains(tmp_path):
    written(tmp_path)
    whole = (tmp_path / AUDIT).read_text().splitlines()
    second = json.loads(whole[1])

    def recovered(accept_loss=False):
        log = AuditLog(tmp_path / AUDIT)
        log.head = AuditHead(2, second["hash"])
        for position, entry in enumerate(ACTS[2:], 7):
            log.add(position, entry)
        log.recover(accept_loss)
        return log

    (tmp_path / AUDIT).write_text("\n".join(whole[:3]) + "\n")
    recovered()
    assert (tmp_path / AUDIT).read_text().splitlines() == whole
    (tmp_path / AUDIT).write_text(whole[0] + "\n")
    with pytest.raises(RunError, match=r"has 1 lines, and the run knows of 2 acts; put audit\.jsonl back"):
        recovered()
    written_log = recovered(accept_loss=True)
    assert written_log.head == AuditHead(1, json.loads(whole[0])["hash"]), "it goes on after its last line"
    (tmp_path / AUDIT).unlink()
    written(tmp_path, [ACTS[0], ACTS[0], *ACTS[2:]])
    with pytest.raises(RunError, match=r"put audit\.jsonl back"):
        recovered()
    (tmp_path / AUDIT).write_text("{}\n")
    assert recovered(accept_loss=True).head == AuditHead()
    assert [file.name.split("-")[0] for file in tmp_path.iterdir()] == ["audit.jsonl.broken"]


def test_acts_that_the_run_has_lost_are_noticed(tmp_path):
    written(tmp_path)
    with pytest.raises(RunError, match="has 4 acts, and the run knows of 0"):
        AuditLog(tmp_path / AUDIT).recover(accept_loss=False)


def test_lines_that_cannot_be_written_are_written_later(tmp_path):
    log = AuditLog(tmp_path / "missing" / AUDIT)
    log.add(5, ACTS[0])
    with pytest.raises(StoreError, match="cannot be written"):
        log.sync()
    assert log.pending
    (tmp_path / "missing").mkdir()
    log.add(6, ACTS[1])
    log.sync()
    assert len(verified(tmp_path / "missing" / AUDIT)) == 2
