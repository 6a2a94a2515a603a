"""Checks of uploads: a bad one is refused and changes nothing."""

import asyncio
from dataclasses import replace

import grpc
import pytest
import torch
from service_harness import serving
from upload_clients import (
    CONFIG,
    changed,
    code_of,
    trained,
    with_delta,
)

from tardigrad.service.protocol.refusals import Cause

BAD = {
    "not a number": (lambda f: with_delta(f, float("nan")), Cause.VALUES),
    "infinite": (lambda f: with_delta(f, float("inf")), Cause.VALUES),
    "another shape": (lambda f: changed(f, vectors={"delta": torch.zeros(3)}), Cause.SHAPE),
    "huge": (lambda f: changed(f, vectors={"delta": torch.zeros(10_000_000)}), Cause.SHAPE),
    "another name": (lambda f: changed(f, vectors={"gift": f.upload.vectors["delta"]}), Cause.SHAPE),
    "no examples": (lambda f: changed(f, examples=0), Cause.NUMBERS),
    "too many examples": (lambda f: changed(f, examples=10_001), Cause.NUMBERS),
    "a loss that is none": (lambda f: changed(f, loss=float("nan")), Cause.VALUES),
    "another version": (lambda f: replace(f, version=7), Cause.VERSION),
    "a trip that never was": (lambda f: replace(f, trip=77), Cause.UNSOLICITED),
}


@pytest.mark.parametrize("what", BAD)
def test_a_bad_upload_is_refused_counted_and_changes_nothing(what, where_large, tmp_path):
    spoil, why = BAD[what]

    async def scene():
        async with serving(CONFIG, tmp_path) as running, running.connect("ann") as ann:
            finished = await trained(ann)
            before = running.coordinator.run_state.state()
            code = await code_of(ann.deliver(spoil(finished)))
            codes = {grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND}
            if what == "huge":  # the server hangs up while we write: gRPC may lose its word on the way
                codes.add(grpc.StatusCode.INTERNAL)
            assert code in codes
            assert running.refusals == {why: 1}
            assert running.coordinator.run_state.state() == before
            assert list((tmp_path / "uploads").iterdir()) == []
            assert running.server.servicer.reception.memory.used == 0
            assert (await ann.deliver(finished)).accepted  # the ticket is as good as before

    asyncio.run(scene())
