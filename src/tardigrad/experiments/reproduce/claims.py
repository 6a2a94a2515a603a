"""A paper's claim, and whether our runs support it: an order, a ratio or a gap, judged over seeds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, model_validator

from tardigrad.core.setting import Setting
from tardigrad.experiments.compare.statistics import chance
from tardigrad.experiments.reproduce.measures import MEASURES, MORE_IS_BETTER, TO_A_TARGET, UNITS

Verdict = Literal["holds", "does not hold", "not tested", "not run"]
_WORST_FIRST: tuple[Verdict, ...] = ("does not hold", "not tested", "holds")
ClaimValues = Callable[[str, str], Sequence[float] | None]
"""Returns a number for each seed of (entry, measure); None if that was not run."""
CHANCE = 0.05
"""A claim holds if the numbers would be as they are with less than this probability, were it false."""
LEAST_SEEDS = 2
"""With fewer, the spread is not known, and a claim is not tested."""


class Claim(Setting):
    """A statement about runs that is true or false. Give `better` and `than`, or `level`, or `gaps`."""

    says: str
    """The claim, in words."""
    measure: Literal[MEASURES] = "trips"  # type: ignore[valid-type]
    """The quantity that is compared."""
    better: str | None = None
    """The entry that is said to be better ..."""
    than: tuple[str, ...] = ()
    """... than each of these."""
    factor: PositiveFloat = 1.0
    """It is better by at least this factor."""
    margin: NonNegativeFloat = 0.0
    """It may be worse by so much and the claim still holds."""
    level: tuple[str, ...] = ()
    """These entries are said to be level ..."""
    within: PositiveFloat | None = None
    """... their means apart by no more than this (accuracy), or this share of the smallest (costs)."""
    gaps: tuple[tuple[str, str], ...] = ()
    """Pairs of entries: from pair to pair, the first's lead over the second is said to shrink."""
    tasks: tuple[str, ...] = ()
    """Where it is claimed. Default: everywhere."""

    @model_validator(mode="after")
    def _one_form(self) -> Claim:
        forms = [bool(self.better and self.than), bool(self.level and self.within), len(self.gaps) > 1]
        if sum(forms) != 1:
            raise ValueError(
                "a claim needs better = 'A' and than = ['B'], or level = ['A', 'B'] and within = 0.02, "
                "or gaps = [['A', 'B'], ['C', 'D']]"
            )
        return self

    @property
    def entries(self) -> tuple[str, ...]:
        """All entries that it mentions."""
        pairs = tuple(name for pair in self.gaps for name in pair)
        return tuple(filter(None, (self.better,))) + self.than + self.level + pairs

    @property
    def less_is_better(self) -> bool:
        """Whether a smaller number is better."""
        return self.measure not in MORE_IS_BETTER


@dataclass(frozen=True)
class Judgement:
    """The verdict on a claim."""

    says: str
    verdict: Verdict
    found: str
    """The numbers, in words."""


def judge(claim: Claim, values: ClaimValues, budgets: Mapping[str, float] | None = None) -> Judgement:
    """Judge a claim by the numbers. If a target was missed, the cost is taken to be the entry's budget,
    which is the least that it can be."""
    measured: dict[str, list[float]] = {}
    for entry in claim.entries:
        numbers = values(entry, claim.measure)
        if not numbers:
            return Judgement(claim.says, "not run", f"{entry} was not run")
        if any(map(math.isnan, numbers)):
            return Judgement(claim.says, "not tested", f"{entry} has no number for every seed")
        measured[entry] = list(numbers)
    judged = {"gaps": _gaps, "level": _level, "better": _better}
    form = "gaps" if claim.gaps else "level" if claim.level else "better"
    verdict, found = judged[form](claim, measured, budgets or {})
    if min(map(len, measured.values())) < LEAST_SEEDS:
        verdict = "not tested"
    return Judgement(claim.says, verdict, found)


def _better(
    claim: Claim, measured: dict[str, list[float]], budgets: Mapping[str, float]
) -> tuple[Verdict, str]:
    assert claim.better is not None
    good = measured[claim.better]
    if any(map(math.isinf, good)):
        return "does not hold", f"{claim.better} did not reach the target with every seed"
    verdicts, said = set(), []
    for other in claim.than:
        verdict, text = _against(claim, other, good, measured[other], budgets.get(other, math.inf))
        verdicts.add(verdict)
        said.append(text)
    return next(one for one in _WORST_FIRST if one in verdicts), "; ".join(said)


