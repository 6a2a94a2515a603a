"""Models in bfloat16 and float16: sums are in float32 or better, and no upload exceeds the clip."""

import random

import pytest
import torch

import tardigrad as td
from observers import InterruptAfter
from private_aggregators import centrally_private, locally_private
from tardigrad.algorithms.aggregator import Aggregator
from tardigrad.algorithms.registry import BUILT_IN
from tardigrad.core.outcomes import Accepted, Ticket
from tardigrad.core.situation import Situation
from tardigrad.core.upload import Upload
from tardigrad.experiments.runs.simulation_assembly import build
from tardigrad.privacy.clipping import AdaptiveClip, clipped
from tardigrad.privacy.normal import Seeded
from tardigrad.privacy.settings import LocalPrivacy, Participation

SHORT = [torch.bfloat16, torch.float16]
each_dtype = pytest.mark.parametrize("dtype", SHORT, ids=str)
K, CLIP = 500, 0.3


def delivery(trip, staleness=0, weight=1.0, version=0):
    return Accepted(Ticket(trip, trip, version - staleness, 0.0), 1.0, version, weight, 1.0, False)


# -- sensitivity ---------------------------------------------------------------------------------------


def released(uploads, weights, without=None):
    """The sum of a buffer as it leaves the mechanism, without noise; one client's upload may be zeros."""
    privacy = Participation(participations=1, noise_multiplier=0.0, clip=CLIP)
    guarantee = privacy.guarantee(1, K, td.Asynchronous(), td.Buffer(size=K))
    model = torch.zeros_like(uploads[0])
    aggregator = centrally_private(td.FedBuff(), model, Situation(K, K, 9, 1), guarantee, Seeded)
    for trip, (upload, weight) in enumerate(zip(uploads, weights)):
        delta = torch.zeros_like(upload) if trip == without else upload
        aggregator.add(delivery(trip, weight=weight), Upload({"delta": delta}, 1, 1, 0.0), model)
    return aggregator._open.sums["delta"].double()


@each_dtype
@pytest.mark.parametrize("alike", [True, False], ids=["one direction", "all directions"])
@pytest.mark.parametrize("seed", range(4))
def test_one_client_of_500_moves_the_sum_by_at_most_the_clip(dtype, alike, seed):
    draw, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    law = td.Polynomial()
    direction = torch.randn(20, generator=generator)
    uploads, weights = [], []
    for _ in range(K):
        one = direction if alike else torch.randn(20, generator=generator)
        uploads.append((one * 10 ** draw.uniform(-2, 3)).to(dtype))
        weights.append(law(draw.randint(0, 9)))
    victims = [0, K - 1, *(draw.randrange(K) for _ in range(4))]
    whole = released(uploads, weights)
    for victim in victims:
        moved = float((whole - released(uploads, weights, without=victim)).norm())
        assert moved <= CLIP * weights[victim] * (1 + 1e-6)
    assert moved > 0


@each_dtype
def test_an_upload_is_clipped_before_it_is_rounded(dtype):
    """Rounding to a short float can make a vector longer than the clip."""
    generator = torch.Generator().manual_seed(1)
    longer = 0
    for _ in range(50):
        vector = (5 * torch.randn(30, generator=generator)).to(dtype)
        short, within = clipped({"delta": vector}, CLIP)
        assert not within
        assert float(short["delta"].double().norm()) <= CLIP
        longer += float(short["delta"].to(dtype).double().norm()) > CLIP
    assert longer > 0, "else this shows nothing"
    small = torch.full((3,), 0.01, dtype=dtype)
    assert clipped({"delta": small}, CLIP)[0]["delta"] is small


# -- the server's state --------------------------------------------------------------------------------

ALGORITHMS = [
    kind(buckets=2) if "buckets" in kind.model_fields else kind() for kind in BUILT_IN if kind is not td.FedAC
]
ALGORITHMS += [
    td.FedAC(weights="uniform"), td.FedBuff(momentum=td.HeavyBall()), td.FedBuff(momentum=td.Approximation()),
    td.FedBuff(preconditioner=td.Yogi()), td.RobustFedBuff(mean=td.Median()),
]  # fmt: skip


