"""Staleness laws: values worked out by hand, and what every law promises."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from tardigrad.core.staleness import Constant, Exponential, Hinge, Linear, Polynomial, StalenessLaw

LAWS = [
    Constant(),
    Linear(a=0.5),
    Polynomial(a=0.5),
    Polynomial(a=2.0),
    Exponential(a=0.3),
    Hinge(a=10.0, b=4.0),
    Hinge(a=4.0, b=0.0),
]


@pytest.mark.parametrize(
    ("law", "values"),
    [
        (Constant(), {0: 1.0, 1: 1.0, 50: 1.0}),
        (Linear(a=1.0), {0: 1.0, 1: 1 / 2, 3: 1 / 4, 9: 1 / 10}),
        (Linear(a=0.5), {0: 1.0, 2: 1 / 2, 6: 1 / 4}),
        (Polynomial(a=0.5), {0: 1.0, 3: 1 / 2, 8: 1 / 3, 15: 1 / 4}),
        (Polynomial(a=1.0), {0: 1.0, 1: 1 / 2, 4: 1 / 5}),
        (Polynomial(a=2.0), {0: 1.0, 1: 1 / 4, 2: 1 / 9}),
        (Exponential(a=math.log(2)), {0: 1.0, 1: 1 / 2, 3: 1 / 8}),
        (Hinge(a=10.0, b=4.0), {0: 1.0, 4: 1.0, 5: 1 / 11, 6: 1 / 21, 14: 1 / 101}),
        (Hinge(a=4.0, b=4.0), {4: 1.0, 5: 1 / 5, 8: 1 / 17}),
    ],
    ids=repr,
)
def test_values_by_hand(law, values):
    assert {s: law(s) for s in values} == pytest.approx(values, rel=1e-14)


@pytest.mark.parametrize("law", LAWS, ids=repr)
def test_weight_is_1_if_fresh_and_never_grows(law):
    weights = [law(staleness) for staleness in range(200)]
    assert weights[0] == 1.0
    assert all(0.0 <= weight <= 1.0 for weight in weights)
    assert weights == sorted(weights, reverse=True)


@given(
    a=st.floats(1e-3, 50),
    b=st.floats(0, 50),
    staleness=st.integers(0, 10_000),
    kind=st.sampled_from([Linear, Polynomial, Exponential, Hinge]),
)
@settings(max_examples=200, deadline=None, derandomize=True, database=None)
def test_every_law_for_all_parameters(a, b, staleness, kind):
    law = Hinge(a=a, b=b) if kind is Hinge else kind(a=a)
    assert law(0) == 1.0
    assert 0.0 <= law(staleness + 1) <= law(staleness) <= 1.0


def test_hinge_is_constant_up_to_b():
    hinge, constant = Hinge(a=10.0, b=4.0), Constant()
    assert [hinge(s) for s in range(5)] == [constant(s) for s in range(5)]
    assert hinge(5) < constant(5)


def test_the_defaults_are_the_papers():
    assert Polynomial().a == 0.5
    assert (Hinge().a, Hinge().b) == (10.0, 4.0)


def test_name_alone_means_a_law_with_its_defaults():
    adapter = TypeAdapter(StalenessLaw)
    assert adapter.validate_python("polynomial") == Polynomial(a=0.5)
    assert adapter.validate_python({"kind": "hinge", "a": 4}) == Hinge(a=4.0, b=4.0)


@pytest.mark.parametrize(
    ("value", "names"),
    [
        ({"kind": "polynomial", "a": 0}, "a"),
        ({"kind": "polynomial", "a": -0.5}, "a"),
        ({"kind": "linear", "a": float("nan")}, "a"),
        ({"kind": "exponential", "rate": 1}, "rate"),
        ({"kind": "hinge", "b": -1}, "b"),
        ({"kind": "constant", "a": 1}, "a"),
        ("polynom", "kind"),
    ],
)
def test_bad_settings_name_the_key(value, names):
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(StalenessLaw).validate_python(value)
    (problem,) = caught.value.errors()
    assert names in (*problem["loc"], problem.get("ctx", {}).get("discriminator", "").strip("'"))
