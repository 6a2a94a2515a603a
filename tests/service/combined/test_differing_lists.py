"""Two helpers with different lists of clients: both admit an upload, or none, and the run goes on."""

import asyncio
import contextlib

import pytest
from secure_federation import SecureFederation
from service_harness import PATIENCE, trace_of
from test_helper_link import CONFIG

import tardigrad as td
from tardigrad.secure.helper_refusals import NOT_LISTED
from tardigrad.service.access.enrolment import LIST
from tardigrad.service.server.helper_connection import HelperAway, HelperConnection

TWO = CONFIG.model_copy(update={"secure": td.Secure(least_clients=2, helpers=2)})


@pytest.fixture
def federation(tmp_path):
    return SecureFederation(tmp_path, TWO, trace_of(TWO)[0], range(6), helpers=2)


def remove(helper, name):
    """Remove a client from the list of a helper."""
    rows = (helper.keys / LIST).read_text().splitlines(keepends=True)
    (helper.keys / LIST).write_text("".join(row for row in rows if not row.startswith(f"{name} ")))


async def rounds(federation, before=lambda helpers: None):
    """Let four clients take part twice; return their answers and the state of the server."""
    async with contextlib.AsyncExitStack() as stack:
        helpers = await stack.enter_async_context(federation.helpers())
        running = await stack.enter_async_context(federation.serving())
        before(helpers)
        found = [await stack.enter_async_context(federation.client(running, client)) for client in range(4)]
        answers = []
        for _ in range(2):
            for puppet in found:
                answers.append(await puppet.deliver(await puppet.fetch()))
        secure = running.coordinator.run_state.secure
        while secure.version < 2:
            assert not running.coordinator.ended.done()
            await asyncio.sleep(0.001)
        assert {helper.state.receipt.receipt for helper in helpers} == {secure.last}
        return [(answer.accepted, answer.reason) for answer in answers]


def test_client_that_one_helper_does_not_know_is_refused_and_the_others_go_on(federation):
    answers = asyncio.run(
        asyncio.wait_for(rounds(federation, lambda helpers: remove(helpers[1], "0")), PATIENCE)
    )
    assert answers == [(False, NOT_LISTED), (True, ""), (True, ""), (True, "")] * 2


@pytest.mark.parametrize("lost", [False, True], ids=["", "and a call is lost"])
def test_client_that_leaves_a_list_between_check_and_admission_is_admitted_by_both(
    federation, monkeypatch, lost
):
    """With a call that is lost, one helper has admitted the upload, and the other is asked anew."""
    original, second = HelperConnection.admit, []

    async def admit(connection, deliveries, check_only):
        if not check_only and connection.address.endswith(f":{federation.ports[1]}") and len(second) == 1:
            remove(second[0], "0")
            second.append("removed")
            if lost:
                raise HelperAway("the network is down")
        return await original(connection, deliveries, check_only)

    monkeypatch.setattr(HelperConnection, "admit", admit)
    answers = asyncio.run(
        asyncio.wait_for(rounds(federation, lambda helpers: second.append(helpers[1])), PATIENCE)
    )
    assert answers == [(True, "")] * 4 + [(False, NOT_LISTED), (True, ""), (True, ""), (True, "")]
