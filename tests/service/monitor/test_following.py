"""An operator follows a run over the network: config, status and the bytes of the events."""

import asyncio

from service_harness import PATIENCE, replay, serving, trace_of

import tardigrad as td
from tardigrad.core.event_log import write_events
from tardigrad.service.monitor.following import (
    FollowedConfig,
    FollowedEvents,
    FollowedRestart,
    follow_server,
)
from tardigrad.service.monitor.status import Status

CONFIG = td.Config(
    data=td.Digits(partition=td.IID(clients=4)), model=td.MLP(hidden=(8,)),
    pace=td.Asynchronous(concurrency=2), buffer=td.Buffer(size=2), stop=td.Stop(trips=6),
    local=td.Local(steps=2, lr=0.1), service={"requests_per_second": 10_000, "poll_seconds": 0.05},
)  # fmt: skip


class Written:
    """A record that is written to a file, as the run's folder does."""

    def __init__(self, file):
        self._file = file.open("wb")

    def record(self, events):
        write_events(self._file, events)
        self._file.flush()

    def snapshot(self, tensors, document):
        pass

    def unrecovered(self):
        return []

    def recovered(self):
        pass


def followed(tmp_path, offset=0):
    simulation, _, steps = trace_of(CONFIG)
    (tmp_path / "config.toml").write_text(CONFIG.to_toml())
    events = tmp_path / "events.jsonl"

    async def scene():
        async with serving(CONFIG, tmp_path, Written(events)) as running, running.operator():
            parts = []

            async def follow():
                async for part in follow_server(running.address, running.signer("root"), None, "", offset):
                    parts.append(part)

            following = asyncio.ensure_future(follow())
            while not any(isinstance(part, Status) for part in parts):
                await asyncio.sleep(0.01)
            await replay(running, simulation, steps)
            await following  # it ends with the run
            return parts

    return asyncio.run(asyncio.wait_for(scene(), PATIENCE)), events.read_bytes()


def test_follower_gets_the_config_the_status_and_every_byte_of_the_events(tmp_path):
    parts, events = followed(tmp_path)
    assert parts[0] == FollowedConfig(CONFIG.to_toml())
    lines = [part for part in parts if isinstance(part, FollowedEvents)]
    assert b"".join(part.lines for part in lines) == events
    assert all(part.lines.endswith(b"\n") for part in lines)
    assert lines[-1].offset == len(events)
    statuses = [part for part in parts if isinstance(part, Status)]
    assert (statuses[0].over, statuses[-1].over) == ("", "trips")
    assert set(statuses[-1].last_seen) == {"0", "1", "2", "3"}, "an operator sees names"


def test_follower_whose_offset_is_behind_the_end_begins_anew(tmp_path):
    parts, events = followed(tmp_path, offset=10**9)
    assert isinstance(parts[1], FollowedRestart)
    assert b"".join(part.lines for part in parts if isinstance(part, FollowedEvents)) == events
