"""The encoding layer in the simulator: error feedback, pieces, promises, and what is refused."""

import json

import pytest
import torch

import tardigrad as td
from tardigrad.algorithms.aggregator import Aggregator
from tardigrad.algorithms.registry import BUILT_IN
from tardigrad.core.outcomes import Accepted, Ticket
from tardigrad.core.situation import Situation
from tardigrad.core.snapshot import read_snapshot, write_snapshot
from tardigrad.core.upload import Task, Upload, bytes_of
from tardigrad.encodings.encoding import PIECE, encoding_random
from tardigrad.encodings.layer import EncodingLayer, encoding_layers
from tardigrad.experiments.runs.simulation_assembly import build

FEEDBACK = td.Int8(error_feedback=True)
CODED = [
    td.BFloat16(), td.Int8(), FEEDBACK, td.Int4(), td.Sign(), td.TopK(share=0.1), td.RandomK(share=0.1),
    td.Grid(),
]  # fmt: skip


def config(encoding, **changes):
    settings = {
        "data": td.Digits(partition=td.IID(clients=12)), "model": td.MLP(hidden=(4,)),
        "local": td.Local(batch_size=8, lr=0.1), "pace": td.Asynchronous(concurrency=8),
        "buffer": td.Buffer(size=3, staleness_bound=3), "delay": td.LogNormal(spread=1.0, give_up=0.1),
        "stop": td.Stop(trips=40), "encoding": encoding,
    }  # fmt: skip
    return td.Config(**(settings | changes))


def driven(simulation):
    return [event for events in simulation.engine.run() for event in events]


def name_of(encoding):
    return ",".join(str(value) for value in encoding.model_dump(exclude_none=True).values())


def delivery(trip, weight=1.0):
    return Accepted(Ticket(trip, trip, 0, 0.0), 1.0, 0, weight, 1.0, False)


@pytest.mark.parametrize("encoding", CODED, ids=name_of)
def test_resumed_run_has_the_same_bits(encoding, tmp_path):
    whole = build(config(encoding))
    events = driven(whole)
    part = build(config(encoding))
    groups = part.engine.run()
    before = [event for _ in range(31) for event in next(groups)]
    file = tmp_path / "snapshot.safetensors"
    write_snapshot(file, *part.engine.snapshot())
    rest = build(config(encoding))
    tensors, document = read_snapshot(file)
    rest.engine.restore(tensors, json.loads(json.dumps(document)))
    assert before + driven(rest) == events
    assert torch.equal(rest.model, whole.model)


@pytest.mark.parametrize("encoding", [FEEDBACK, td.Grid()], ids=name_of)
@pytest.mark.parametrize("algorithm", ["fedbuff", "ca2fl"])
def test_workers_give_the_same_bits(encoding, algorithm):
    one, two = (td.run(config(encoding, algorithm=algorithm), workers=workers) for workers in (0, 2))
    assert one.model_sha256 == two.model_sha256


@pytest.mark.parametrize("encoding", CODED, ids=name_of)
def test_bytes_of_a_run_are_those_of_the_announced_layout(encoding):
    simulation = build(config(encoding))
    driven(simulation)
    plain = build(config("float32"))
    driven(plain)
    down = 4 * len(plain.model)
    size = bytes_of(simulation.aggregator.upload_layout())
    assert plain.engine.bytes - simulation.engine.bytes == 40 * (down - size)


def test_float32_changes_nothing_and_has_no_layer():
    named, silent = build(config("float32")), build(config(td.Float32()))
    assert named.aggregator.layers == ()
    assert driven(named) == driven(silent)
    assert torch.equal(named.model, silent.model)


def test_memory_changes_only_with_uploads_that_count():
    simulation = build(config(FEEDBACK))
    seen = {}
    for events in simulation.engine.run():
        for event in events:
            if type(event).__name__ == "UploadReceived":
                client, memories = event.client, simulation.engine.memories
                before, now = seen.get(client), memories.get(client, {}).get("encoding/delta")
                if event.accepted:
                    assert now is not None
                    assert before is None or not torch.equal(before, now)
                    seen[client] = now.clone()
                else:
                    assert (now is None) == (before is None)
                    assert now is None or torch.equal(before, now)
    assert len(seen) > 3


@pytest.mark.parametrize(
    "encoding", [FEEDBACK, td.Sign(), td.TopK(share=0.05), td.RandomK(share=0.05)], ids=name_of
)
def test_with_error_feedback_nothing_is_lost_for_ever(encoding):
    (layer,) = encoding_layers(encoding, td.FedBuff(), lambda trip: trip)
    generator, memory = torch.Generator().manual_seed(0), {}
    given, sent = torch.zeros(500), torch.zeros(500)
    for trip in range(30):
        delta = torch.randn(500, generator=generator)
        task = Task(trip, 0, 0, {"model": torch.zeros(500)})
        parts = layer.client(Upload({"delta": delta}, 1, 1, 0.0), task, memory).vectors
        given, sent = given + delta, sent + encoding.decode("delta", parts, 500)
    assert torch.allclose(sent + memory["encoding/delta"], given, atol=1e-4)
    assert float(memory["encoding/delta"].norm()) < 30 * float(given.norm())


