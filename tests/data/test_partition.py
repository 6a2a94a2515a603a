"""Partitions: each example is assigned once, no client is empty, and the skew is as configured."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from scipy import stats

from tardigrad.data.partition import (
    IID,
    Central,
    Dirichlet,
    DirichletByLabel,
    LogNormalSizes,
    Natural,
    PowerLawSizes,
    Saved,
    Shards,
    load_partition,
    save_partition,
)
from tardigrad.errors import ConfigError


def split(partition, labels, seed=0, users=None):
    return partition.split(np.asarray(labels), np.random.default_rng(seed), users)


def assert_a_partition(parts, labels, clients):
    assert len(parts) == clients
    assert min(len(part) for part in parts) >= 1
    assert sorted(i for part in parts for i in part.tolist()) == list(range(len(labels)))
    sizes = {len(part) for part in parts}
    assert max(sizes) - min(sizes) <= 1
    assert all(np.issubdtype(part.dtype, np.integer) for part in parts)


@given(
    labels=st.lists(st.integers(0, 4), min_size=1, max_size=80),
    share=st.floats(0.01, 1.0),
    alpha=st.sampled_from([1e-6, 0.01, 0.3, 1.0, 100.0]),
    seed=st.integers(0, 5),
)
@settings(max_examples=200, deadline=None, derandomize=True, database=None)
def test_every_example_is_held_by_exactly_one_client(labels, share, alpha, seed):
    clients = max(1, int(share * len(labels)))
    for partition in (IID(clients=clients), Dirichlet(clients=clients, alpha=alpha)):
        assert_a_partition(split(partition, labels, seed), labels, clients)


LABELS = np.repeat(np.arange(10), 200)


@pytest.mark.parametrize("partition", [IID(clients=30), Dirichlet(clients=30, alpha=0.3)])
def test_partition_depends_only_on_labels_and_seed(partition):
    first, again, other = (split(partition, LABELS, seed) for seed in (1, 1, 2))
    assert all((a == b).all() for a, b in zip(first, again))
    assert any((a != b).any() for a, b in zip(first, other) if len(a) == len(b))


def skew(parts, labels=LABELS):
    """Mean share of a client's most frequent label."""
    return np.mean([np.bincount(labels[part]).max() / len(part) for part in parts])


def test_smaller_alpha_gives_more_skew():
    skews = [skew(split(Dirichlet(clients=40, alpha=a), LABELS)) for a in (0.01, 0.1, 0.5, 2.0, 100.0)]
    assert skews == sorted(skews, reverse=True)
    assert skews[0] > 0.85  # nearly one label each
    assert skews[-1] < 0.25  # nearly all labels alike


def test_large_alpha_is_like_iid():
    dirichlet = skew(split(Dirichlet(clients=40, alpha=1e4), LABELS))
    iid = skew(split(IID(clients=40), LABELS))
    assert abs(dirichlet - iid) < 0.04


def test_label_proportions_have_the_variance_of_the_dirichlet():
    # as long as no label runs out, a client's label proportions have the variance of Dirichlet(alpha),
    # p (1 - p) / (10 alpha + 1); drawing its examples one by one adds 1 / size of the rest of p (1 - p)
    alpha, size, p = 0.5, 100, 0.1
    labels = np.repeat(np.arange(10), 2000)
    shares = []
    for seed in range(5):
        parts = split(Dirichlet(clients=200, alpha=alpha), labels, seed)
        shares += [np.bincount(labels[part], minlength=10) / size for part in parts[:25]]
    variance = p * (1 - p) / (10 * alpha + 1)
    expected = variance + (p * (1 - p) - variance) / size
    assert np.mean(np.square(np.array(shares) - p)) == pytest.approx(expected, rel=0.15)


def test_rare_labels_are_rare_for_every_client():
    labels = np.repeat([0, 1], [1900, 100])
    parts = split(Dirichlet(clients=20, alpha=100.0), labels)
    assert np.mean([np.mean(labels[part]) for part in parts]) == pytest.approx(0.05)
    assert max(np.mean(labels[part]) for part in parts) < 0.2


