"""Refused requests: statuses, sentences, counts and the log."""

import logging

import grpc
import pytest

from tardigrad.service.protocol.refusals import LONGEST, LONGEST_NAME, Cause, Refusals, Refused


@pytest.mark.parametrize("cause", Cause)
def test_every_reason_has_an_error_status(cause):
    assert Refused(cause, "why").status is not grpc.StatusCode.OK


def test_a_reason_without_a_status_of_its_own_is_an_invalid_argument():
    assert Refused(Cause.SHAPE, "why").status is grpc.StatusCode.INVALID_ARGUMENT
    assert Refused(Cause.RATE, "why").status is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_long_sentences_and_names_are_cut():
    assert Refused(Cause.SHAPE, "a" * LONGEST).sentence == "a" * LONGEST
    assert Refused(Cause.SHAPE, "a" * (LONGEST + 1)).sentence == "a" * LONGEST + "..."


def test_all_refusals_are_counted_and_repetitions_are_not_logged(caplog, monkeypatch):
    now = [100.0]
    monkeypatch.setattr("tardigrad.service.protocol.refusals.time.monotonic", lambda: now[0])
    caplog.set_level(logging.WARNING, "tardigrad.service")
    refusals = Refusals()
    for _ in range(3):
        refusals.note("ann" * LONGEST_NAME, "Join", Refused(Cause.RATE, "too fast"))
    refusals.note("", "Join", Refused(Cause.UNSIGNED, "not signed"))
    now[0] += 1.0
    refusals.note("bob", "Join", Refused(Cause.RATE, "too fast"))
    assert refusals.counts == {"too many requests": 4, "not signed": 1}
    assert [record.getMessage() for record in caplog.records] == [
        f"refused Join of {('ann' * LONGEST_NAME)[:LONGEST_NAME]} (too many requests): too fast",
        "refused Join of an unknown client (not signed): not signed",
        "refused Join of bob (too many requests): too fast",
    ]