def test_changes_of_what_clients_remember_are_always_fed_back():
    """The server's mean of all controls follows from adding up changes, so no part of one may be lost."""
    simulation = build(config(td.Int4(), algorithm="ca2fl", stop=td.Stop(steps=40)))
    driven(simulation)
    memories = simulation.engine.memories
    assert len(memories) == 12
    told = sum(one["delta"] - one["encoding/difference"] for one in memories.values()) / 12
    assert torch.allclose(simulation.aggregator.state["cache"], told, atol=1e-5)


def test_aggregator_adds_pieces_as_a_naive_sum_in_float64():
    size = 2 * PIECE + 77
    for encoding in (td.Int8(), td.Sign(), td.TopK(share=0.01), td.Grid(limit=5.0, uploads=3)):
        layers = encoding_layers(encoding, td.FedBuff(), lambda trip: trip)
        values = Aggregator(td.FedBuff(), torch.zeros(size), Situation(population=5), layers=layers)
        total = torch.zeros(size, dtype=torch.float64)
        for trip, weight in enumerate((1.0, 0.5, 0.25)):
            delta = torch.randn(size, generator=torch.Generator().manual_seed(trip))
            task = Task(trip, trip, 0, {"model": torch.zeros(size)})
            upload = layers[0].client(Upload({"delta": delta}, 1, 1, 0.0), task, {})
            total += weight * encoding.decode("delta", upload.vectors, size).double()
            values.add(delivery(trip, weight), upload, torch.zeros(size))
        values.step()
        assert torch.allclose(values.state["model"].double(), -total / 3, atol=1e-6)


def test_fedasync_sends_the_change_of_the_model():
    layer = EncodingLayer(td.Int8(), td.FedAsync(), lambda trip: trip)
    start = torch.full((100,), 1000.0)
    values = Aggregator(td.FedAsync(alpha=1.0), start, Situation(population=5), layers=[layer])
    end = start + torch.linspace(-0.1, 0.1, 100)
    upload = layer.client(Upload({"model": end}, 1, 1, 0.0), Task(0, 0, 0, {"model": start}), {})
    values.add(delivery(0), upload, start)
    values.step()
    assert float((values.state["model"] - end).abs().max()) < 0.002, "one scale for 1000 would lose it all"


def test_random_numbers_of_a_trip_follow_from_the_seed_of_its_training():
    encoding, vector = td.Int8(), torch.linspace(-1, 1, 100)
    layer = EncodingLayer(encoding, td.FedBuff(), lambda trip: 1000 + trip)
    task = Task(7, 0, 0, {"model": torch.zeros(100)})
    found = layer.client(Upload({"delta": vector}, 1, 1, 0.0), task, {}).vectors
    assert torch.equal(
        found["delta/codes"], encoding.encode("delta", vector, encoding_random(1007))["delta/codes"]
    )


def test_upload_that_is_not_finite_ends_the_run():
    layer = EncodingLayer(td.Int8(), td.FedBuff(), lambda trip: trip)
    task = Task(7, 3, 0, {"model": torch.zeros(2)})
    with pytest.raises(td.RunError, match="trip 7 of client 3: the upload is not finite"):
        layer.client(Upload({"delta": torch.tensor([1.0, float("inf")])}, 1, 1, 0.0), task, {})


@pytest.mark.parametrize("encoding", [FEEDBACK, td.BFloat16(error_feedback=True)], ids=name_of)
def test_upload_that_cannot_be_encoded_is_zeros_in_a_private_run(encoding):
    """Whether a client delivers, now and later, must not depend on its data: not on numbers of a float64
    model that float32 does not have, and not on one that is rounded up to infinity."""
    layer = EncodingLayer(encoding, td.FedBuff(), lambda trip: trip, private=True)
    task, memory = Task(7, 3, 0, {"model": torch.zeros(2)}), {}
    largest = torch.finfo(torch.float32).max
    for vector in ([1.0, 1e200], [largest, largest], [largest, largest], [1.0, 0.0]):
        upload = Upload({"delta": torch.tensor(vector, dtype=torch.float64)}, 1, 1, 0.0)
        parts = layer.client(upload, task, memory).vectors
        assert torch.isfinite(memory["encoding/delta"]).all()
        if vector[1] > largest:
            assert not encoding.decode("delta", parts, 2).any()
    assert torch.isfinite(encoding.decode("delta", parts, 2)).all()


LOCAL = {"kind": "local", "clip": 0.5, "noise_multiplier": 0.1, "participations": 20, "noise_from": "seed"}
CENTRAL = {"kind": "participation", "noise_from": "seed", "clip": 0.5, "epsilon": 8.0, "participations": 4}


