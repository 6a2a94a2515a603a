"""Schedules of the learning rate, against values computed by hand."""

import pytest

from tardigrad.learning.schedule import ConstantRate, Cosine, StepDecay


def test_constant_rate_is_one_at_every_version():
    assert {ConstantRate().factor(version) for version in (0, 1, 10**6)} == {1.0}


def test_step_decay_multiplies_at_each_version_reached():
    decay = StepDecay(at=(3, 5, 5), factor_at_each=0.1)
    assert [decay.factor(v) for v in range(7)] == pytest.approx([1, 1, 1, 0.1, 0.1, 0.001, 0.001])


def test_step_decay_versions_may_be_in_any_order():
    assert StepDecay(at=(5, 3)).factor(4) == StepDecay(at=(3, 5)).factor(4) == 0.5


def test_step_decay_halves_at_800_by_default():
    assert [StepDecay().factor(v) for v in (0, 799, 800, 2000)] == [1.0, 1.0, 0.5, 0.5]


def test_cosine_equals_values_computed_by_hand():
    # (1 + cos(pi t / 6)) / 2 at the third parts: 1, 3/4, 1/4, 0
    cosine = Cosine(steps=6)
    assert [cosine.factor(v) for v in (0, 2, 3, 4, 6, 7, 100)] == pytest.approx([1, 0.75, 0.5, 0.25, 0, 0, 0])


def test_cosine_ends_at_the_floor():
    cosine = Cosine(steps=6, floor=0.2)
    assert [cosine.factor(v) for v in (0, 2, 3, 4, 6, 100)] == pytest.approx([1, 0.8, 0.6, 0.4, 0.2, 0.2])


def test_cosine_never_rises():
    factors = [Cosine(steps=100, floor=0.1).factor(v) for v in range(150)]
    assert factors == sorted(factors, reverse=True)
