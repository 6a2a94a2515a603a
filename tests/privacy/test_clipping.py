"""Clipping: all vectors of an upload together, and never above the clip after rounding."""

import math
import random

import pytest
import torch

from tardigrad.privacy.clipping import AdaptiveClip, clipped
from tardigrad.privacy.normal import Seeded


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e30])
def test_vectors_of_an_upload_are_clipped_together(scale):
    normal = Seeded(4)
    vectors = {"delta": scale * normal(1000), "control": 7 * scale * normal(50)}
    short, within = clipped(vectors, 0.3)
    norm = math.hypot(*(float(v.double().norm()) for v in short.values()))
    assert norm <= 0.3
    if within:
        assert all(short[name] is vectors[name] for name in vectors)
    else:
        assert norm == pytest.approx(0.3, rel=1e-5)
        assert float(short["control"][3] / short["delta"][5]) == pytest.approx(
            float(vectors["control"][3] / vectors["delta"][5]), rel=1e-5
        )


@pytest.mark.parametrize("clip", [1e-8, 1e-7, 3e-6, 1e-3, 1.0])
def test_rounding_of_long_uploads_never_exceeds_the_clip(clip):
    draw = random.Random(5)
    for _ in range(200):
        vector = torch.full((draw.randint(1, 400),), draw.uniform(1e37, 3.4e38))
        assert float(clipped({"delta": vector}, clip)[0]["delta"].double().norm()) <= clip


def test_change_of_the_adaptive_clip_is_limited():
    adaptive = AdaptiveClip(lr=5.0)
    for share in (-1e6, 1e6):
        clip = 1.0
        for _ in range(100):
            following = adaptive.next(clip, share)
            assert abs(math.log(following / clip)) < 1.001
            clip = following
        assert 0 < clip < math.inf
