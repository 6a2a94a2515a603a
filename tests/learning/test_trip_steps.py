"""The local steps of a trip: clipping, weight decay, learning rates and what is kept."""

import pytest
import torch
from torch import nn

import tardigrad as td
from tardigrad.core.upload import Task
from tardigrad.learning.trip_steps import TripSteps, clip


def trip_steps(local, examples=10, memory=None, start=None, rule=td.Rule):
    start = torch.zeros(3, dtype=torch.float64) if start is None else start
    made = rule(Task(0, "ann", 0, {"model": start}), {}, local.lr)
    return TripSteps(local, made, memory or {}, start, examples)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("scale", [0.01, 1.0, 1e6])
def test_clip_is_that_of_torch(dtype, scale):
    parts = [torch.randn(4, 3, dtype=dtype) * scale, torch.randn(7, dtype=dtype) * scale]
    parameters = [nn.Parameter(torch.zeros_like(part)) for part in parts]
    for parameter, part in zip(parameters, parts):
        parameter.grad = part.clone()
    nn.utils.clip_grad_norm_(parameters, 0.5)
    ours = torch.cat([part.flatten() for part in parts])
    clip(ours, 0.5)
    expected = torch.cat([parameter.grad.flatten() for parameter in parameters])
    assert torch.allclose(ours, expected, rtol=1e-6 if dtype == torch.float32 else 1e-12, atol=0)


def test_clip_of_a_long_short_float_gradient_does_not_overflow():
    gradient = torch.full((10_000,), 600.0, dtype=torch.float16)  # its squared norm is beyond float16
    clip(gradient, 1.0)
    assert torch.linalg.vector_norm(gradient.float()).item() == pytest.approx(1.0, rel=1e-2)


def test_gradient_is_clipped_before_weight_decay_is_added():
    x = torch.tensor([10.0], dtype=torch.float64)
    steps = trip_steps(td.Local(lr=1.0, gradient_clip=1.0, weight_decay=0.1), start=x)
    steps.move(x, torch.tensor([50.0], dtype=torch.float64), steps.next_lr(10))
    assert x.item() == pytest.approx(10 - (1 + 0.1 * 10), rel=1e-6)


def test_adamw_shrinks_the_parameters_by_lr_times_weight_decay():
    x = torch.tensor([10.0], dtype=torch.float64)
    steps = trip_steps(td.Local(lr=0.1, optimiser="adamw", weight_decay=0.5), start=x)
    steps.move(x, torch.zeros(1, dtype=torch.float64), steps.next_lr(10))
    assert x.item() == pytest.approx(10 * (1 - 0.1 * 0.5))


def test_lr_sum_is_the_sum_of_the_scheduled_rates():
    local = td.Local(batch_size=2, lr=0.1, trip_schedule=td.LinearInTrip(warm_up=1), lr_normalisation=True)
    steps = trip_steps(local, examples=9)  # 2, 2, 2, 2 and 1
    rates = [steps.next_lr(size) for size in (2, 2, 2, 2, 1)]
    assert rates == pytest.approx([0.1, 0.1, 0.075, 0.05, 0.025 / 2])
    assert steps.lr_sum == pytest.approx(sum(rates))


def test_lr_normalisation_counts_the_examples_of_all_minibatches_of_a_step():
    local = td.Local(batch_size=2, accumulate=3, lr=0.1, lr_normalisation=True)
    steps = trip_steps(local, examples=9)
    assert [steps.next_lr(size) for size in (6, 3)] == pytest.approx([0.1, 0.05])


@pytest.mark.parametrize("optimiser", [td.LocalMomentum(keep=True), td.AdamW(keep=True)])
def test_kept_state_goes_on_where_it_ended(optimiser):
    local = td.Local(lr=0.1, optimiser=optimiser)
    random = torch.Generator().manual_seed(0)
    gradients = [torch.randn(3, generator=random, dtype=torch.float64) for _ in range(6)]
    whole, parts = torch.zeros(3, dtype=torch.float64), torch.zeros(3, dtype=torch.float64)
    steps = trip_steps(local)
    for gradient in gradients:
        steps.move(whole, gradient.clone(), steps.next_lr(1))
    memory = {"control": torch.ones(3)}  # of the rule
    for half in (gradients[:3], gradients[3:]):
        before = {name: vector.clone() for name, vector in memory.items()}
        steps = trip_steps(local, memory=memory)
        for gradient in half:
            steps.move(parts, gradient.clone(), steps.next_lr(1))
        assert all(torch.equal(memory[name], vector) for name, vector in before.items())
        memory = memory | steps.kept()
    assert torch.equal(parts, whole)
    assert {name for name in memory if not name.startswith("optimiser/")} == {"control"}


def test_state_that_is_not_kept_is_fresh():
    steps = trip_steps(td.Local(lr=0.1, optimiser="momentum"), memory={"optimiser/momentum": torch.ones(3)})
    x = torch.zeros(3, dtype=torch.float64)
    steps.move(x, torch.zeros(3, dtype=torch.float64), steps.next_lr(1))
    assert x.tolist() == [0, 0, 0]
    assert steps.kept() == {}


def test_optimiser_moves_along_the_direction_of_the_rule():
    class Doubling(td.Rule):
        def direction(self, gradient, x):
            return 2 * gradient

    x = torch.zeros(3, dtype=torch.float64)
    steps = trip_steps(td.Local(lr=1.0, optimiser=td.LocalMomentum(beta=0.5)), rule=Doubling)
    for _ in range(2):
        steps.move(x, torch.ones(3, dtype=torch.float64), steps.next_lr(1))
    assert x.tolist() == [-5, -5, -5]  # 2, then 2 + 1


class TurningRule(td.Rule):
    def direction(self, gradient, x):
        return -gradient


def test_steps_that_are_more_than_the_gradient_are_not_made_at_once():
    assert trip_steps(td.Local()).bare
    assert trip_steps(td.Local(lr_normalisation=True, trip_schedule={"kind": "cosine"})).bare
    assert not trip_steps(td.Local(weight_decay=0.1)).bare
    assert not trip_steps(td.Local(gradient_clip=1.0)).bare
    assert not trip_steps(td.Local(optimiser={"kind": "momentum"})).bare
    assert not trip_steps(td.Local(optimiser={"kind": "adamw"})).bare
    assert not trip_steps(td.Local(), rule=TurningRule).bare
