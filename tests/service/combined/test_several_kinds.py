"""A plain, a private and a secure run on one server: each keeps its own promises."""

import asyncio
import contextlib
import random

from helper_harness import running_helper
from service_harness import PATIENCE, app_of, assert_simulated, trace_of
from several_runs import RunClients, serving_several
from test_secure_served import CONFIG as SECURE
from test_several_runs import done, together

import tardigrad as td
from tardigrad.experiments.runs.simulation_assembly import build
from tardigrad.service.access.identity import own_identity
from tardigrad.service.client.guardrails import Guardrails

SERVICE = {
    "requests_per_second": 10_000, "poll_seconds": 0.2, "linger_seconds": 0.0, "idle_seconds": PATIENCE,
}  # fmt: skip
NOISE = td.Participation(noise_multiplier=0.5, participations=20, separation=1)
PLAIN = SECURE.model_copy(
    update={
        "secure": None,
        "service": td.ServiceSettings(**SERVICE),
        "seed": 3,
        "algorithm": td.FedAC(),
        "buffer": td.Buffer(size=3, most_per_client=3),
    }
)
PRIVATE = PLAIN.model_copy(update={"privacy": NOISE, "algorithm": td.FedBuff(), "buffer": td.Buffer(size=3)})


def secured(helper):
    secure = SECURE.secure.model_copy(update={"helpers": (helper.address,)})
    service = td.ServiceSettings(**(SERVICE | {"linger_seconds": PATIENCE}))  # clients may have to come again
    return SECURE.model_copy(update={"secure": secure, "service": service})


def test_plain_private_and_secure_runs_are_served_together(tmp_path):
    simulations = {name: build(config) for name, config in (("plain", PLAIN), ("secure", SECURE))}
    keys = tmp_path / "keys"

    async def scene():
        server = own_identity(keys)
        async with running_helper(tmp_path, server) as helper:
            configs = {"plain": PLAIN, "private": PRIVATE, "secure": secured(helper)}
            async with serving_several(tmp_path, configs) as running:
                for name in map(str, range(6)):
                    running.signer(name)
                helper.enroll(running.signers)
                guardrails = Guardrails(helpers=(helper.identity,))
                clients = [
                    running.participant(
                        str(client),
                        name,
                        app_of(simulations["secure" if name == "secure" else "plain"], client),
                        **({"guardrails": guardrails} if name == "secure" else {}),
                    )
                    for name in configs
                    for client in range(6)
                ]
                reasons = await asyncio.gather(*(client.take_part() for client in clients))
                running.process._ask_to_stop()  # all clients have heard the end
                await running.work
                version = running.runs["secure"].coordinator.run_state.book.version
                assert helper.state.receipt.receipt.version == version
                return reasons

    assert done(scene()) == ["trips"] * 18
    for name in ("plain", "private", "secure"):
        assert (tmp_path / "runs" / name / "summary.json").exists()
    private = tmp_path / "runs" / "private"
    assert (private / "releases.log").exists()
    assert not (private / "noise.keys").exists()
    assert not (tmp_path / "runs" / "plain" / "releases.log").exists()


def test_the_plain_run_beside_a_private_one_has_its_own_bits(tmp_path):
    simulation, events, steps = trace_of(PLAIN)
    private, _, other = trace_of(PRIVATE)

    async def scene():
        configs = {"plain": PLAIN, "private": PRIVATE}
        async with contextlib.AsyncExitStack() as stack, serving_several(tmp_path, configs) as running:
            clients = {
                "plain": RunClients(running, "plain", simulation, stack),
                "private": RunClients(running, "private", private, stack),
            }
            for name, step in together({"plain": steps, "private": other}, random.Random(1)):
                await clients[name].do(*step)
            await running.work

    done(scene())
    assert_simulated(tmp_path / "runs" / "plain", PLAIN, events)


def test_a_helper_that_is_away_does_not_hold_up_the_other_runs(tmp_path):
    simulation = build(PLAIN)

    async def scene():
        server = own_identity(tmp_path / "keys")
        async with running_helper(tmp_path, server) as helper:
            config = secured(helper)
        async with serving_several(tmp_path, {"secure": config, "plain": PLAIN}) as running:
            clients = [running.participant(str(c), "plain", app_of(simulation, c)) for c in range(4)]
            assert await asyncio.gather(*(client.take_part() for client in clients)) == ["trips"] * 4
            assert running.runs["secure"].over is None
            assert not running.runs["secure"].failed

    done(scene())
