"""Draws depend on (seed, purpose, index) and on nothing else."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from tardigrad.core.draws import BLOCK, Draws, key, uniform


def test_a_draw_can_be_repeated_in_any_order():
    places = [0, 1, BLOCK - 1, BLOCK, 5 * BLOCK + 3, 10**9, 2]
    forwards = {n: Draws(0, "x", uniform)[n] for n in places}
    one = Draws(0, "x", uniform)
    backwards = {n: one[n] for n in reversed(places)}
    assert forwards == backwards


def test_draw_of_a_discarded_block_is_repeated():
    draws = Draws(0, "x", lambda random, n: random.random(n))
    first = draws[7]
    for block in range(600):  # more than are kept
        draws[block * BLOCK]
    assert len(draws._blocks) <= 512
    assert draws[7] == first


def test_seed_purpose_and_index_all_matter():
    places = [0, 1, *(BLOCK * n for n in range(1, 20))]
    values = [Draws(seed, purpose, uniform)[n] for seed in (0, 1) for purpose in "ab" for n in places]
    assert len(set(values)) == len(values)


def test_uniform_is_uniform_across_blocks():
    draws = Draws(3, "x", uniform)
    values = [draws[n] for n in range(5 * BLOCK)]
    assert stats.kstest(values, "uniform").pvalue > 1e-3
    assert all(0 <= value < 1 for value in values)


def test_global_random_state_is_neither_read_nor_changed():
    np.random.seed(1)  # noqa: NPY002
    torch.manual_seed(1)
    numpy_before, torch_before = np.random.get_state()[1].copy(), torch.get_rng_state()  # noqa: NPY002
    first = Draws(0, "x", uniform)[0]
    assert (np.random.get_state()[1] == numpy_before).all()  # noqa: NPY002
    assert torch.equal(torch.get_rng_state(), torch_before)
    np.random.seed(2)  # noqa: NPY002
    assert Draws(0, "x", uniform)[0] == first


def test_keys_never_change():
    # a run that was begun with one release must be resumed by the next
    assert key(0, "trip", 0) == 8999404631226435361
    assert key(1, "delay", 2, 3) == 139561696124248517


@given(
    a=st.tuples(
        st.integers(0, 3), st.sampled_from(["x", "y", "x/1"]), st.lists(st.integers(0, 3), max_size=3)
    ),
    b=st.tuples(
        st.integers(0, 3), st.sampled_from(["x", "y", "x/1"]), st.lists(st.integers(0, 3), max_size=3)
    ),
)
@settings(max_examples=300, deadline=None, derandomize=True, database=None)
def test_different_purposes_have_different_keys(a, b):
    flat = [f"{seed}/{purpose}/{'/'.join(map(str, numbers))}" for seed, purpose, numbers in (a, b)]
    same = key(a[0], a[1], *a[2]) == key(b[0], b[1], *b[2])
    assert same == (flat[0] == flat[1])
    assert 0 <= key(a[0], a[1], *a[2]) < 2**63


@pytest.mark.parametrize("seed", [0, 1, 2**63, 2**100])
def test_seeds_of_any_size_are_accepted(seed):
    assert 0 <= Draws(seed, "x", uniform)[0] < 1