@each_dtype
@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=repr)
def test_the_state_is_that_of_a_float32_model_given_the_same_uploads(algorithm, dtype):
    generator = torch.Generator().manual_seed(3)
    situation = Situation(population=20, buffer=4, staleness_bound=3, steps=6, local_steps=2)
    model = torch.randn(7, generator=generator).to(dtype)
    short = Aggregator(algorithm, model, situation, model_average=0.9)
    wide = Aggregator(algorithm, model.float(), situation, model_average=0.9)
    size = 1 if algorithm.single_upload else 4
    for version in range(6):
        for trip in range(size):
            vectors = {
                name: (1e-2 * torch.randn(v.shape, generator=generator)).to(dtype)
                for name, v in short.empty_upload().items()
            }
            one = delivery(trip, staleness=0, weight=0.7, version=version)
            short.add(one, Upload(vectors, 1, 1, 0.0), model)
            vectors = {name: vector.float() for name, vector in vectors.items()}
            wide.add(one, Upload(vectors, 1, 1, 0.0), model.float())
        assert short.step() == wide.step()
        assert short.state.keys() == wide.state.keys()
        for name, value in wide.state.items():
            if isinstance(value, torch.Tensor):
                assert short.state[name].dtype == value.dtype
                assert torch.equal(short.state[name], value), name
        for name, vector in wide.broadcast().items():
            assert torch.equal(short.broadcast()[name], vector.to(dtype)), name
        assert short.evaluated_model.dtype == dtype
        assert torch.equal(short.evaluated_model, wide.evaluated_model.to(dtype))


@each_dtype
def test_small_steps_of_short_floats_add_up(dtype):
    step = 2.0**-12  # next to 1 no short float shows it
    model = torch.ones(3, dtype=dtype)
    aggregator = Aggregator(td.FedAvg(), model, Situation(population=5))
    for version in range(1024):
        delta = torch.full((3,), step, dtype=dtype)
        aggregator.add(delivery(0, version=version), Upload({"delta": delta}, 1, 1, 0.0), model)
        aggregator.step()
    assert aggregator.evaluated_model.tolist() == [0.75] * 3


@each_dtype
def test_fedac_knows_a_fresh_upload_of_a_model_that_was_rounded(dtype):
    generator = torch.Generator().manual_seed(5)
    model = torch.randn(9, generator=generator).to(dtype)
    aggregator = Aggregator(td.FedAC(), model, Situation(9, 2, 3, 9))
    for version in range(3):
        start = aggregator.broadcast()["model"]
        for trip in range(2):
            vectors = {name: torch.randn(9, generator=generator).to(dtype) for name in ("delta", "control")}
            aggregator.add(delivery(trip, version=version), Upload(vectors, 1, 1, 0.0), start)
        assert aggregator.step()["fresh"] == 2.0


@each_dtype
def test_local_noise_is_added_in_float32(dtype):
    guarantee = LocalPrivacy(noise_multiplier=1.0, clip=0.5).guarantee(
        1, 9, td.Asynchronous(), td.Buffer(size=1)
    )
    start = torch.full((40,), 3.0, dtype=dtype)
    for algorithm, upload in (
        (td.FedAC(), {"delta": torch.ones(40, dtype=dtype), "control": torch.zeros(40, dtype=dtype)}),
        (td.FedAsync(), {"model": start + 1}),
    ):
        aggregator = locally_private(algorithm, start, Situation(9, 1, 5, 1), guarantee, Seeded)
        aggregator.add(delivery(0), Upload(upload, 1, 1, 0.0), start)
        (received,) = aggregator._open.received
        for name, vector in received.upload.vectors.items():
            assert vector.dtype == torch.float32
            assert not torch.equal(vector, vector.to(dtype).float()), f"{name} was rounded"