def test_labels_need_not_be_counted_from_zero():
    labels = np.repeat([3, 17, -5], 20)
    assert_a_partition(split(Dirichlet(clients=7, alpha=0.1), labels), labels, 7)


def test_central_is_one_client_with_everything():
    (part,) = split(Central(), LABELS)
    assert part.tolist() == list(range(len(LABELS)))


@pytest.mark.parametrize("partition", [IID(clients=11), Dirichlet(clients=11)])
def test_more_clients_than_examples_are_refused(partition):
    says = r"data\.partition\.clients: 11 clients cannot share 10 examples; give at most 10"
    with pytest.raises(ConfigError, match=says):
        split(partition, [0] * 10)


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (lambda: IID(clients=0), "clients"),
        (lambda: Dirichlet(alpha=0.0), "alpha"),
        (lambda: Dirichlet(alpha=-1.0), "alpha"),
        (lambda: IID(alpha=0.1), "alpha"),
        (lambda: Central(clients=1), "clients"),
    ],
)
def test_error_for_bad_partition_settings_names_the_key(make, names):
    with pytest.raises(ValidationError) as caught:
        make()
    assert [problem["loc"] for problem in caught.value.errors()] == [(names,)]


# -- the shape of Dirichlet partitions ---------------------------------------------------------------


def chi_square(counts, size, alpha, rest):
    """How likely counts of one label (of `size` examples each) are under Dirichlet(alpha, rest)."""
    law = stats.betabinom(size, alpha, rest).pmf(np.arange(size + 1)) * len(counts)
    seen = np.bincount(counts, minlength=size + 1)
    groups = np.zeros(size + 1, dtype=int)  # neighbours together until each is expected five times
    total, group = 0.0, 0
    for value in range(size + 1):
        groups[value] = group
        total += law[value]
        if total >= 5 and law[value + 1 :].sum() >= 5:
            total, group = 0.0, group + 1
    expected, found = np.bincount(groups, law), np.bincount(groups, seen)
    return stats.chisquare(found, expected * found.sum() / expected.sum()).pvalue


SHARES = np.array([0.5, 0.3, 0.15, 0.05])


@pytest.mark.parametrize("alpha", [0.1, 0.5, 3.0])
def test_label_counts_have_the_dirichlet_multinomial_law(alpha):
    # while no label has run out (the first third of the clients), a client's count of label k is
    # beta-binomial: parameter alpha x labels x share of the label, against the other labels' sum
    size, clients = 20, 6000
    labels = np.random.default_rng(0).permutation(
        np.repeat(np.arange(4), (SHARES * size * clients).astype(int))
    )
    parts = split(Dirichlet(clients=clients, alpha=alpha), labels, seed=5)[: clients // 3]
    counts = np.stack([np.bincount(labels[part], minlength=4) for part in parts])
    prior = alpha * 4 * SHARES

    def likelihood(parameters):
        whole = parameters.sum()
        return [chi_square(counts[:, k], size, parameters[k], whole - parameters[k]) for k in range(4)]

    assert min(likelihood(prior)) > 1e-3
    # the test is sharp enough to refuse another alpha, and a prior that does not know the labels' shares
    assert min(likelihood(1.5 * prior)) < 1e-6
    assert min(likelihood(prior / 1.5)) < 1e-6
    assert min(likelihood(np.full(4, alpha))) < 1e-6


def test_fedbuff_partition_gives_5000_clients_ten_examples_each():
    labels = np.repeat(np.arange(10), 5000)
    parts = split(Dirichlet(clients=5000, alpha=0.1), labels)
    assert_a_partition(parts, labels, 5000)
    assert {len(part) for part in parts} == {10}


def test_dirichlet_by_label_shares_have_the_beta_distribution():
    # a client's share of one label is Beta(alpha, alpha x the others); alpha is so large here that few
    # shares are near 0, where whole examples are too coarse for a continuous law
    clients, alpha = 20, 2.0
    labels = np.repeat(np.arange(300), 2000)
    parts = split(DirichletByLabel(clients=clients, alpha=alpha, minimum=0), labels, seed=1)
    shares = np.stack([np.bincount(labels[part], minlength=300) / 2000 for part in parts])
    law = stats.beta(alpha, alpha * (clients - 1))
    assert min(stats.kstest(shares[client], law.cdf).pvalue for client in range(clients)) > 1e-3
    assert shares.var() == pytest.approx(law.var(), rel=0.1)  # 1.25 alpha would be 20 % less


# -- the other partitions ----------------------------------------------------------------------------

UNEQUAL = [
    DirichletByLabel(clients=60, alpha=0.05),
    Shards(clients=60, shards=3),
    LogNormalSizes(clients=60, sigma=2.0),
    PowerLawSizes(clients=60, exponent=0.5),
]


@pytest.mark.parametrize("partition", UNEQUAL, ids=lambda partition: partition.kind)
@pytest.mark.parametrize("seed", range(3))
def test_unequal_partitions_assign_each_example_once_and_leave_no_client_empty(partition, seed):
    parts = split(partition, LABELS, seed)
    assert len(parts) == 60
    assert min(len(part) for part in parts) >= 1
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(len(LABELS)))
    again, other = split(partition, LABELS, seed), split(partition, LABELS, seed + 1)
    assert all(np.array_equal(a, b) for a, b in zip(parts, again))
    assert not all(np.array_equal(a, b) for a, b in zip(parts, other))


