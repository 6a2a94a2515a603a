"""The private versions layer: its payload, and the rows of versions that it releases."""

import math
import random

import numpy as np
import pytest
import torch

import tardigrad as td
from private_aggregators import Watching, centrally_private, delivery
from tardigrad.core.situation import Situation
from tardigrad.core.upload import Upload
from tardigrad.privacy.clipping import AdaptiveClip
from tardigrad.privacy.independent import Independent
from tardigrad.privacy.layers.private_versions import VERSIONS
from tardigrad.privacy.normal import Seeded
from tardigrad.privacy.settings import Participation


def private(**settings):
    """The guarantee of a run with private versions, a clip of 0.7 and no noise."""
    privacy = Participation(noise_multiplier=0.0, clip=0.7, versions="private", **settings)
    return privacy.guarantee(1, 9, td.Asynchronous(), td.Buffer(size=1, staleness_bound=5))


@pytest.mark.parametrize("adaptive", [None, AdaptiveClip()], ids=["fixed", "adaptive"])
@pytest.mark.parametrize("weight", [0.5, 1.0])
@pytest.mark.parametrize("size", [0.0, 1e-3, 1.0, 1e4])
def test_payload_is_never_longer_than_the_overhead(size, weight, adaptive):
    guarantee, watching = private(adaptive=adaptive), Watching()
    situation, start = Situation(9, 1, 5, 1), torch.zeros(1000)
    aggregator = centrally_private(td.FedBuff(), start, situation, guarantee, Seeded, watching)
    delta = size * Seeded(1)(1000)
    aggregator.add(
        delivery(version=9, staleness=2, weight=weight), Upload({"delta": delta}, 1, 1, 0.0), start
    )
    aggregator.step()
    sums, extras = watching.totals[0].sums["delta"], watching.told[0]
    gamma = guarantee.version_gamma
    assert extras[VERSIONS].tolist() == pytest.approx([0, 0, weight * gamma, 0, 0, 0])
    length = float(sums.double().norm()) / 0.7
    payload = math.hypot(length, *(float(extra.double().norm()) for extra in extras.values()))
    assert payload <= guarantee.overhead * (1 + 1e-6)
    if size == 1e-3:
        torch.testing.assert_close(sums, weight * delta)  # within the clip, so it is not changed
    if size == 1e4:
        assert length == pytest.approx(weight, rel=1e-5)
    if size == 1e4 and weight == 1:
        assert payload == pytest.approx(guarantee.overhead, rel=1e-5)


@pytest.mark.parametrize("staleness", [-1, 6])
def test_staleness_without_a_coordinate_is_refused(staleness):
    aggregator = centrally_private(
        td.FedBuff(), torch.zeros(3), Situation(9, 1, 5, 1), private(), Seeded, Watching()
    )
    outside = delivery(version=9, staleness=staleness)
    with pytest.raises(td.RunError, match=rf"a staleness of {staleness}, but .* coordinates for 0 to 5"):
        aggregator.add(outside, Upload({"delta": torch.ones(3)}, 1, 1, 0.0), torch.zeros(3))


def rows(noise_multiplier, law, steps=40, bound=5, **settings):
    privacy = Participation(
        participations=steps, separation=1, noise_multiplier=noise_multiplier, versions="private",
        noise=Independent(), **settings,
    )  # fmt: skip
    guarantee = privacy.guarantee(steps, 30, td.Asynchronous(), td.Buffer(size=4))
    algorithm = td.FedBuff(momentum=td.Approximation(), staleness=law)
    situation, watching = Situation(30, 4, bound, steps), Watching()
    aggregator = centrally_private(algorithm, torch.zeros(3), situation, guarantee, Seeded, watching)
    draw = random.Random(3)
    for version in range(steps):
        for _ in range(4):
            staleness = draw.randint(0, min(version, bound))
            one = delivery(version=version, staleness=staleness, weight=law(staleness))
            aggregator.add(one, Upload({"delta": torch.ones(3)}, 1, 1, 0.0), torch.zeros(3))
        aggregator.step()
        true = np.zeros(bound + 1)
        for member in watching.members[-1]:
            true[-1 - member.staleness] += member.weight / guarantee.divisor
        yield version, true, np.array(watching.totals[-1].row)


LAWS = [td.Constant(), td.Polynomial(), td.Exponential(a=20.0), td.Exponential(a=400.0)]


@pytest.mark.parametrize("law", LAWS, ids=repr)
def test_noisy_row_is_a_possible_row(law):
    weights = np.array([law(s) for s in range(5, -1, -1)])
    for _, true, row in rows(0.0, law):
        np.testing.assert_allclose(row, true, atol=2e-6)
    for version, _, row in rows(3.0, law):
        assert (row >= 0).all()
        assert (row[: max(0, 5 - version)] == 0).all()
        seen = weights >= 1e-6
        if seen.all():
            assert (row / weights).sum() == pytest.approx(1)
        assert (row[~seen] == 0).all()