def test_error_feedback_with_local_privacy_is_refused():
    with pytest.raises(td.ConfigError, match=r"encoding\.error_feedback: with local privacy"):
        build(config(td.Sign(), privacy=LOCAL))
    build(config(td.Sign(error_feedback=False), privacy=LOCAL))


def test_with_local_privacy_noise_is_added_before_the_encoding():
    noise, encoding = build(config("int8", privacy=LOCAL)).aggregator.layers
    assert (noise.name, encoding.name) == ("local noise", "encoding")


@pytest.mark.parametrize("algorithm", ["fedbuff", "fedasync", "scaffold"])
def test_local_privacy_works_with_an_encoding_and_keeps_no_memory_of_it(algorithm):
    changes = {
        "fedasync": {"buffer": {"size": 1}},
        "scaffold": {"pace": td.Synchronous(cohort=3), "buffer": {}},
    }
    simulation = build(config("int8", privacy=LOCAL, algorithm=algorithm, **changes.get(algorithm, {})))
    driven(simulation)
    assert not any("encoding/" in name for memory in simulation.engine.memories.values() for name in memory)


def test_central_privacy_clips_what_was_decoded():
    simulation = build(config(td.Sign(), privacy=CENTRAL, stop=td.Stop(steps=4)))
    layers = simulation.aggregator.layers
    assert [layer.name for layer in layers] == ["encoding", "clip", "central noise"]
    sums = []
    clip = layers[1]
    add = clip.add

    def noted(buffer, delivery, upload, start):
        upload = add(buffer, delivery, upload, start)
        sums.append(float(upload.vectors["delta"].norm()))
        return upload

    clip.add = noted
    driven(simulation)
    assert sums
    assert max(sums) <= 0.5 * (1 + 1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_models_of_other_floats_are_encoded_from_float32(dtype):
    model = torch.nn.Linear(4, 2).to(dtype)
    generator = torch.Generator().manual_seed(0)
    clients = {
        name: (torch.randn(20, 4, generator=generator), torch.randint(0, 2, (20,), generator=generator))
        for name in "abc"
    }
    for encoding in ("int8", "grid", "topk"):
        result = td.run(
            model=model, clients=clients, test=clients["a"], encoding=encoding, stop=td.Stop(trips=12),
            buffer=td.Buffer(size=2), pace=td.Asynchronous(concurrency=3),
        )  # fmt: skip
        assert result.model["weight"].dtype == dtype
        assert bool(torch.isfinite(result.model["weight"]).all())


def test_vectorised_executor_and_poisson_pace_take_encodings():
    td.run(config(FEEDBACK, device={"kind": "cpu", "clients_at_once": 4}))
    for encoding in (td.Sign(), td.Grid()):
        result = td.run(
            config(
                encoding, algorithm="fedavg", pace=td.Poisson(probability=0.2), buffer=td.Buffer(),
                stop=td.Stop(steps=20),
            )
        )  # fmt: skip
        assert result.steps == 20, "a step of nobody counts too"


def test_short_form_and_unknown_kinds():
    assert td.Config(encoding="int8").encoding == td.Int8()
    with pytest.raises(td.ConfigError, match=r"encoding\.kind must be one of 'float32'.*got 'int7'"):
        td.Config(encoding="int7")


SUMS = [one for one in BUILT_IN if one.model_fields["kind"].default not in ("fedasync", "sgd")]
"""FedAsync uploads the model, of which the change from the start is encoded, and that rounds."""


@pytest.mark.parametrize("algorithm", SUMS, ids=lambda one: one.__name__)
def test_an_encoding_that_loses_nothing_changes_no_bit(algorithm):
    """Weights by examples, control variates and memories are treated alike with and without an encoding."""
    algorithm = algorithm(**({"expected_staleness": 1.5} if algorithm is td.WeightPrediction else {}))
    rounds = algorithm.synchronous
    pace = td.Queued(concurrency=6) if isinstance(algorithm, td.DeFedAvg) else td.Asynchronous(concurrency=6)
    size = None if rounds else 1 if algorithm.single_upload else 3
    settings = {
        "algorithm": algorithm, "data": td.Digits(partition=td.Dirichlet(clients=12, alpha=0.5)),
        "model": td.MLP(hidden=(8,)), "local": td.Local(batch_size=32, lr=0.05), "stop": td.Stop(trips=24),
        "pace": td.Synchronous(cohort=4) if rounds else pace, "evaluation": td.Evaluation(every_steps=100),
        "buffer": td.Buffer(size=size, weights="examples"),
    }  # fmt: skip
    plain = td.run(td.Config(**settings))
    assert plain.client_trips >= 24
    for feedback in (False, True):
        everything = td.TopK(share=1.0, error_feedback=feedback)
        assert td.run(td.Config(**settings, encoding=everything)).model_sha256 == plain.model_sha256
