"""Local training: the order of examples, and results against values computed by hand."""

import math
from collections import Counter
from copy import deepcopy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from torch import nn

import tardigrad as td
from tardigrad.core.upload import Task
from tardigrad.data.clients import Given
from tardigrad.errors import ConfigError, RunError
from tardigrad.learning.flat import FlatModule
from tardigrad.learning.heads import Head, MultiClass
from tardigrad.learning.local import Local, Trainer
from tardigrad.simulation.executors.inline import Inline
from tardigrad.simulation.executors.protocol import TrainingJob


def batches(local, examples, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [batch.tolist() for batch in local.minibatches(examples, generator)]


# -- minibatches --------------------------------------------------------------------------------------


@given(
    examples=st.integers(1, 40),
    batch_size=st.integers(1, 12),
    epochs=st.none() | st.integers(1, 4),
)
@settings(max_examples=150, deadline=None, derandomize=True, database=None)
def test_each_pass_has_every_example_once(examples, batch_size, epochs):
    local = Local(epochs=epochs, batch_size=batch_size)
    drawn = batches(local, examples)
    a_pass = math.ceil(examples / batch_size)
    assert len(drawn) == local.steps_for(examples) == a_pass * (epochs or 1)
    for start in range(0, len(drawn), a_pass):
        one = drawn[start : start + a_pass]
        assert sorted(i for batch in one for i in batch) == list(range(examples))
        assert all(len(batch) == batch_size for batch in one[:-1])
        assert len(one[-1]) == (examples - 1) % batch_size + 1


@given(examples=st.integers(1, 40), batch_size=st.integers(1, 12), steps=st.integers(1, 25))
@settings(max_examples=150, deadline=None, derandomize=True, database=None)
def test_steps_repeat_passes_over_the_examples(examples, batch_size, steps):
    local = Local(steps=steps, batch_size=batch_size)
    drawn = batches(local, examples)
    assert len(drawn) == local.steps_for(examples) == steps
    counts = Counter(i for batch in drawn for i in batch)
    assert set(counts) <= set(range(examples))
    whole, a_pass = divmod(steps, math.ceil(examples / batch_size))[0], math.ceil(examples / batch_size)
    assert all(counts[i] in (whole, whole + 1) for i in range(examples))
    for start in range(0, whole * a_pass, a_pass):
        assert sorted(i for batch in drawn[start : start + a_pass] for i in batch) == list(range(examples))


def test_each_pass_has_a_new_order_that_depends_only_on_the_seed():
    local = Local(epochs=3, batch_size=20)
    first, second, third = batches(local, 20)
    assert first != second != third
    assert batches(local, 20) == [first, second, third]
    assert batches(local, 20, seed=1)[0] != first


def test_default_is_one_epoch():
    assert Local().steps_for(65) == 3
    assert Local(steps=7).steps_for(65) == 7


@given(examples=st.integers(1, 40), batch_size=st.integers(1, 6), accumulate=st.integers(1, 4))
@settings(max_examples=60, deadline=None, derandomize=True, database=None)
def test_accumulating_takes_the_examples_of_larger_minibatches(examples, batch_size, accumulate):
    for count in ({"epochs": 2}, {"steps": 7}):
        local = Local(batch_size=batch_size, accumulate=accumulate, **count)
        larger = Local(batch_size=batch_size * accumulate, **count)
        assert batches(local, examples) == batches(larger, examples)
        assert local.steps_for(examples) == larger.steps_for(examples)


def test_default_learning_rate_follows_from_the_optimiser():
    kinds = ("sgd", "momentum", "adamw", {"kind": "adamw"}, td.AdamW())
    assert [Local(optimiser=kind).lr for kind in kinds] == [0.1, 0.1, 0.001, 0.001, 0.001]
    assert Local(optimiser="adamw", lr=0.1).lr == 0.1


# -- trips, by hand -----------------------------------------------------------------------------------


class Line(nn.Module):
    """Multiplies the feature by w."""

    def __init__(self, w=0.0):
        super().__init__()
        self.w = nn.Parameter(torch.tensor([w], dtype=torch.float64))

    def forward(self, x):
        return x * self.w


class Sum(Head):
    """The loss is the mean output, so its gradient is the mean feature for every w."""

    def loss(self, outputs, labels):
        return outputs.mean()

    def metrics(self, outputs):
        return {"loss": 0.0}


def trip(local, features, w=0.0, version=0, algorithm=None, seed=0, client="ann", number=7):
    """Run one trip of one client through the executor; return its upload and memory."""
    flat = FlatModule(Line(w))
    clients = Given({client: (np.asarray(features, float), np.zeros(len(features)))}, torch.float64)
    executor = Inline(Trainer(flat, Sum(), algorithm or td.FedAvg(), local), clients)
    task = Task(number, 0, version, {"model": flat.vector.clone()})
    executor.submit(TrainingJob(0.0, task, 0, {}, seed))
    return executor.result(number)


def change(*arguments, **settings):
    upload, _ = trip(*arguments, **settings)
    return upload.vectors["delta"].item()


def test_delta_is_start_minus_end():
    # the gradient is 1 at every step: w goes 5, 4.9, 4.8, 4.7
    assert change(Local(steps=3, lr=0.1), [1, 1], w=5.0) == pytest.approx(0.3)


def test_lr_normalisation_scales_with_the_size_of_the_minibatch():
    # 5 examples in batches of 2, 2 and 1: the learning rate of the last is halved
    plain = Local(batch_size=2, lr=0.1)
    assert change(plain, [1] * 5) == pytest.approx(0.3)
    assert change(plain.model_copy(update={"lr_normalisation": True}), [1] * 5) == pytest.approx(0.25)


def test_lr_normalisation_applies_to_a_client_with_less_than_a_batch():
    assert change(Local(batch_size=32, lr=0.1, lr_normalisation=True), [1] * 8) == pytest.approx(0.1 * 8 / 32)


def test_weight_decay_equals_values_computed_by_hand():
    # gradient 1 + w/2, lr 0.1: 4 -> 4 - 0.1 * 3 = 3.7 -> 3.7 - 0.1 * 2.85 = 3.415
    assert change(Local(steps=2, lr=0.1, weight_decay=0.5), [1], w=4.0) == pytest.approx(4 - 3.415)


def test_schedule_uses_the_start_version_of_the_trip():
    local = Local(steps=1, lr=0.1, schedule=td.StepDecay(at=(10, 20), factor_at_each=0.5))
    changes = [change(local, [1], version=v) for v in (0, 9, 10, 19, 20, 99)]
    assert changes == pytest.approx([0.1, 0.1, 0.05, 0.05, 0.025, 0.025])


def test_rule_receives_the_steps_and_the_sum_of_learning_rates():
    told = {}

    class Listening(td.Rule):
        def finish(self, end, steps, path):
            told.update(steps=steps, path=path, lr=self.lr, end=end.item())
            return super().finish(end, steps, path)

    class Algorithm(td.FedAvg):
        def rule(self, task, memory, lr):
            return Listening(task, memory, lr)

    local = Local(
        epochs=2, batch_size=2, lr=0.1, lr_normalisation=True, schedule=td.Cosine(steps=4, floor=0.5)
    )
    trip(local, [1, 1, 1], algorithm=Algorithm(), version=2)  # half way down the cosine: 0.75
    # two passes of a batch of 2 and one of 1
    assert told == {
        "steps": 4,
        "lr": pytest.approx(0.075),
        "path": pytest.approx(0.075 * 3),
        "end": pytest.approx(-0.075 * 3),
    }


def test_upload_has_examples_steps_and_mean_loss():
    # losses are w: 0, -0.1, -0.2
    upload, memory = trip(Local(steps=3, batch_size=2, lr=0.1), [1] * 5)
    assert (upload.examples, upload.steps) == (5, 3)
    assert upload.loss == pytest.approx(-0.1)
    assert memory == {}


def test_broadcast_is_not_changed():
    flat = FlatModule(Line(3.0))
    clients = Given({0: (np.ones(4), np.zeros(4))}, torch.float64)
    executor = Inline(Trainer(flat, Sum(), td.FedProx(mu=1.0), Local(steps=5)), clients)
    model = torch.tensor([3.0], dtype=torch.float64)
    executor.submit(TrainingJob(0.0, Task(0, 0, 0, {"model": model}), 0, {}, 0))
    executor.result(0)
    assert model.tolist() == [3.0]


def test_trips_do_not_affect_each_other():
    local = Local(steps=3, lr=0.1, batch_size=2)
    flat = FlatModule(Line())
    clients = Given({0: (np.arange(5.0), np.zeros(5)), 1: (np.ones(9), np.zeros(9))}, torch.float64)
    executor = Inline(Trainer(flat, Sum(), td.FedAvg(), local), clients)
    results = []
    for number, client in enumerate([0, 1, 0, 0]):
        task = Task(number, client, 0, {"model": torch.tensor([client + 1.0], dtype=torch.float64)})
        executor.submit(TrainingJob(0.0, task, client, {}, 5))
        results.append(executor.result(number)[0])
    assert results[0].vectors["delta"].tolist() == results[2].vectors["delta"].tolist()
    assert results[2].vectors["delta"].tolist() == results[3].vectors["delta"].tolist()
    assert results[0].vectors["delta"].tolist() != results[1].vectors["delta"].tolist()


# -- gradients against plain autograd -------------------------------------------------------------------

CASES = {
    "mlp": (td.MLP(hidden=(7, 5)), (1, 4, 4)),
    "linear": (td.MLP(hidden=()), (6,)),
    "fedac cnn": (td.FedACCNN(channels=(3, 4), hidden=(6,)), (2, 16, 16)),
    "fedbuff cnn": (td.FedBuffCNN(channels=4, dropout=0.0), (3, 8, 8)),
    "fedasync cnn": (td.FedAsyncCNN(channels=2), (1, 8, 8)),
}


@pytest.mark.parametrize("case", CASES)
def test_trip_equals_plain_sgd(case):
    # three steps on the same batch of all examples, in double precision, against plain autograd
    model, shape = CASES[case]
    torch.manual_seed(3)
    module = model.build(shape, 4).double()
    reference = model.build(shape, 4).double()
    reference.load_state_dict(module.state_dict())
    features = torch.randn(9, *shape, dtype=torch.float64)
    labels = torch.randint(4, (9,))
    for _ in range(3):
        slopes = torch.autograd.grad(F.cross_entropy(reference(features), labels), reference.parameters())
        with torch.no_grad():
            for p, slope in zip(reference.parameters(), slopes):
                p -= 0.2 * (slope + 0.01 * p)
    flat = FlatModule(module)
    clients = Given({0: (features, labels)}, torch.float64)
    local = Local(steps=3, batch_size=9, lr=0.2, weight_decay=0.01)
    executor = Inline(Trainer(flat, MultiClass(), td.FedAvg(), local), clients)
    start = flat.vector.clone()
    executor.submit(TrainingJob(0.0, Task(0, 0, 0, {"model": start}), 0, {}, 0))
    upload, _ = executor.result(0)
    end = flat.state_dict(start - upload.vectors["delta"])
    for name, value in reference.state_dict().items():
        assert torch.allclose(end[name], value, rtol=1e-9, atol=1e-11), name


def test_accumulating_equals_larger_minibatches():
    torch.manual_seed(3)
    module = td.MLP(hidden=(7,)).build((6,), 4).double()
    clients = Given({0: (torch.randn(11, 6, dtype=torch.float64), torch.randint(4, (11,)))}, torch.float64)
    uploads = []
    for split in ({"batch_size": 2, "accumulate": 3}, {"batch_size": 6}):
        local = Local(epochs=2, lr=0.2, gradient_clip=0.1, lr_normalisation=True, **split)
        flat = FlatModule(deepcopy(module))
        executor = Inline(Trainer(flat, MultiClass(), td.FedAvg(), local), clients)
        executor.submit(TrainingJob(0.0, Task(0, 0, 0, {"model": flat.vector.clone()}), 0, {}, 0))
        uploads.append(executor.result(0)[0])
    few, many = uploads
    assert few.steps == many.steps == 4
    assert few.loss == pytest.approx(many.loss, rel=1e-12)
    assert torch.allclose(few.vectors["delta"], many.vectors["delta"], rtol=1e-10, atol=1e-13)


# -- autocast ---------------------------------------------------------------------------------------------


def test_autocast_has_the_gradients_of_torchs_own():
    torch.manual_seed(3)
    module = td.MLP(hidden=(32,)).build((20,), 4)
    reference = td.MLP(hidden=(32,)).build((20,), 4)
    reference.load_state_dict(module.state_dict())
    features, labels = torch.randn(16, 20), torch.randint(4, (16,))
    deltas = {}
    for autocast in (True, False):
        flat = FlatModule(deepcopy(module))
        local = Local(steps=1, batch_size=16, lr=1.0, autocast=autocast)
        executor = Inline(
            Trainer(flat, MultiClass(), td.FedAvg(), local), Given({0: (features, labels)}, torch.float32)
        )
        executor.submit(TrainingJob(0.0, Task(0, 0, 0, {"model": flat.vector.clone()}), 0, {}, 0))
        deltas[autocast] = executor.result(0)[0].vectors["delta"]
    (order,) = batches(local, 16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = F.cross_entropy(reference(features[order]), labels[order])
    slopes = torch.cat([slope.flatten() for slope in torch.autograd.grad(loss, reference.parameters())])
    assert deltas[True].dtype == torch.float32
    assert not torch.allclose(deltas[True], deltas[False], atol=1e-5)
    assert torch.allclose(deltas[True], slopes, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_autocast_of_a_model_that_is_not_float32_is_refused(dtype):
    flat = FlatModule(nn.Linear(2, 2).to(dtype))
    with pytest.raises(ConfigError, match=r"local\.autocast: it is for models in float32, and this one is"):
        Trainer(flat, MultiClass(), td.FedAvg(), Local(autocast=True))


# -- random modules -------------------------------------------------------------------------------------


def dropping_trips(trips, shared=True):
    """The deltas of these trips, whose number is their seed, with a module that has dropout 0.5."""
    clients = Given({0: (np.ones((6, 4)), np.arange(6) % 3)}, torch.float32)

    def executor():
        torch.manual_seed(0)
        module = nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3))
        flat = FlatModule(module)
        return Inline(Trainer(flat, MultiClass(), td.FedAvg(), Local(epochs=2, batch_size=2)), clients), flat

    results = {}
    one, flat = executor()
    model = flat.vector.clone()
    for place, number in enumerate(trips):
        if not shared:
            one, flat = executor()
        torch.manual_seed(place)  # the state of the global generator must not matter ...
        before = torch.get_rng_state()
        one.submit(TrainingJob(0.0, Task(number, 0, 0, {"model": model}), 0, {}, 1000 + number))
        results[number] = one.result(number)[0].vectors["delta"]
        assert torch.equal(torch.get_rng_state(), before)  # ... and must not change
    return results


def test_dropout_depends_only_on_the_trip():
    forwards, backwards = dropping_trips([0, 1, 2, 3]), dropping_trips([3, 2, 1, 0])
    alone = dropping_trips([0, 1, 2, 3], shared=False)
    for number in range(4):
        assert torch.equal(forwards[number], backwards[number])
        assert torch.equal(forwards[number], alone[number])
    assert len({tuple(delta.tolist()) for delta in forwards.values()}) == 4


def test_dropout_sets_some_activations_to_zero():
    # with one seed for the order of examples, what differs is what was dropped
    deltas = dropping_trips([0])
    assert (deltas[0] == 0).any()


# -- errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [float("inf"), float("-inf")])
def test_error_for_a_loss_that_is_not_finite_names_trip_and_client(value):
    with pytest.raises(RunError, match=r"trip 7 of client .*: the training loss is not finite") as caught:
        trip(Local(lr=0.25), [1.0, 1.0], w=value)
    assert "local.lr (now 0.25)" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_client_keeps_its_old_memory_where_divergence_is_accepted():
    """Neither a rule nor an optimiser remembers anything of a trip whose numbers were not finite."""
    local = Local(lr=0.25, optimiser=td.AdamW(keep=True))
    flat = FlatModule(Line(1.0))
    trainer = Trainer(flat, Sum(), td.CA2FL(), local, accept_divergence=True)
    task = Task(0, "ann", 0, {"model": flat.vector.clone()})
    features, labels = torch.ones(4, dtype=torch.float64), torch.zeros(4)
    _, memory = trainer.train(task, {}, (features, labels, None), 0)
    assert set(memory) > {"delta", "optimiser/steps"}
    upload, again = trainer.train(task, memory, (features * math.nan, labels, None), 1)
    assert again is memory
    assert upload.vectors["difference"].tolist() == [0.0]


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ({"epochs": 0}, "epochs"),
        ({"steps": 0}, "steps"),
        ({"steps": 10**21}, "steps: must be less than or equal to 1000000000"),
        ({"epochs": 1, "steps": 1}, "give epochs or steps, not both"),
        ({"batch_size": 0}, "batch_size"),
        ({"lr": 0}, "lr"),
        ({"lr": float("inf")}, "lr"),
        ({"weight_decay": -1}, "weight_decay"),
        ({"schedule": "linear"}, "schedule"),
        ({"schedule": {"kind": "cosine", "steps": 0}}, "schedule.steps"),
        ({"momentum": 0.9}, "momentum"),
        ({"accumulate": 0}, "accumulate"),
        ({"gradient_clip": 0}, "gradient_clip"),
        ({"trip_schedule": "step_decay"}, "trip_schedule"),
        ({"trip_schedule": {"kind": "cosine", "floor": 2}}, "trip_schedule.floor"),
    ],
)
def test_error_for_bad_local_settings_names_the_key(bad, says):
    with pytest.raises(ValidationError, match=says):
        Local(**bad)
