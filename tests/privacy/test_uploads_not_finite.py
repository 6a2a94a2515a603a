"""An upload that is not finite counts as zeros in a private run."""

import math

import pytest
import torch

import tardigrad as td
from event_records import read_records
from private_aggregators import centrally_private, locally_private
from tardigrad.core.outcomes import Accepted, Ticket
from tardigrad.core.situation import Situation
from tardigrad.core.upload import Task, Upload
from tardigrad.learning.flat import FlatModule
from tardigrad.learning.heads import MultiClass
from tardigrad.learning.local import Trainer
from tardigrad.privacy.clipping import AdaptiveClip
from tardigrad.privacy.normal import Seeded
from tardigrad.privacy.settings import LocalPrivacy, Participation, PoissonSampling
from tardigrad.service.client.app import Client
from tardigrad.service.client.client_trainer import Assignment, ClientTrainer
from tardigrad.service.protocol.task_settings import to_json

SIZE = 6
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
NOT_FINITE = {
    "nan": [1.0, math.nan, 0, 0, 0, 0],
    "infinite": [math.inf, -math.inf, 0, 0, 0, 0],
    "all": [math.nan] * 6,
}
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)
each_bad = pytest.mark.parametrize("bad", NOT_FINITE)


def stepped(aggregator, uploads, model):
    """What the aggregator makes of these uploads, and what it tells."""
    for trip, vectors in enumerate(uploads):
        one = Accepted(Ticket(trip, trip, 0, 0.0), 1.0, 0, 1.0, 1.0, False)
        aggregator.add(one, Upload(vectors, 1, 1, 0.0), model)
    told = aggregator.step()
    tensors, rest = aggregator.snapshot()
    return tensors, rest["numbers"], told


def assert_same(one, other):
    assert one[0].keys() == other[0].keys()
    for name, tensor in one[0].items():
        assert bool(torch.isfinite(tensor).all()), name
        assert torch.equal(tensor, other[0][name]), name
    assert one[1:] == other[1:]


@each_dtype
@each_bad
@pytest.mark.parametrize("noise", [0.0, 1.3])
@pytest.mark.parametrize("payload", ["deltas", "adaptive and versions"])
def test_central_privacy_treats_it_as_an_upload_of_zeros(bad, dtype, noise, payload):
    settings = {} if payload == "deltas" else {"adaptive": AdaptiveClip(), "versions": "private"}
    privacy = Participation(noise_multiplier=noise, clip=0.5, **settings)
    guarantee = privacy.guarantee(1, 9, td.Asynchronous(), td.Buffer(size=3, staleness_bound=2))
    model = torch.ones(SIZE, dtype=dtype)

    def outcome(second):
        algorithm = td.FedBuff(momentum=td.Approximation())
        aggregator = centrally_private(algorithm, model, Situation(9, 3, 2, 1), guarantee, Seeded)
        first, third = torch.full((SIZE,), 0.1, dtype=dtype), torch.full((SIZE,), 7.0, dtype=dtype)
        return stepped(aggregator, [{"delta": first}, {"delta": second}, {"delta": third}], model)

    found = outcome(torch.tensor(NOT_FINITE[bad], dtype=dtype))
    assert_same(found, outcome(torch.zeros(SIZE, dtype=dtype)))


@each_dtype
@each_bad
@pytest.mark.parametrize("noise", [0.0, 1.3])
@pytest.mark.parametrize("kind", ["fedac", "fedasync"])
def test_local_privacy_treats_it_as_an_upload_of_zeros(kind, bad, dtype, noise):
    guarantee = LocalPrivacy(noise_multiplier=noise, clip=0.5).guarantee(
        1, 9, td.Asynchronous(), td.Buffer(size=1)
    )
    model = torch.ones(SIZE, dtype=dtype)

    def outcome(change):
        algorithm = td.FedAC() if kind == "fedac" else td.FedAsync()
        vectors = {"delta": change, "control": change} if kind == "fedac" else {"model": model + change}
        aggregator = locally_private(algorithm, model, Situation(9, 1, 2, 1), guarantee, Seeded)
        return stepped(aggregator, [vectors], model)

    found = outcome(torch.tensor(NOT_FINITE[bad], dtype=dtype))
    assert_same(found, outcome(torch.zeros(SIZE, dtype=dtype)))


# -- training that diverges ----------------------------------------------------------------------------

VICTIM = 3


