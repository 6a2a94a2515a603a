"""The helper's repetition of the server's steps."""

import numpy as np
import pytest
import torch
from secure_world import LR, NUMBERS, World

import tardigrad as td
from tardigrad.algorithms.aggregator import Aggregator
from tardigrad.core.outcomes import Accepted, Ticket
from tardigrad.core.upload import Upload
from tardigrad.encodings.common_grid import Grid
from tardigrad.encodings.layer import GridLayer
from tardigrad.errors import ConfigError
from tardigrad.privacy.releases import digest_of
from tardigrad.secure.batches import AdmittedUpload
from tardigrad.secure.policy import CodedVector, Facts
from tardigrad.secure.step_repetition import StepRepetition, stored_repetition
from tardigrad.service.protocol.task_settings import to_json


@pytest.mark.parametrize(
    "algorithm",
    [
        td.FedBuff(lr=LR, momentum="ema"), td.FedBuff(lr=LR, momentum="approximation"),
        td.WeightPrediction(lr=LR, expected_staleness=1.0), td.FADAS(), td.CA2FL(), td.MasFL(),
        td.FedAdam(), td.SCAFFOLD(),
    ],
    ids=lambda algorithm: algorithm.name,
)  # fmt: skip
def test_repeated_step_has_the_bits_of_the_servers(algorithm):
    """The server's half is the layer of simulations, over the same total."""
    random, facts = np.random.default_rng(0), Facts(population=4, buffer=4, steps=10, staleness_bound=4)
    model = torch.from_numpy(random.normal(size=NUMBERS).astype(np.float32))
    grid = Grid(uploads=4, denominator=256)
    server = Aggregator(
        algorithm, model, facts.situation(), layers=[GridLayer(grid, algorithm, lambda trip: trip, False)]
    )
    lengths = {name: vector.numel() for name, vector in server.empty_upload().items()}
    policy = World(
        settings=to_json(algorithm, td.Local()), staleness=algorithm.law, facts=facts, step=grid.step,
        largest=grid.largest, batch=4, vectors=tuple(
            CodedVector(name=name, length=length, discounted=name not in algorithm.undiscounted)
            for name, length in lengths.items()
        ),
    ).policy  # fmt: skip
    repetition = StepRepetition(policy, model)
    for version in range(4):
        total, members = np.zeros(sum(lengths.values()), np.int64), []
        for place in range(4):
            start = version if algorithm.synchronous else max(0, version - place)
            codes = random.integers(-9999, 9999, sum(lengths.values())).astype(np.int32)
            parts = torch.from_numpy(codes).split(list(lengths.values()))
            vectors = {f"{name}/codes": part for name, part in zip(lengths, parts)}
            weight = policy.weight(version - start)
            ticket = Ticket(place, place, start, 0.0)
            server.add(
                Accepted(ticket, 0.0, version, weight / 256, 1.0, place == 3),
                Upload(vectors, 1, 1, 0.0),
                model,
            )
            weights = np.repeat(policy.weights(version - start), list(lengths.values()))
            total += weights * codes
            members.append(AdmittedUpload(place, str(place), start, version + 1, place, weight))
        server.step()
        repetition = stored_repetition(policy, repetition.to_bytes())
        repeated = repetition.step(total.astype(np.uint32), members)
        assert {name: digest_of({name: vector}) for name, vector in repeated.items()} == {
            name: digest_of({name: vector}) for name, vector in server.broadcast().items()
        }
        repetition.adopt(server.broadcast())


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"settings": to_json(td.FedAsync(), td.Local())}, "looks at every upload by itself"),
        ({"settings": "{}"}, "cannot be read"),
        ({"settings": '{"algorithm": {"kind": "own.py:Own"}}'}, "an algorithm of its own"),
        ({"settings": to_json(td.SCAFFOLD(), td.Local())}, "scaffold uploads .*control"),
        ({"vectors": (CodedVector(name="delta", length=NUMBERS - 1),)}, "but the policy says"),
        ({"vectors": (CodedVector(name="delta", length=NUMBERS, discounted=False),)}, "but the policy says"),
        ({"law": td.Constant()}, "weighs late uploads by"),
    ],
)  # fmt: skip
def test_policy_that_does_not_fit_its_algorithm_is_refused(changes, match):
    world = World()
    changes = {"staleness" if name == "law" else name: value for name, value in changes.items()}
    policy = world.policy.model_copy(update=changes)
    with pytest.raises(ConfigError, match=match):
        StepRepetition(policy, world.models[0])


def test_step_that_would_not_be_finite_is_discarded_as_on_the_server():
    algorithm = td.FedBuff(lr=1e38)
    world = World(settings=to_json(algorithm, td.Local()))
    repetition = StepRepetition(world.policy, world.models[0])
    total = np.full(NUMBERS, 2**30, np.uint32)
    repeated = repetition.step(total, [AdmittedUpload(0, "ann", 0, 1, 0, 256)])
    assert torch.equal(repeated["model"], world.models[0])


def test_step_that_is_taken_back_was_never_made():
    algorithm = td.FedBuff(lr=LR, momentum="ema")
    world = World(settings=to_json(algorithm, td.Local()))
    repetition, never = (StepRepetition(world.policy, world.models[0]) for _ in range(2))
    members = [AdmittedUpload(0, "ann", 0, 1, 0, 256)]
    repetition.step(np.full(NUMBERS, 77, np.uint32), members)
    repetition.take_back()
    assert repetition.to_bytes() == never.to_bytes()
    total = np.arange(NUMBERS, dtype=np.uint32)
    assert torch.equal(repetition.step(total, members)["model"], never.step(total, members)["model"])
