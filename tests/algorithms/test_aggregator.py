"""The aggregator: what an algorithm is given, empty steps, and going on in the middle of a buffer."""

import json
from typing import Literal

import pytest
import torch

import tardigrad as td
from tardigrad.algorithms.aggregator import Aggregator
from tardigrad.core.bookkeeping import Bookkeeping, Buffer
from tardigrad.core.outcomes import Reason, Rejected
from tardigrad.core.pace import Asynchronous
from tardigrad.core.situation import Situation
from tardigrad.core.upload import Member, Received, Upload, WeightedSum

GIVEN = []
"""What the algorithms below were given, the newest last."""


class Sums(td.SumOnly):
    kind: Literal["sums"] = "sums"

    def step(self, state, buffer):
        GIVEN.append(buffer)
        state["model"] = state["model"] - buffer.mean()
        return {}


class Singles(td.Individual):
    kind: Literal["singles"] = "singles"

    def step(self, state, buffer, version):
        GIVEN.append((version, list(buffer)))
        state["model"] = state["model"] - sum(r.upload.vectors["delta"] for r in buffer) / len(buffer)
        return {}


def deliveries(staleness, examples, weights="equal"):
    """Accepted deliveries of these stalenesses into one buffer, after three versions."""
    book = Bookkeeping(Asynchronous(concurrency=99), Buffer(size=1, weights=weights), td.Polynomial(a=0.5))
    tickets = {}
    for version in range(4):
        for n, late in enumerate(staleness):
            if 3 - version == late:
                tickets[n] = book.check_in(f"client {n}", float(version))
        if version < 3:
            book.deliver(book.check_in("quick", 0.0).trip, 0.0)
    book.buffer = Buffer(size=len(staleness), weights=weights)
    return [book.deliver(tickets[n].trip, 9.0, examples[n]) for n in range(len(staleness))]


def vectors(*values):
    return {"delta": torch.tensor(values)}


def test_sum_only_algorithm_is_given_the_weighted_sum_and_no_single_upload():
    aggregator = Aggregator(Sums(), torch.zeros(2), Situation(population=5))
    aggregator.version = 3
    uploads = [Upload(vectors(1.0, 2.0), 10, 1, 0.5), Upload(vectors(4.0, -8.0), 20, 1, 0.5)]
    for delivery, upload in zip(deliveries([0, 3], [10, 20]), uploads):
        aggregator.add(delivery, upload, torch.zeros(2))
    aggregator.step()
    given = GIVEN[-1]
    assert isinstance(given, WeightedSum)
    assert given.sums["delta"].tolist() == [1.0 + 0.5 * 4.0, 2.0 - 0.5 * 8.0]
    assert given.divisor == 2.0
    assert given.version == 3
    assert given.members == (Member(3, 0, 1.0, 1.0), Member(0, 3, 0.5, 1.0))
    assert aggregator.version == 4


def test_by_examples_the_divisor_is_the_number_of_examples():
    aggregator = Aggregator(Sums(), torch.zeros(2), Situation(population=5))
    uploads = [Upload(vectors(1.0, 2.0), 10, 1, 0.5), Upload(vectors(4.0, -8.0), 30, 1, 0.5)]
    for delivery, upload in zip(deliveries([0, 3], [10, 30], "examples"), uploads):
        aggregator.add(delivery, upload, torch.zeros(2))
    aggregator.step()
    given = GIVEN[-1]
    assert given.divisor == 40.0
    assert given.sums["delta"].tolist() == [10 * 1.0 + 15 * 4.0, 10 * 2.0 - 15 * 8.0]
    assert given.mean().tolist() == [1.75, -2.5]


def test_an_individual_algorithm_is_given_every_upload_and_its_start():
    aggregator = Aggregator(Singles(), torch.zeros(2), Situation(population=5))
    starts = [torch.tensor([7.0, 7.0]), torch.tensor([8.0, 8.0])]
    uploads = [Upload(vectors(1.0, 2.0), 10, 3, 0.5), Upload(vectors(4.0, -8.0), 20, 4, 0.25)]
    for delivery, upload, start in zip(deliveries([1, 2], [10, 20]), uploads, starts):
        aggregator.add(delivery, upload, start)
    aggregator.step()
    version, (first, second) = GIVEN[-1]
    assert isinstance(first, Received)
    for received, upload in zip((first, second), uploads):
        assert received.upload.vectors["delta"].tolist() == upload.vectors["delta"].tolist()
        assert (received.upload.steps, received.upload.loss) == (upload.steps, upload.loss)
    assert (first.start.tolist(), second.start.tolist()) == ([7.0, 7.0], [8.0, 8.0])
    assert (first.member.staleness, second.member.staleness) == (1, 2)
    assert version == 0


