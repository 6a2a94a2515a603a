"""The canaries: how they are drawn, and their directions."""

from tardigrad.privacy.layers.canaries import Canaries


def test_canaries_are_deterministic_and_half_are_included():
    canaries = Canaries.drawn(10_000, 2000, seed=3)
    assert canaries == Canaries.drawn(10_000, 2000, seed=3)
    assert canaries != Canaries.drawn(10_000, 2000, seed=4)
    assert len(canaries.included) == 2000
    assert 900 < sum(canaries.included.values()) < 1100
    signs = canaries.directions(400)
    assert set(signs.unique().tolist()) == {-1, 1}
    overlaps = (signs[:50].float() @ signs[:50].float().T / 400).fill_diagonal_(0)
    assert overlaps.abs().max() < 0.3
