"""The state of a run apart from its model."""

import asyncio
import json

from service_harness import serving, two_puppets
from upload_clients import CONFIG, SIMULATION


def test_state_does_not_change_when_the_run_goes_on(tmp_path):
    async def scene():
        async with (
            serving(CONFIG, tmp_path / "run") as running,
            two_puppets(running, SIMULATION, ("0", "1")) as puppets,
        ):
            await puppets[0].fetch()
            run_state = running.coordinator.run_state
            run_state.reports.enter(0, 3, {"loss": 1.0})
            state = run_state.state()
            before = json.dumps(state)
            run_state.reports.enter(0, 3, {"loss": 1.0})
            await puppets[0].deliver(0)
            await puppets[1].fetch()
            return before, json.dumps(state)

    before, after = asyncio.run(scene())
    assert before == after
