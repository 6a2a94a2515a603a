"""A run that is stopped and goes on from its snapshot has the events and the model of one that was not."""

import json

import torch

from tardigrad.experiments.runs.simulation_assembly import Simulation, build

STOPPED_AFTER = 50
"""Batches of events."""


def resumed_as_if_never_stopped(config) -> Simulation:
    """Return the uninterrupted simulation, after the comparison."""
    whole, stopped, resumed = build(config), build(config), build(config)
    expected = [event for events in whole.engine.run() for event in events]
    seen = []
    for position, events in enumerate(running := stopped.engine.run()):
        seen += events
        if position == STOPPED_AFTER:
            break
    running.close()
    tensors, document = stopped.engine.snapshot()
    resumed.engine.restore(tensors, json.loads(json.dumps(document)))
    assert seen + [event for events in resumed.engine.run() for event in events] == expected
    assert torch.equal(resumed.model, whole.model)
    return whole
