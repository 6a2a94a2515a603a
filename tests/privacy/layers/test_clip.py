"""The clip layer: an adaptive clip follows the released share."""

import numpy as np
import pytest
import torch

import tardigrad as td
from private_aggregators import centrally_private, clip_of, delivery
from tardigrad.core.situation import Situation
from tardigrad.core.upload import Upload
from tardigrad.privacy.clipping import AdaptiveClip
from tardigrad.privacy.normal import Seeded
from tardigrad.privacy.settings import Participation


@pytest.mark.parametrize("quantile", [0.3, 0.8])
def test_adaptive_clip_converges_to_the_quantile(quantile):
    adaptive = AdaptiveClip(quantile=quantile)
    privacy = Participation(
        participations=200, separation=1, noise_multiplier=0.0, clip=5.0, adaptive=adaptive
    )
    guarantee = privacy.guarantee(200, 10**4, td.Asynchronous(), td.Buffer(size=20))
    aggregator = centrally_private(
        td.FedBuff(), torch.zeros(1), Situation(10**4, 20, 5, 200), guarantee, Seeded
    )
    norms = np.random.default_rng(1).lognormal(-1.0, 0.7, size=(200, 20))
    clips = []
    for version, row in enumerate(norms):
        for norm in row:
            upload = Upload({"delta": torch.tensor([norm], dtype=torch.float32)}, 1, 1, 0.0)
            aggregator.add(delivery(version=version, weight=0.5), upload, torch.zeros(1))
        clips.append(clip_of(aggregator).clip)
        assert aggregator.step()["clip"] == clips[-1]
    assert clips[0] == 5.0
    assert np.mean(clips[-80:]) == pytest.approx(np.quantile(norms, quantile), rel=0.1)