def test_uploads_are_not_changed_and_buffers_do_not_mix():
    aggregator = Aggregator(Sums(), torch.zeros(2), Situation(population=5))
    upload = Upload(vectors(1.0, 2.0), 1, 1, 0.0)
    for _ in range(2):
        for delivery in deliveries([0, 0, 0], [1, 1, 1]):
            aggregator.add(delivery, upload, torch.zeros(2))
        aggregator.step()
        assert GIVEN[-1].sums["delta"].tolist() == [3.0, 6.0]
        assert len(GIVEN[-1].members) == 3
    assert upload.vectors["delta"].tolist() == [1.0, 2.0]
    assert aggregator.state["model"].tolist() == [-2.0, -4.0]


@pytest.mark.parametrize("algorithm", [Sums(), Singles()])
def test_the_driver_may_use_the_memory_of_an_upload_again(algorithm):
    aggregator = Aggregator(algorithm, torch.zeros(2), Situation(population=5))
    for delivery, delta in zip(deliveries([0, 0], [1, 1]), ([1.0, 2.0], [3.0, 4.0])):
        upload = Upload(vectors(*delta), 1, 1, 0.0)
        aggregator.add(delivery, upload, torch.zeros(2))
        upload.vectors["delta"].fill_(99.0)
    aggregator.step()
    assert aggregator.state["model"].tolist() == [-2.0, -3.0]


def test_rejected_upload_cannot_be_added():
    aggregator = Aggregator(Sums(), torch.zeros(2), Situation(population=5))
    refused = Rejected(deliveries([0], [1])[0].ticket, 9.0, 3, Reason.STALE, closes=False)
    with pytest.raises(AssertionError):
        aggregator.add(refused, Upload(vectors(1.0, 2.0), 1, 1, 0.0), torch.zeros(2))


@pytest.mark.parametrize("algorithm", [Sums(), Singles()])
def test_an_empty_step_counts_and_leaves_the_model(algorithm):
    before = len(GIVEN)
    aggregator = Aggregator(algorithm, torch.ones(2), Situation(population=5), model_average=0.5)
    assert aggregator.step() == {}
    assert aggregator.version == 1
    assert aggregator.state["model"].tolist() == [1.0, 1.0]
    assert len(GIVEN) == before


@pytest.mark.parametrize("algorithm", [td.FedBuff(momentum=td.EMA()), td.FedAdam(), Singles()])
def test_aggregator_is_restored_in_the_middle_of_a_buffer(algorithm):
    def begin():
        return Aggregator(algorithm, torch.ones(2), Situation(population=5), model_average=0.9)

    uploads = [Upload(vectors(float(n), 1.0 / (n + 1)), n + 1, n, 0.1 * n) for n in range(6)]
    starts = [torch.full((2,), float(n)) for n in range(6)]
    arrived = deliveries([0, 1, 2, 3, 0, 1], [1] * 6)

    def feed(aggregator, which):
        for n in which:
            aggregator.add(arrived[n], uploads[n], starts[n])
            if n in (2, 5):
                aggregator.step()

    whole = begin()
    feed(whole, range(6))
    half = begin()
    feed(half, range(4))
    tensors, rest = half.snapshot()
    resumed = begin()
    resumed.restore(tensors, json.loads(json.dumps(rest)))
    feed(resumed, range(4, 6))
    assert resumed.version == whole.version == 2
    for name in ("model", "model_average"):
        assert torch.equal(resumed.state[name], whole.state[name])


def test_running_average_is_evaluated_if_it_is_set():
    plain = Aggregator(Sums(), torch.ones(2), Situation(population=5))
    assert plain.evaluated_model is plain.state["model"]
    averaged = Aggregator(Sums(), torch.ones(2), Situation(population=5), model_average=0.75)
    for delivery in deliveries([0], [1]):
        averaged.add(delivery, Upload(vectors(4.0, 8.0), 1, 1, 0.0), torch.ones(2))
    averaged.step()
    assert averaged.state["model"].tolist() == [-3.0, -7.0]
    assert averaged.evaluated_model.tolist() == [0.75 - 0.75, 0.75 - 1.75]
    assert averaged.broadcast()["model"] is averaged.state["model"]


class Returning(td.SumOnly):
    kind: Literal["returning"] = "returning"

    def step(self, state, buffer):
        return 3


def test_what_a_step_must_return_is_said():
    said = "Returning.step must return a dict of metrics or None, not 3"
    with pytest.raises(td.RunError, match=said):
        td.run(algorithm=Returning(), stop={"trips": 20})
