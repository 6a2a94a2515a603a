"""Schedules within a trip, against torch's own schedulers and values computed by hand."""

import pytest
import torch
from torch.optim import lr_scheduler

import tardigrad as td


def factors(schedule, steps):
    return [schedule.factor(step, steps) for step in range(steps)]


def torch_factors(make, steps):
    optimiser = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = make(optimiser)
    found = []
    for _ in range(steps):
        found.append(optimiser.param_groups[0]["lr"])
        optimiser.step()
        scheduler.step()
    return found


CASES = {
    "cosine": (td.CosineInTrip(floor=0.1), lambda o: lr_scheduler.CosineAnnealingLR(o, T_max=9, eta_min=0.1)),
    "linear": (
        td.LinearInTrip(floor=0.25),
        lambda o: lr_scheduler.LinearLR(o, start_factor=1.0, end_factor=0.25, total_iters=9),
    ),
    "warm-up": (
        td.ConstantInTrip(warm_up=4),
        lambda o: lr_scheduler.LinearLR(o, start_factor=0.25, end_factor=1.0, total_iters=3),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_factors_are_those_of_torch(case):
    schedule, make = CASES[case]
    assert factors(schedule, 9) == pytest.approx(torch_factors(make, 9))


def test_the_schedule_runs_over_the_steps_after_the_warm_up():
    assert factors(td.LinearInTrip(warm_up=2), 6) == pytest.approx([0.5, 1, 1, 0.75, 0.5, 0.25])
    assert factors(td.CosineInTrip(warm_up=1), 3) == pytest.approx([1, 1, 0.5])


@pytest.mark.parametrize("kind", [td.ConstantInTrip, td.LinearInTrip, td.CosineInTrip])
def test_a_trip_shorter_than_the_warm_up_only_rises(kind):
    assert factors(kind(warm_up=5), 3) == pytest.approx([0.2, 0.4, 0.6])


def test_only_a_constant_without_warm_up_is_flat():
    assert td.ConstantInTrip().is_flat
    assert factors(td.ConstantInTrip(), 5) == [1.0] * 5
    assert not td.ConstantInTrip(warm_up=1).is_flat
    assert not td.LinearInTrip(floor=0.5).is_flat
    assert not td.CosineInTrip(floor=0.5).is_flat