@pytest.mark.parametrize("kind", [DirichletByLabel, LogNormalSizes, PowerLawSizes])
def test_minimum_zero_leaves_empty_clients_out(kind):
    skewed = {"alpha": 0.01} if kind is DirichletByLabel else {}
    skewed |= {"sigma": 4.0} if kind is LogNormalSizes else {}
    skewed |= {"exponent": 0.2} if kind is PowerLawSizes else {}
    parts = split(kind(clients=300, minimum=0, **skewed), LABELS)
    assert len(parts) < 300
    assert min(len(part) for part in parts) >= 1
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(len(LABELS)))
    assert min(len(part) for part in split(kind(clients=300, minimum=4, **skewed), LABELS)) == 4


def test_shards_have_few_labels():
    parts = split(Shards(clients=50, shards=2), LABELS)
    assert {len(part) for part in parts} == {40}
    labels = [len(np.unique(LABELS[part])) for part in parts]
    assert max(labels) == 2  # shards of 20 do not cross the border between two labels of 200
    assert sum(labels) > 80  # and seldom are of one label


def test_examples_of_a_shard_are_random_within_a_label():
    # within a label, which examples lie together in a shard is random too
    part = split(Shards(clients=10, shards=1), LABELS)[0]
    assert len(part) == 200
    (part, *_) = split(Shards(clients=100, shards=1), LABELS)
    assert np.ptp(part) > 100


def test_sizes_are_log_normal():
    sizes = np.array([len(p) for p in split(LogNormalSizes(clients=2000, sigma=0.7), np.zeros(2_000_000))])
    assert stats.kstest(np.log(sizes), stats.norm(np.log(sizes).mean(), 0.7).cdf).pvalue > 1e-3
    assert np.log(sizes).std() == pytest.approx(0.7, rel=0.05)


def test_sizes_follow_a_power_law():
    sizes = np.array([len(p) for p in split(PowerLawSizes(clients=2000, exponent=2.0), np.zeros(2_000_000))])
    ratios = np.log(sizes / sizes.min())
    assert stats.kstest(ratios, stats.expon(scale=1 / 2.0).cdf).pvalue > 1e-3
    assert stats.kstest(ratios, stats.expon(scale=1 / 2.5).cdf).pvalue < 1e-6


def test_labels_of_unequal_clients_are_iid():
    parts = split(PowerLawSizes(clients=10, exponent=1.0), LABELS, seed=2)
    largest = max(parts, key=len)
    assert stats.chisquare(np.bincount(LABELS[largest], minlength=10)).pvalue > 1e-3


