"""The step by hand: 2-vectors, three steps, numbers that a person can follow."""

import pytest
import torch
from pydantic import ValidationError

from tardigrad.core.momentum import EMA, HeavyBall, Nesterov, NoMomentum
from tardigrad.core.preconditioner import AdaGrad, Adam, NoPreconditioner, Yogi
from tardigrad.core.situation import Situation
from tardigrad.core.step import Step
from tardigrad.core.upload import Member, WeightedSum

MEANS = [[1.0, -2.0], [3.0, 0.0], [-1.0, 4.0]]
"""r of the three steps."""


def directions(momentum):
    """m of the three steps."""
    model = torch.zeros(2, dtype=torch.float64)
    state = momentum.start(model, Situation(population=1))
    return [momentum.direction(state, torch.tensor(r).double(), None).tolist() for r in MEANS]


def test_no_momentum():
    assert directions(NoMomentum()) == MEANS


def test_ema_by_hand():
    # beta 1/2: m = (m + r) / 2
    expected = [[0.5, -1.0], [1.75, -0.5], [0.375, 1.75]]
    assert directions(EMA(beta=0.5)) == expected


def test_ema_with_a_negative_beta_by_hand():
    # beta -1/2: m = -m/2 + 3r/2
    expected = [[1.5, -3.0], [3.75, 1.5], [-3.375, 5.25]]
    assert directions(EMA(beta=-0.5)) == expected


def test_heavy_ball_by_hand():
    # beta 1/2: m = m/2 + r
    expected = [[1.0, -2.0], [3.5, -1.0], [0.75, 3.5]]
    assert directions(HeavyBall(beta=0.5)) == expected


def test_nesterov_by_hand():
    # beta 1/2: m as with ema, then (m + r) / 2
    expected = [[0.75, -1.5], [2.375, -0.25], [-0.3125, 2.875]]
    assert directions(Nesterov(beta=0.5)) == expected


def second_moments(preconditioner):
    """v after each of the three steps."""
    state = preconditioner.start(torch.zeros(2, dtype=torch.float64))
    seen = []
    for r in MEANS:
        preconditioner.update(state, torch.tensor(r).double())
        seen.append(state["second_moment"].tolist())
    return seen


def test_adam_by_hand():
    # beta2 3/4: v = 3v/4 + r^2/4, r^2 = (1, 4), (9, 0), (1, 16)
    assert second_moments(Adam(beta2=0.75)) == [[0.25, 1.0], [2.4375, 0.75], [2.078125, 4.5625]]


def test_adagrad_by_hand():
    assert second_moments(AdaGrad()) == [[1.0, 4.0], [10.0, 4.0], [11.0, 20.0]]


def test_yogi_by_hand():
    # beta2 3/4: v moves by r^2/4 towards r^2
    # (0, 0) -> (0.25, 1); r^2 = (9, 0): up 2.25, and 0 leaves it; r^2 = (1, 16): 2.5 > 1 goes down, 1 < 16 up
    assert second_moments(Yogi(beta2=0.75)) == [[0.25, 1.0], [2.5, 1.0], [2.25, 5.0]]


def test_division_is_by_the_root_plus_adaptivity():
    adagrad = AdaGrad(adaptivity=0.5)
    state = {"second_moment": torch.tensor([4.0, 0.0])}
    assert adagrad.divide(state, torch.tensor([5.0, 1.0])).tolist() == [2.0, 2.0]
    assert NoPreconditioner().divide({}, torch.tensor([5.0, 1.0])).tolist() == [5.0, 1.0]


def models(step):
    """Every model of a run of three steps from (1, 1), as 1-member buffers."""
    model = torch.ones(2, dtype=torch.float64)
    state = {"model": model} | step.begin(model, Situation(population=1))
    seen = [model]
    for version, r in enumerate(MEANS):
        r = torch.tensor(r).double()
        buffer = WeightedSum({"delta": r}, (Member(version, 0, 1.0, 1.0),), version, 1.0)
        state["model"] = step.move(state, buffer.mean(), buffer)
        seen.append(state["model"])
    return seen


