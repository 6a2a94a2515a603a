"""Encoded broadcasts on a real server: the simulator's bits and bytes, and clients that have a version."""

import asyncio

import numpy as np
import pytest
import torch
from service_harness import (
    Puppet,
    app_of,
    assert_served_as_simulated,
    fetched,
    serving,
    trace_of,
)

import tardigrad as td
from tardigrad.core.download_sizes import MOST_DIFFERENCES, DownloadSizes
from tardigrad.errors import RunError
from tardigrad.service.client.client_trainer import ClientTrainer
from tardigrad.service.client.downloads import Downloads
from tardigrad.service.protocol.wire import LARGEST_MESSAGE, to_wire
from tardigrad.service.server.published_versions import PublishedVersions
from tardigrad.service.server.task_broadcast import Broadcast


def config(broadcast, **changes):
    settings = {
        "data": td.Digits(partition=td.IID(clients=6)), "model": td.MLP(hidden=(8,)),
        "local": td.Local(batch_size=32, lr=0.1), "pace": td.Asynchronous(concurrency=4),
        "buffer": td.Buffer(size=3, staleness_bound=3), "delay": td.LogNormal(spread=1.0, give_up=0.1),
        "algorithm": "fedbuff", "stop": td.Stop(trips=24), "broadcast": broadcast,
        "service": {"requests_per_second": 10_000}, "evaluation": td.Evaluation(every_steps=4),
    }  # fmt: skip
    return td.Config(**(settings | changes))


DIFFERENCES = td.DifferenceBroadcast(encoding=td.Int4(block=64))
PRIVATE = {
    "kind": "participation", "clip": 0.5, "noise_multiplier": 0.1, "participations": 20, "noise_from": "seed",
}  # fmt: skip
CASES = {
    "bfloat16": config(td.BFloat16Broadcast()),
    "int8 differences": config(td.DifferenceBroadcast()),
    "int4 differences": config(DIFFERENCES),
    "sign differences": config(td.DifferenceBroadcast(encoding=td.Sign())),
    "topk differences": config(td.DifferenceBroadcast(encoding=td.TopK(share=0.1))),
    "differences and int8 uploads": config(DIFFERENCES, encoding=td.Int8(error_feedback=True)),
    "fedasync, differences": config(DIFFERENCES, algorithm="fedasync", buffer=td.Buffer(size=1)),
    "private, differences": config(DIFFERENCES, privacy=PRIVATE, encoding=td.Int8()),
    "fedac, bfloat16": config(td.BFloat16Broadcast(), algorithm="fedac"),
    "scaffold, differences": config(
        DIFFERENCES, algorithm="scaffold", pace=td.Synchronous(cohort=3, selected=4), buffer=td.Buffer()
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_server_gives_the_simulators_bits_and_bytes(case, tmp_path):
    assert_served_as_simulated(CASES[case], tmp_path)


def test_client_that_has_a_version_downloads_only_differences(tmp_path):
    simulation, _, _ = trace_of(config(DIFFERENCES, pace=td.Asynchronous(concurrency=1)))
    sizes = simulation.aggregator.download_sizes()

    async def scene():
        run = config(DIFFERENCES, pace=td.Asynchronous(concurrency=1), buffer=td.Buffer(size=1))
        async with serving(run, tmp_path) as running, running.connect("ann") as ann:
            puppet = Puppet(ann, ClientTrainer("ann", app_of(simulation, 0)), tmp_path / "ann")
            sent = []
            for _ in range(4):
                before = running.coordinator.counters.bytes_out
                trip = await puppet.fetch()
                sent.append(running.coordinator.counters.bytes_out - before)
                assert (await puppet.deliver(trip)).accepted
            async with running.connect("ann") as again:  # which knows nothing of the first connection
                before = running.coordinator.counters.bytes_out
                found = await fetched(again)
                sent.append(running.coordinator.counters.bytes_out - before)
            shared = running.coordinator.model_state.aggregator.broadcast()["model"]
            assert torch.equal(found.task.vectors["model"], shared)
            return sent

    sent = asyncio.run(scene())
    assert sent[0] == sent[4] == sizes.whole
    assert all(sizes.difference <= size < sizes.difference + 64 for size in sent[1:4])  # and gaps
    assert sizes.difference < sizes.whole / 7


def test_differences_that_the_client_cannot_mean_are_refused():
    downloads, encoding = Downloads(), td.DifferenceBroadcast()
    vectors = downloads.vectors(encoding, 0, 5, {"model": torch.zeros(1000)})
    assert torch.equal(vectors["model"], torch.zeros(1000))
    assert downloads.has == 6
    assert [part.name for part in downloads.expected(encoding, 6, 6)] == ["6/model/codes", "6/model/scales"]
    for since, version in ((5, 6), (7, 8), (6, 4)):
        with pytest.raises(RunError, match="has not"):
            downloads.expected(encoding, since, version)
    with pytest.raises(RunError, match="larger than the whole"):
        downloads.expected(encoding, 6, 10**9)
    bad = {"6/model/codes": torch.zeros(1000, dtype=torch.int8), "6/model/scales": torch.zeros(1)}
    with pytest.raises(RunError, match="cannot be decoded"):
        downloads.vectors(encoding, 6, 6, bad)
    assert downloads.has == 6


def test_a_difference_that_cannot_be_decoded_changes_nothing_of_what_the_client_has():
    downloads, encoding = Downloads(), td.DifferenceBroadcast()
    vectors = downloads.vectors(encoding, 0, 5, {"model": torch.zeros(1000)})
    received = {}
    for step, scale in ((6, 1.0), (7, 0.0)):
        received[f"{step}/model/codes"] = torch.ones(1000, dtype=torch.int8)
        received[f"{step}/model/scales"] = torch.full((1,), scale)
    with pytest.raises(RunError, match="cannot be decoded"):
        downloads.vectors(encoding, 6, 7, received)
    received["7/model/scales"].fill_(1.0)
    found = downloads.vectors(encoding, 6, 7, received)
    assert torch.equal(found["model"], vectors["model"] + 2)


def test_a_client_that_has_missed_many_small_differences_downloads_the_whole():
    """The list of a thousand differences of three vectors fits into a message."""
    vectors = {name: torch.zeros(400_000) for name in ("model", "direction", "control")}
    whole = Broadcast(vectors)
    small = td.DifferenceBroadcast(encoding=td.RandomK(share=1e-4))
    parts = {}
    for name, vector in vectors.items():
        parts |= small.follow(name, vector, vector, np.random.default_rng(0))[1]
    versions = PublishedVersions()
    first, last = 1_000_000, 1_000_000 + 2 * MOST_DIFFERENCES
    for version in range(first, last + 1):
        versions.publish(version, Broadcast(vectors, difference=parts))
    found = versions.since(last - MOST_DIFFERENCES, last, whole)
    assert found is not None
    assert sum(message.ByteSize() for message in to_wire(found.layout)) < LARGEST_MESSAGE / 2
    assert versions.since(last - MOST_DIFFERENCES - 1, last, whole) is None
    sizes = DownloadSizes(whole.size, found.size // MOST_DIFFERENCES)
    sizes.take("ann", first)
    assert sizes.take("ann", first + MOST_DIFFERENCES) < whole.size
    assert sizes.take("ann", last + 1) == whole.size
