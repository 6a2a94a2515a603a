"""Verdicts on claims, against computations by hand."""

import math

import pytest
from pydantic import ValidationError

from tardigrad.experiments.compare.statistics import MeanAndDeviation, chance
from tardigrad.experiments.reproduce.claims import Claim, judge


def verdict(claim, numbers, budgets=None):
    return judge(claim, lambda entry, measure: numbers.get(entry), budgets)


def test_a_clear_order_holds_with_its_ratio():
    claim = Claim(says="a needs less", better="a", than=("b",))
    found = verdict(claim, {"a": [100, 110, 90], "b": [200, 230, 175]})
    assert found.verdict == "holds"
    ratio = (200 / 100 * 230 / 110 * 175 / 90) ** (1 / 3)
    assert f"b took {ratio:.2f} times a's trips" in found.found


def test_the_reverse_and_what_could_be_chance_do_not_hold():
    claim = Claim(says="a needs less", better="a", than=("b",))
    assert verdict(claim, {"b": [100, 110, 90], "a": [200, 230, 175]}).verdict == "does not hold"
    level = verdict(claim, {"a": [100, 120, 90], "b": [105, 100, 115]})
    assert level.verdict == "does not hold"
    assert "could be chance" in level.found


def test_a_claim_holds_only_against_every_other_entry():
    claim = Claim(says="a needs less", better="a", than=("b", "c"))
    numbers = {"a": [100, 110, 90], "b": [200, 230, 175], "c": [90, 95, 80]}
    assert verdict(claim, numbers).verdict == "does not hold"
    assert verdict(claim, numbers | {"c": [300, 310, 290]}).verdict == "holds"


def test_a_factor_must_be_reached_and_a_margin_is_granted():
    numbers = {"a": [100, 101, 99], "b": [150, 152, 149]}
    assert verdict(Claim(says="", better="a", than=("b",), factor=1.4), numbers).verdict == "holds"
    assert verdict(Claim(says="", better="a", than=("b",), factor=1.6), numbers).verdict == "does not hold"
    accuracy = {"a": [0.80, 0.81, 0.79], "b": [0.81, 0.82, 0.799]}
    claim = {"says": "", "better": "a", "than": ("b",), "measure": "accuracy"}
    assert verdict(Claim(**claim), accuracy).verdict == "does not hold"
    assert verdict(Claim(**claim, margin=0.02), accuracy).verdict == "holds"


def test_a_target_that_was_not_reached_counts_as_the_budget_at_least():
    claim = Claim(says="", better="a", than=("b",))
    numbers = {"a": [100, 110, 90], "b": [math.inf, 300, math.inf]}
    found = verdict(claim, numbers, {"b": 400})
    assert found.verdict == "holds"
    assert "at least" in found.found
    close = verdict(claim, {"a": [100, 110, 90], "b": [math.inf] * 3}, {"b": 95})
    assert close.verdict == "does not hold"
    unreached = verdict(claim, {"b": [100, 110, 90], "a": [math.inf, 300, 310]}, {"a": 400})
    assert unreached.verdict == "does not hold"
    assert "did not reach" in unreached.found


def test_more_accuracy_is_better_and_fewer_trips_are():
    numbers = {"a": [0.80, 0.82, 0.81], "b": [0.70, 0.71, 0.72]}
    claim = {"says": "", "better": "a", "than": ("b",)}
    assert verdict(Claim(**claim, measure="accuracy"), numbers).verdict == "holds"
    assert "+10.0 points" in verdict(Claim(**claim, measure="accuracy"), numbers).found
    assert verdict(Claim(**claim, measure="trips"), numbers).verdict == "does not hold"


def test_entries_are_level_if_their_means_are_within_the_margin():
    numbers = {"a": [0.80, 0.82], "b": [0.79, 0.80], "c": [0.81, 0.80]}
    claim = {"says": "", "level": ("a", "b", "c"), "measure": "accuracy"}
    assert verdict(Claim(**claim, within=0.016), numbers).verdict == "holds"
    assert verdict(Claim(**claim, within=0.014), numbers).verdict == "does not hold"
    trips = Claim(says="", level=("a", "b"), within=0.25)
    assert verdict(trips, {"a": [100, 100], "b": [120, 120]}).verdict == "holds"
    assert verdict(trips, {"a": [100, 100], "b": [130, 130]}).verdict == "does not hold"


def test_a_claim_on_gaps_holds_if_they_shrink():
    claim = Claim(says="", measure="accuracy", gaps=(("s1", "a1"), ("s2", "a2")))
    numbers = {
        "s1": [0.8, 0.81, 0.8],
        "a1": [0.7, 0.7, 0.71],
        "s2": [0.85, 0.85, 0.86],
        "a2": [0.84, 0.83, 0.85],
    }
    assert verdict(claim, numbers).verdict == "holds"
    grown = {"s1": numbers["s2"], "a1": numbers["a2"], "s2": numbers["s1"], "a2": numbers["a1"]}
    assert verdict(claim, grown).verdict == "does not hold"