# -- runs ----------------------------------------------------------------------------------------------


def parts(dtype, **settings):
    generator = torch.Generator().manual_seed(7)
    clients = {
        i: (torch.randn(8, 4, generator=generator), torch.randint(0, 3, (8,), generator=generator))
        for i in range(24)
    }
    torch.manual_seed(0)
    common = {
        "buffer": td.Buffer(size=3, staleness_bound=5, once_per_client=True),
        "pace": td.Asynchronous(concurrency=9), "local": td.Local(batch_size=4, lr=0.1),
        "stop": td.Stop(steps=16), "evaluation": td.Evaluation(every_steps=1, model_average=0.5),
    }  # fmt: skip
    model = torch.nn.Linear(4, 3).to(dtype)
    return {"model": model, "clients": clients, "test": clients[0], "config": td.Config(**common | settings)}


CENTRAL = {
    "participations": 4, "separation": 4, "noise_multiplier": 0.5, "clip": 0.5, "noise_from": "seed",
    "adaptive": AdaptiveClip(),
}  # fmt: skip
RUNS = {
    "public": {"algorithm": td.FedBuff(momentum=td.EMA())},
    "masfl": {"algorithm": td.MasFL()},
    "private": {"privacy": Participation(**CENTRAL)},
    "private versions": {
        "algorithm": td.FedBuff(momentum=td.Approximation()),
        "privacy": Participation(**CENTRAL, versions="private"),
    },
    "local": {
        "algorithm": td.FedAC(),
        "privacy": LocalPrivacy(participations=16, noise_multiplier=0.5, clip=0.5, noise_from="seed"),
    },
}


@pytest.mark.parametrize("name", RUNS)
@each_dtype
def test_a_run_has_the_same_bits_with_two_workers_and_resumed(name, dtype, tmp_path):
    straight = td.run(**parts(dtype, **RUNS[name]))
    assert all(tensor.dtype == dtype for tensor in straight.model.values())
    two = td.run(**parts(dtype, **RUNS[name]), workers=2)
    assert (two.model_sha256, two.history) == (straight.model_sha256, straight.history)
    with pytest.raises(KeyboardInterrupt):
        td.run(**parts(dtype, **RUNS[name]), out=tmp_path / "run", observers=(InterruptAfter(25),))
    resumed = td.run(**parts(dtype, **RUNS[name]), out=tmp_path / "run", resume=True)
    assert (resumed.model_sha256, resumed.history) == (straight.model_sha256, straight.history)


@each_dtype
@pytest.mark.parametrize(
    ("algorithm", "remembered", "kept"),
    [
        (td.SCAFFOLD(), "control", "control"),
        (td.CA2FL(), "delta", "cache"),
        (td.MasFL(beta=0.9, gamma=0.1), "control", "control"),
    ],
    ids=lambda value: getattr(value, "kind", ""),
)
def test_server_keeps_the_mean_of_what_clients_remember(dtype, algorithm, remembered, kept):
    """Rounding what clients remember to short floats would let the server's mean drift away from it."""
    population = 8
    generator = torch.Generator().manual_seed(3)
    clients = {
        i: (torch.randn(12, 6, generator=generator), torch.randint(0, 3, (12,), generator=generator))
        for i in range(population)
    }
    torch.manual_seed(0)
    module = torch.nn.Linear(6, 3).to(dtype)
    pace = td.Synchronous(cohort=4) if algorithm.synchronous else td.Asynchronous(concurrency=4)
    config = td.Config(
        algorithm=algorithm, pace=pace, stop=td.Stop(steps=60), local=td.Local(steps=3, lr=0.1),
        buffer=td.Buffer(size=4),
    )  # fmt: skip
    simulation = build(config, module, clients)
    for _ in simulation.engine.run():
        pass
    memories = simulation.engine.memories.values()
    mean = sum(memory[remembered].double() for memory in memories) / population
    c = simulation.aggregator.state[kept].double()
    assert float((c - mean).norm() / mean.norm()) < 1e-5
