"""Helpers that lie: what the server notices, and what it says."""

import asyncio
import contextlib
import logging

import numpy as np
import pytest
import torch
from secure_federation import SecureFederation
from service_harness import PATIENCE, settled, trace_of
from test_helper_link import CONFIG, started

import tardigrad as td
from tardigrad.errors import RunError
from tardigrad.secure.receipts import SignedReceipt


@pytest.fixture(scope="module")
def simulation():
    return trace_of(CONFIG)[0]


@pytest.fixture
def federation(tmp_path, simulation):
    return SecureFederation(tmp_path, CONFIG, simulation, range(6))


def lie(helper, call, change):
    """Let a helper change what it answers to a call, from now on."""
    honest = getattr(helper.state, call)
    setattr(helper.state, call, lambda *given: change(honest(*given)))


async def one_step(federation, call, change, until):
    """Three clients deliver to a server whose helper lies, until something has happened."""
    async with contextlib.AsyncExitStack() as stack:
        helper, running, puppets = await stack.enter_async_context(started(federation, range(3)))
        lie(helper, call, change)
        for puppet in puppets:
            assert (await puppet.deliver(await puppet.fetch())).accepted
        while not until(running.coordinator):
            await asyncio.sleep(0.001)
        await settled(running)
        return running.coordinator


def done(scene):
    return asyncio.run(asyncio.wait_for(scene, PATIENCE))


def test_release_that_is_too_short_is_asked_for_again_and_said(federation, caplog):
    coordinator = done(one_step(federation, "close", lambda release: release[:-1], lambda it: it.link.away))
    assert coordinator.run_state.secure.released == 0
    assert "bytes; trying again until it is back" in caplog.text


def test_release_that_is_too_long_ends_the_run(federation):
    longer = lambda release: np.concatenate([release, release])  # noqa: E731
    coordinator = done(one_step(federation, "close", longer, lambda it: it.ended.done()))
    with pytest.raises(RunError, match="sent more than a release has"):
        coordinator.ended.result()


def test_release_of_other_masks_is_seen_in_the_sum(federation, caplog):
    """Nobody but the helper knows the masks. A wrong sum is all over the integers, which no uploads make."""
    noise = np.random.default_rng(0).integers(0, 2**32, 10**6, np.uint32)
    with caplog.at_level(logging.WARNING):
        coordinator = done(
            one_step(
                federation, "close", lambda release: release + noise[: len(release)],
                lambda it: it.ended.done() or it.run_state.secure.version == 1,
            )
        )  # fmt: skip
    assert "larger than its uploads can make them" in caplog.text
    with pytest.raises(RunError, match="the sum is not that of the masked sum"):
        coordinator.ended.result()


def test_receipt_of_an_older_version_ends_the_run(federation):
    async def scene():
        async with started(federation, range(3)) as (helper, running, puppets):
            old = helper.state.receipt
            lie(helper, "publish", lambda signed: old)
            for puppet in puppets:
                await puppet.deliver(await puppet.fetch())
            await asyncio.wait({running.coordinator.ended})
            return running.coordinator.ended

    with pytest.raises(RunError, match="has signed another version 1 than it was given"):
        done(scene()).result()


def test_receipt_with_another_signature_ends_the_run(federation):
    forged = lambda signed: SignedReceipt(signed.receipt, bytes(64))  # noqa: E731
    coordinator = done(one_step(federation, "publish", forged, lambda it: it.ended.done()))
    with pytest.raises(RunError, match="the receipt of version 1 is not signed by helper 1"):
        coordinator.ended.result()


def test_step_that_is_not_finite_is_discarded_by_server_and_helper(tmp_path, simulation):
    """The version counts and is signed, and the model stays."""
    config = CONFIG.model_copy(update={"algorithm": td.FedBuff(lr=1e41)})
    federation = SecureFederation(tmp_path, config, simulation, range(6))

    async def scene():
        async with started(federation, range(3)) as (helper, running, puppets):
            state, secure = running.coordinator.model_state, running.coordinator.run_state.secure
            start = state.aggregator.evaluated_model.clone()
            for version in (1, 2):
                for puppet in puppets:
                    assert (await puppet.deliver(await puppet.fetch())).accepted
                while secure.version < version:
                    assert not running.coordinator.ended.done()
                    await asyncio.sleep(0.001)
            assert state.discarded == 2
            assert torch.equal(state.aggregator.evaluated_model, start)
            assert torch.equal(helper.state.version()["model"], start)

    done(scene())