def test_the_model_moves_against_the_direction_times_lr():
    moved = models(Step(lr=0.5))
    assert [m.tolist() for m in moved] == [[1.0, 1.0], [0.5, 2.0], [-1.0, 2.0], [-0.5, 0.0]]


def test_momentum_and_preconditioner_together():
    step = Step(lr=1.0, momentum=EMA(beta=0.5), preconditioner=AdaGrad(adaptivity=1.0))
    # m: (0.5, -1), (1.75, -0.5), (0.375, 1.75); v is fed with r, not with m: (1, 4), (10, 4), (11, 20)
    x = [1.0, 1.0]
    for moved, m, v in zip(
        models(step)[1:],
        [(0.5, -1.0), (1.75, -0.5), (0.375, 1.75)],
        [(1.0, 4.0), (10.0, 4.0), (11.0, 20.0)],
    ):
        x = [x[i] - m[i] / (v[i] ** 0.5 + 1.0) for i in range(2)]
        assert moved.tolist() == pytest.approx(x, rel=1e-14)


@pytest.mark.parametrize("momentum", [NoMomentum(), EMA(), HeavyBall(), Nesterov()])
@pytest.mark.parametrize("preconditioner", [NoPreconditioner(), Adam(), AdaGrad(), Yogi()])
def test_the_old_model_is_never_changed_in_place(momentum, preconditioner):
    model = torch.ones(2)
    step = Step(momentum=momentum, preconditioner=preconditioner)
    state = {"model": model} | step.begin(model, Situation(population=1))
    r = torch.tensor([1.0, 2.0])
    buffer = WeightedSum({"delta": r}, (Member(0, 0, 1.0, 1.0),), 0, 1.0)
    moved = step.move(state, r, buffer)
    assert model.tolist() == [1.0, 1.0]
    assert r.tolist() == [1.0, 2.0]
    assert moved.data_ptr() != model.data_ptr()


def test_the_mean_divides_by_the_masses_not_by_the_weights():
    members = (Member(0, 3, 0.5, 1.0), Member(3, 0, 1.0, 1.0))
    buffer = WeightedSum({"delta": torch.tensor([3.0])}, members, 3, 2.0)
    assert buffer.mean().tolist() == [1.5]


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (lambda: Step(lr=0.0), "lr"),
        (lambda: Step(lr=float("inf")), "lr"),
        (lambda: EMA(beta=1.0), "beta"),
        (lambda: EMA(beta=-1.0), "beta"),
        (lambda: HeavyBall(beta=1.0), "beta"),
        (lambda: Nesterov(beta=-0.1), "beta"),
        (lambda: Adam(beta2=1.0), "beta2"),
        (lambda: Yogi(beta2=-0.1), "beta2"),
        (lambda: AdaGrad(adaptivity=0.0), "adaptivity"),
        (lambda: Step(momentum="momentum"), "momentum"),
        (lambda: Step(preconditioner={"kind": "adam", "beta": 0.9}), "preconditioner.adam.beta"),
    ],
)
def test_bad_settings_name_the_key(make, names):
    with pytest.raises(ValidationError) as caught:
        make()
    assert [".".join(map(str, problem["loc"])) for problem in caught.value.errors()] == [names]


@pytest.mark.parametrize("lr", [1.0, 0.3])
@pytest.mark.parametrize("length", [1, 63, 64, 1000])
def test_a_step_in_pieces_has_the_bits_of_a_step_at_once(length, lr, monkeypatch):
    monkeypatch.setattr("tardigrad.core.step.PIECE", 64)
    generator = torch.Generator().manual_seed(length)
    model, total = torch.randn(length, generator=generator), torch.randn(length, generator=generator)
    buffer = WeightedSum({"delta": total}, (Member(0, 0, 1.0, 1.0),), 0, divisor=7.3)
    step = Step(lr=lr)
    found = step.move_by_mean({"model": model}, buffer)
    assert torch.equal(found, step.move({"model": model}, buffer.mean(), buffer))
    assert torch.equal(found, model - lr * (total / 7.3))