def test_what_was_not_run_is_not_judged():
    claim = Claim(says="", better="a", than=("b",))
    assert verdict(claim, {"a": [1.0]}).verdict == "not run"


FORMS = {
    "better": Claim(says="", better="a", than=("b",), measure="accuracy"),
    "cost": Claim(says="", better="b", than=("a",)),
    "level": Claim(says="", level=("a", "b"), within=0.5, measure="accuracy"),
    "gaps": Claim(says="", gaps=(("a", "b"), ("b", "b")), measure="accuracy"),
}


@pytest.mark.parametrize("form", FORMS)
def test_one_seed_tests_nothing(form):
    numbers = {"a": [0.9], "b": [0.5]}
    found = verdict(FORMS[form], numbers)
    assert found.verdict == "not tested"
    assert "one seed" in found.found
    assert "p =" not in found.found
    more = {"a": [0.9, 0.91, 0.89], "b": [0.5, 0.52, 0.51]}
    assert verdict(FORMS[form], more).verdict == "holds"


@pytest.mark.parametrize("form", FORMS)
def test_what_is_not_a_number_is_not_tested(form):
    numbers = {"a": [0.9, math.nan, 0.89], "b": [0.5, 0.52, 0.51]}
    assert verdict(FORMS[form], numbers).verdict == "not tested"


def test_a_missed_target_without_a_known_budget_is_not_tested():
    claim = Claim(says="", better="a", than=("b",))
    numbers = {"a": [100, 110, 90], "b": [math.inf, 300, 310], "c": [90, 95, 80]}
    assert verdict(claim, numbers).verdict == "not tested"
    both = Claim(says="", better="a", than=("b", "c"))
    assert verdict(both, numbers).verdict == "does not hold", "c alone refutes it"
    gaps = Claim(says="", gaps=(("b", "a"), ("c", "a")))
    assert verdict(gaps, numbers | {"a": [math.inf, 110, 90]}).verdict == "not tested"
    alone = verdict(claim, {"a": [math.inf], "b": [100]}, {"a": 400})
    assert alone.verdict == "not tested"


def test_a_cost_of_nothing_has_no_ratio():
    claim = Claim(says="", better="a", than=("b",))
    assert verdict(claim, {"a": [0, 110, 90], "b": [200, 230, 175]}).verdict == "not tested"
    level = {"says": "", "level": ("a", "b"), "within": 0.1}
    assert verdict(Claim(**level), {"a": [0, 0], "b": [0, 0]}).verdict == "holds"
    assert verdict(Claim(**level), {"a": [0, 0], "b": [5, 5]}).verdict == "does not hold"


def test_the_same_lead_with_every_seed_is_judged_by_its_sign():
    claim = Claim(says="", better="a", than=("b",))
    found = verdict(claim, {"a": [100] * 3, "b": [200] * 3})
    assert found.verdict == "does not hold"
    assert "p = 0.12, could be chance" in found.found
    assert verdict(claim, {"a": [100] * 5, "b": [200] * 5}).verdict == "holds"
    assert verdict(claim, {"a": [100] * 5, "b": [100] * 5}).verdict == "does not hold"


def test_chance_is_none_for_one_seed_or_a_lead_that_is_not_finite():
    assert chance([]) is chance([0.5]) is chance([-0.5]) is None
    assert chance([0.1, math.nan, 0.2]) is chance([0.1, math.inf]) is None
    assert chance([0.0, 0.0]) == chance([-0.3, -0.3]) == 1.0
    assert chance([0.1 + 0.2, 0.3, 0.3]) == 0.125, "rounding is no spread"
    assert MeanAndDeviation.of([]) is None
    assert MeanAndDeviation.of([3.0]) == MeanAndDeviation(3.0, 0.0)


def test_chance_is_students():
    # t = mean / (sd / sqrt(3)) = 0.1 / (0.05 / sqrt(3)) = 3.4641, two degrees of freedom:
    # P(T > t) = 1/2 - t / (2 sqrt(2 + t^2))
    t = 0.1 / (0.05 / math.sqrt(3))
    assert chance([0.05, 0.1, 0.15]) == pytest.approx(0.5 - t / (2 * math.sqrt(2 + t * t)), rel=1e-9)


@pytest.mark.parametrize(
    "form",
    [
        {},
        {"better": "a"},
        {"level": ("a", "b")},
        {"better": "a", "than": ("b",), "level": ("a", "b"), "within": 0.1},
    ],
)
def test_a_claim_has_one_form(form):
    with pytest.raises(ValidationError, match="a claim needs"):
        Claim(says="", **form)