def parts(**settings):
    generator = torch.Generator().manual_seed(1)
    clients = {
        i: (torch.randn(6, 4, generator=generator), torch.randint(0, 3, (6,), generator=generator))
        for i in range(12)
    }
    clients[VICTIM] = (torch.full((6, 4), 3e38), clients[VICTIM][1])  # its loss is not finite
    torch.manual_seed(0)
    common = {
        "buffer": td.Buffer(size=3, once_per_client=True), "pace": td.Asynchronous(concurrency=6),
        "stop": td.Stop(steps=12), "evaluation": td.Evaluation(every_steps=3),
        "local": td.Local(batch_size=6),
    }  # fmt: skip
    config = td.Config(**common | settings)
    return {"model": torch.nn.Linear(4, 3), "clients": clients, "test": clients[0], "config": config}


OFTEN = {"participations": 12, "noise_multiplier": 0.3, "clip": 0.5, "noise_from": "seed"}
CENTRAL = Participation(**OFTEN, separation=1, adaptive=AdaptiveClip())
RUNS = {
    "central": {"privacy": CENTRAL},
    "several at once": {"privacy": CENTRAL, "device": {"kind": "cpu", "clients_at_once": 4}},
    "scaffold": {
        "privacy": CENTRAL, "algorithm": td.SCAFFOLD(), "pace": td.Synchronous(cohort=3),
        "buffer": td.Buffer(),
    },
    "poisson": {
        "privacy": PoissonSampling(noise_multiplier=0.3, clip=0.5, noise_from="seed"),
        "pace": td.Poisson(probability=0.5), "buffer": td.Buffer(),
    },
    "fedac": {"privacy": LocalPrivacy(**OFTEN), "algorithm": td.FedAC()},
    "fedasync": {
        "privacy": LocalPrivacy(**OFTEN), "algorithm": td.FedAsync(), "buffer": td.Buffer(size=1),
    },
}  # fmt: skip


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("workers", [0, 2])
def test_a_client_that_diverges_takes_part_and_does_not_stop_the_run(name, workers, tmp_path):
    if workers and name == "several at once":
        pytest.skip("one or the other")
    out = tmp_path / "run"
    result = td.run(**parts(**RUNS[name]), workers=workers, out=out)
    assert result.steps == 12
    assert all(bool(torch.isfinite(tensor).all()) for tensor in result.model.values())
    accepted = {
        e["client"] for e in read_records(out / "events.jsonl") if e["event"] == "upload" and e["accepted"]
    }
    assert VICTIM in accepted


def test_without_privacy_a_diverging_client_stops_the_run():
    with pytest.raises(
        td.RunError, match=f"client {VICTIM}: the training loss is not finite; lower local.lr"
    ):
        td.run(**parts())


@pytest.mark.parametrize("algorithm", [td.FedAvg(), td.SCAFFOLD(), td.CA2FL(), td.FedAsync()], ids=repr)
def test_a_trip_that_diverges_uploads_zeros_and_changes_no_memory(algorithm):
    flat = FlatModule(torch.nn.Linear(4, 3))
    trainer = Trainer(flat, MultiClass(), algorithm, td.Local(lr=0.1), accept_divergence=True)
    model = torch.randn(15, generator=torch.Generator().manual_seed(2))
    task = Task(0, 0, 0, {"model": model, "control": torch.ones(15)}, 0.0)
    good = (torch.randn(5, 4, generator=torch.Generator().manual_seed(3)), torch.zeros(5).long(), None)
    _, memory = trainer.train(task, {}, good, 1)
    before = {name: vector.clone() for name, vector in memory.items()}
    upload, after = trainer.train(task, memory, (torch.full((5, 4), 3e38), good[1], None), 1)
    assert upload.loss == 0.0
    for name, vector in upload.vectors.items():
        assert torch.equal(vector, model if name == "model" else torch.zeros(15))
    assert after.keys() == before.keys()
    assert all(torch.equal(after[name], before[name]) for name in before)


def test_a_real_client_of_a_private_run_delivers_zeros_and_does_not_give_up():
    client = Client(torch.nn.Linear(4, 3), (torch.full((6, 4), 3e38), torch.zeros(6).long()))
    model = torch.randn(15, generator=torch.Generator().manual_seed(2))
    task = Task(0, "ann", 0, {"model": model}, None)

    def train(private):
        settings = to_json(td.FedBuff(), td.Local(), private)
        return ClientTrainer("ann", client).train(Assignment(task, 1, settings, evaluate=False, epoch=0), {})

    with pytest.raises(td.RunError, match="not finite"):
        train(private=False)
    upload = train(private=True).upload
    assert torch.equal(upload.vectors["delta"], torch.zeros(15))
    assert upload.loss == 0.0