def _against(
    claim: Claim, other: str, good: list[float], bad: list[float], budget: float
) -> tuple[Verdict, str]:
    """Judge whether it is better than one other entry."""
    reached = not any(map(math.isinf, bad))
    bad = [budget if math.isinf(x) else x for x in bad]
    if any(map(math.isinf, bad)):
        return "not tested", f"{other} did not reach the target, and what it spent is not known"
    if claim.measure in TO_A_TARGET or claim.factor != 1:
        if min(*good, *bad) <= 0:
            return "not tested", f"{claim.better} and {other} have no ratio: one of them is 0 with some seed"
        logs = [
            math.log(b / g) if claim.less_is_better else math.log(g / b)
            for g, b in zip(good, bad, strict=True)
        ]
        lead = [x - math.log(claim.factor) + math.log1p(claim.margin) for x in logs]
        ratio = math.exp(statistics.fmean(logs))
        least = "" if reached else "at least "
        text = f"{other} took {least}{ratio:.2f} times {claim.better}'s {claim.measure}"
    else:
        pairs = list(zip(good, bad, strict=True))
        lead = [(b - g if claim.less_is_better else g - b) + claim.margin for g, b in pairs]
        difference = statistics.fmean(g - b for g, b in pairs)
        text = f"{claim.better} had {_points(claim.measure, difference)} against {other}"
    p = chance(lead)
    if p is None:
        return "not tested", f"{text} ({_seeds(lead)})"
    right_sign = statistics.fmean(lead) > 0
    if right_sign and p < CHANCE:
        return "holds", f"{text} (p = {p:.2g})"
    return "does not hold", f"{text} (p = {p:.2g}{', could be chance' if right_sign else ''})"


def _level(
    claim: Claim, measured: dict[str, list[float]], budgets: Mapping[str, float]
) -> tuple[Verdict, str]:
    assert claim.within is not None
    means = {entry: statistics.fmean(numbers) for entry, numbers in measured.items()}
    if any(map(math.isinf, means.values())):
        return "does not hold", "not every entry reached the target with every seed"
    apart = max(means.values()) - min(means.values())
    if claim.measure in TO_A_TARGET:
        if apart > 0:
            apart = apart / min(means.values()) if min(means.values()) > 0 else math.inf
        said = f"{UNITS[claim.measure]}: apart by {100 * apart:.0f} % of the smallest"
    else:
        said = ", ".join(f"{entry} {_plain(claim.measure, mean)}" for entry, mean in means.items())
        said = f"{said}: apart by {_plain(claim.measure, apart)}"
    numbers = next(iter(measured.values()))
    said += f" ({_seeds(numbers)})" if len(numbers) < LEAST_SEEDS else ""
    return "holds" if apart <= claim.within else "does not hold", said


def _gaps(
    claim: Claim, measured: dict[str, list[float]], budgets: Mapping[str, float]
) -> tuple[Verdict, str]:
    if any(math.isinf(x) for numbers in measured.values() for x in numbers):
        return "not tested", "not every entry reached the target with every seed, so a gap is not known"
    sign = -1.0 if claim.less_is_better else 1.0
    gaps = [
        [sign * (a - b) for a, b in zip(measured[first], measured[second], strict=True)]
        for first, second in claim.gaps
    ]
    means = [statistics.fmean(gap) for gap in gaps]
    said = " -> ".join(_plain(claim.measure, mean) for mean in means)
    fall = [first - last for first, last in zip(gaps[0], gaps[-1], strict=True)]
    p = chance(fall)
    if p is None:
        return "not tested", f"gap {said} ({_seeds(fall)})"
    holds = statistics.fmean(fall) > 0 and p < CHANCE
    return "holds" if holds else "does not hold", f"gap {said} (first to last: p = {p:.2g})"


def _seeds(numbers: Sequence[float]) -> str:
    return "one seed" if len(numbers) == 1 else f"{len(numbers)} seeds"


def _plain(measure: str, value: float) -> str:
    return f"{100 * value:.1f} %" if "accuracy" in measure else f"{value:.3g}"


def _points(measure: str, difference: float) -> str:
    if "accuracy" in measure:
        return f"{100 * difference:+.1f} points"
    return f"{difference:+.3g} {UNITS.get(measure, measure)}"


class Shown(Setting):
    """The numbers that the paper prints."""

    source: str
    """Which paper, and which of its tables or figures."""
    measure: str = ""
    """The quantity that its numbers measure."""
    numbers: dict[str, dict[str, int | float | str]] = Field(default_factory=dict)
    """By entry, then by column."""
