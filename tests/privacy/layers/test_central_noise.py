"""The central noise layer: the size of the noise."""

import math

import pytest
import torch

import tardigrad as td
from private_aggregators import Watching, centrally_private, clip_of
from tardigrad.core.situation import Situation
from tardigrad.privacy.blt import BLT
from tardigrad.privacy.clipping import AdaptiveClip
from tardigrad.privacy.independent import Independent
from tardigrad.privacy.momentum_payload import xi_from_gamma
from tardigrad.privacy.normal import Seeded
from tardigrad.privacy.settings import Participation
from tardigrad.privacy.tree import Tree


def drawn(aggregator, watching, steps):
    """What is released where nobody took part: the noise itself."""
    clip = clip_of(aggregator)
    first = clip.clip
    for _ in range(steps):
        aggregator.step()
        clip.clip = first
    sums = [torch.cat([v.reshape(-1) for v in total.sums.values()]) for total in watching.totals]
    return torch.stack(sums), torch.stack([torch.cat(list(extras.values())) for extras in watching.told])


@pytest.mark.parametrize("noise", [Independent(), Tree(), BLT()], ids=lambda noise: noise.kind)
@pytest.mark.parametrize("adaptive", [None, AdaptiveClip(overhead=1.2)], ids=["fixed", "adaptive"])
def test_noise_is_scaled_by_the_norm_of_the_payload(noise, adaptive):
    steps, z, clip = 128, 0.9, 0.4
    privacy = Participation(
        participations=1, noise_multiplier=z, clip=clip, versions="private", version_overhead=1.1,
        adaptive=adaptive, noise=noise,
    )  # fmt: skip
    guarantee = privacy.guarantee(steps, 10**6, td.Asynchronous(), td.Buffer(size=1))
    half = adaptive.gamma / 2 if adaptive else 0.0
    overhead = math.sqrt(1.1**2 + half**2)
    assert guarantee.overhead == pytest.approx(overhead)
    watching = Watching()
    aggregator = centrally_private(
        td.FedBuff(), torch.zeros(2000), Situation(10**6, 1, 1999, steps), guarantee, Seeded, watching
    )
    sums, extras = drawn(aggregator, watching, steps)
    model_noise = math.sqrt(noise.prefix_variance(steps, steps, 1, steps)) * z * overhead
    assert float(sums.sum(dim=0).std()) == pytest.approx(model_noise * clip, rel=0.06)
    versions = extras[:, -2000:]
    assert float(versions.sum(dim=0).std()) == pytest.approx(model_noise, rel=0.06)
    if noise.kind == "independent" and adaptive is None:
        counts = versions / guarantee.version_gamma
        assert float(counts.std()) == pytest.approx(xi_from_gamma(1.0, z, guarantee.version_gamma), rel=0.01)
