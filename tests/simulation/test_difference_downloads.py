"""Downloads of differences between versions in virtual time: a client needs those since its own version."""

import pytest

import tardigrad as td
from tardigrad.core.outcomes import Accepted
from tardigrad.core.snapshot import read_snapshot, write_snapshot
from tardigrad.experiments.runs.simulation_assembly import build

RATE = 1000.0


def config(**changes):
    settings = {
        "algorithm": "fedbuff", "data": td.Digits(partition=td.IID(clients=9)), "model": td.MLP(hidden=(8,)),
        "broadcast": td.DifferenceBroadcast(encoding=td.Int4(block=64)), "stop": td.Stop(trips=60),
        "pace": td.Asynchronous(concurrency=4), "buffer": td.Buffer(size=2),
        "delay": td.ConstantDelay(duration=3),
        "network": td.Network(download=RATE, upload=10.0 * RATE), "local": td.Local(batch_size=32, lr=0.1),
    }  # fmt: skip
    return td.Config(**(settings | changes))


@pytest.mark.parametrize("latency", [0.0, 2.0])
def test_a_download_takes_as_long_as_the_differences_since_the_clients_version(latency):
    run = config(network=td.Network(download=RATE, upload=10.0 * RATE, latency=latency))
    simulation = build(run)
    size = simulation.assembly.trip_bytes
    assert size.difference < size.down / 7
    has, kinds = {}, set()
    starts = {}
    planner = simulation.planner
    for _ in range(200):
        for item in planner.advance():
            if isinstance(item, Accepted):
                start, expected = starts.pop(item.trip)
                spent = expected / RATE + 3 + size.up / (10 * RATE) + 2 * latency
                assert item.time - start == pytest.approx(spent, rel=1e-9)
                times = planner.times(item.trip, item.client)
                assert times.download == pytest.approx(expected / RATE + latency, rel=1e-9)
            elif hasattr(item, "version") and hasattr(item, "trip"):
                missed = item.version - has.get(item.client, item.version - 100)
                starts[item.trip] = item.time, min(size.down, missed * size.difference)
                kinds.add("whole" if missed * size.difference >= size.down else missed)
                has[item.client] = item.version
    assert {"whole", 1, 2} <= kinds


def test_resumed_run_downloads_the_same_bytes_in_the_same_time(tmp_path):
    run = config(availability="on_off", delay=td.HalfNormal(give_up=0.2))
    expected = list(build(run).engine.run())
    for stop in (2, 30, 51):
        first, again = build(run), build(run)
        events = [group for _, group in zip(range(stop), first.engine.run())]
        write_snapshot(tmp_path / "snapshot", *first.engine.snapshot())
        again.engine.restore(*read_snapshot(tmp_path / "snapshot"))
        assert events + list(again.engine.run()) == expected


def test_bfloat16_versions_are_downloaded_in_half_of_the_time():
    plain = build(config(broadcast="float32")).assembly.trip_bytes
    short = build(config(broadcast="bfloat16")).assembly.trip_bytes
    assert (2 * short.down, short.up, short.difference) == (plain.down, plain.up, None)