def test_natural_clients_are_the_users():
    users = np.array(["zoe", "bob", "zoe", "al", "bob", "zoe"])
    parts = split(Natural(), np.zeros(6), users=users)
    assert [part.tolist() for part in parts] == [[3], [1, 4], [0, 2, 5]]


def test_natural_partition_without_users_is_refused():
    with pytest.raises(ConfigError, match="does not say whose each example is"):
        split(Natural(), LABELS)


@pytest.mark.parametrize("partition", [Shards(clients=11, shards=2), LogNormalSizes(clients=11, minimum=2)])
def test_too_few_examples_for_the_minimum_are_refused(partition):
    with pytest.raises(ConfigError, match="11 clients with 2 each cannot share 20 examples; give at most 10"):
        split(partition, [0] * 20)


# -- saved partitions --------------------------------------------------------------------------------


def test_saved_partition_is_loaded_unchanged(tmp_path):
    file = tmp_path / "mine.npz"
    parts = split(Dirichlet(clients=30), LABELS)
    save_partition(file, parts, LABELS)
    for back in (load_partition(file, LABELS), split(Saved(file=file), LABELS, seed=9)):
        assert len(back) == 30
        assert all(np.array_equal(a, b) for a, b in zip(parts, back))


def test_saved_partition_may_leave_examples_out(tmp_path):
    save_partition(tmp_path / "some", [np.array([5, 3]), np.array([0])], LABELS)
    assert [part.tolist() for part in load_partition(tmp_path / "some", LABELS)] == [[5, 3], [0]]


def written(tmp_path, **arrays):
    np.savez(tmp_path / "bad.npz", **arrays)
    return tmp_path / "bad.npz"


GOOD = {"indices": np.array([0, 1, 2]), "sizes": np.array([2, 1]), "examples": np.array(2000)}


def test_saved_partition_without_a_checksum_is_loaded(tmp_path):
    assert [len(part) for part in load_partition(written(tmp_path, **GOOD), LABELS)] == [2, 1]


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"examples": np.array(1999)}, "divides 1999 examples, but the data set has 2000"),
        ({"indices": np.array([0, 1, 1])}, "gives an example to two clients, or twice to one"),
        ({"indices": np.array([0, 1, 2000])}, "must have indices from 0 to 1999"),
        ({"indices": np.array([0, 1, -1])}, "must have indices from 0 to 1999"),
        ({"indices": np.array([0.0, 1.0, 2.0])}, "sizes that do not add up"),
        ({"sizes": np.array([2, 2])}, "sizes that do not add up"),
        ({"sizes": np.array([3, 0])}, "sizes that do not add up"),
        ({"indices": np.array([{}, 1, 2], dtype=object)}, "is not a saved partition"),  # would be unpickled
        ({"labels_sha256": np.zeros(32, dtype=np.uint8)}, "a data set of the same size but other labels"),
    ],
)
def test_malformed_saved_partition_is_refused(tmp_path, changed, says):
    with pytest.raises(ConfigError, match=says):
        load_partition(written(tmp_path, **(GOOD | changed)), LABELS)


def test_saved_partition_of_other_labels_is_refused(tmp_path):
    save_partition(tmp_path / "mine.npz", split(IID(clients=5), LABELS), LABELS)
    with pytest.raises(ConfigError, match="other labels"):
        load_partition(tmp_path / "mine.npz", LABELS[::-1])


@pytest.mark.parametrize("content", [b"", b"no partition", b"PK\x03\x04 torn off", b"\x93NUMPY\x01"])
def test_file_that_is_not_a_partition_is_refused(tmp_path, content):
    (tmp_path / "bad.npz").write_bytes(content)
    with pytest.raises(ConfigError, match=r"bad\.npz is not a saved partition"):
        load_partition(tmp_path / "bad.npz", LABELS)


def test_error_for_a_missing_partition_file_names_it(tmp_path):
    with pytest.raises(ConfigError, match=r"there is no file .*nowhere\.npz"):
        load_partition(tmp_path / "nowhere.npz", LABELS)
