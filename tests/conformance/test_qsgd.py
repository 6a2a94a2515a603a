"""int8 and int4 against QSGD (Alistarh et al., section 3.1), computed naively in float64.

Q(v)_i = |v| sgn(v_i) xi_i, where xi_i is l/s with probability 1 - p and (l + 1)/s with probability p;
l = floor(s |v_i| / |v|) and p = s |v_i| / |v| - l. As in the paper's experiments, |v| is the largest
magnitude of a bucket of consecutive numbers.
"""

import math

import numpy as np
import pytest
import torch

import tardigrad as td
from tardigrad.encodings.encoding import encoding_random

DRAWS = 20_000


@pytest.mark.parametrize(("encoding", "s"), [(td.Int8(block=16), 127), (td.Int4(block=16), 7)])
def test_levels_and_their_frequencies_are_those_of_the_paper(encoding, s):
    v = np.random.default_rng(1).normal(size=48)
    v[3] = 0.0
    vector = torch.from_numpy(v).float()
    many = vector.repeat(DRAWS)
    parts = encoding.encode("d", many, encoding_random(1))
    found = encoding.decode("d", parts, len(many)).double().view(DRAWS, 48).numpy()
    for i, x in enumerate(vector.double().numpy()):
        bucket = vector.double().numpy()[i // 16 * 16 : i // 16 * 16 + 16]
        norm = max(abs(y) for y in bucket)
        level = math.floor(s * abs(x) / norm * (1 - 1e-9))
        p = s * abs(x) / norm - level
        low, high = (math.copysign(norm * one / s, x) for one in (level, level + 1))
        is_low, is_high = (np.isclose(found[:, i], one, rtol=1e-5, atol=1e-9) for one in (low, high))
        assert bool((is_low | is_high).all())
        deviation = math.sqrt(max(p * (1 - p), 1e-6) / DRAWS)
        assert abs(is_high.mean() - p) < 5 * deviation, (i, is_high.mean(), p)
