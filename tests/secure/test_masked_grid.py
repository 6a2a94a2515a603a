"""The masked grid layer: what a server sees, what it unmasks, and what it does with a batch that is none."""

import logging

import numpy as np
import pytest
import scipy
import torch
from blake3 import blake3

import tardigrad as td
from tardigrad.algorithms.aggregator import Aggregator
from tardigrad.core.outcomes import Accepted, Ticket
from tardigrad.core.situation import Situation
from tardigrad.core.upload import Task, Upload, WeightedSum
from tardigrad.encodings.layer import GridLayer
from tardigrad.errors import ConfigError
from tardigrad.secure import masks, simulated_helpers
from tardigrad.secure.masked_grid import MaskedGridLayer, spare
from tardigrad.secure.masks import weighted_masks
from tardigrad.secure.policy_of_run import SecureRun, grid_with_headroom
from tardigrad.secure.secure_settings import Secure
from tardigrad.secure.simulated_helpers import SimulatedHelpers

K = 4


class TwoVectors(td.FedBuff):
    """An algorithm whose second vector is not discounted, as those of CA2FL and SCAFFOLD are not."""

    undiscounted = frozenset({"control"})

    def rule(self, task, memory, lr):
        rule = super().rule(task, memory, lr)
        rule.finish = lambda end, steps, lr_sum: {"delta": rule.start - end, "control": rule.start - end}
        return rule


def secure_run(dimension=6, algorithm=None, least=2, limit=1.0, bits=32, helpers=2) -> SecureRun:
    algorithm = algorithm or td.FedBuff(staleness="polynomial")
    secure = Secure(least_clients=least, limit=limit, bits=bits, noise="nobody", helpers=helpers)
    grid = td.Grid(bits=bits, limit=limit, uploads=K)
    names = ["delta", "control"] if isinstance(algorithm, TwoVectors) else ["delta"]
    lengths = dict.fromkeys(names, dimension)
    grid = grid_with_headroom(grid, sum(lengths.values()), None, helpers)
    buffer, pace = td.Buffer(size=K, once_per_client=True), td.Asynchronous(concurrency=10)
    return SecureRun(secure, grid, algorithm, pace, buffer, Situation(20, K), lengths)


def aggregator_of(run: SecureRun, masked=True, simulated=True) -> Aggregator:
    identities = tuple(f"helper {n}" for n in range(run.secure.helper_count))
    policy = run.policy("run", "", "", identities, "")
    helpers = SimulatedHelpers(policy, masked) if simulated else None
    layer = MaskedGridLayer(run.grid, run.algorithm, lambda trip: trip, None, helpers)
    dimension = next(iter(run.lengths.values()))
    return Aggregator(run.algorithm, torch.zeros(dimension), run.situation, layers=[layer])


def layer_of(aggregator: Aggregator) -> MaskedGridLayer:
    (layer,) = aggregator.layers
    assert isinstance(layer, MaskedGridLayer)
    return layer


def leaving(aggregator, trip, vectors, version=0) -> Upload:
    """Return an upload as it leaves its client."""
    upload = Upload({name: vector.clone() for name, vector in vectors.items()}, 7, 3, 0.5)
    task = Task(trip, trip, version, aggregator.broadcast())
    return layer_of(aggregator).client(upload, task, {})


def add(aggregator, trip, upload, staleness=0) -> None:
    version = aggregator.version
    law = aggregator.algorithm.law
    weight = max(1, round(law(staleness) * 256)) / 256
    accepted = Accepted(Ticket(trip, trip, version - staleness, 0.0), 1.0, version, weight, 1.0, False)
    aggregator.add(accepted, upload, aggregator.broadcast()["model"])


def uploads(count, dimension=6, seed=0, names=("delta",)):
    generator = torch.Generator().manual_seed(seed)
    return [{name: torch.rand(dimension, generator=generator) - 0.5 for name in names} for _ in range(count)]


def test_sum_of_masked_uploads_is_the_weighted_sum_of_the_uploads():
    run = secure_run(algorithm=TwoVectors(staleness="polynomial"))
    aggregator = aggregator_of(run)
    aggregator.version = 10
    given, staleness = uploads(K, names=("delta", "control")), [0, 1, 3, 8]
    for trip, (vectors, late) in enumerate(zip(given, staleness)):
        add(aggregator, trip, leaving(aggregator, trip, vectors), late)
    aggregator.close()
    buffer = aggregator._closed[0]
    total = layer_of(aggregator).release(buffer, WeightedSum(buffer.sums, (), 10, 4.0))
    weights = [round((late + 1) ** -0.5 * 256) / 256 for late in staleness]
    delta = sum(w * v["delta"].double() for w, v in zip(weights, given))
    control = sum(v["control"].double() for v in given)
    assert torch.allclose(total.sums["delta"].double(), delta, atol=K * run.grid.step, rtol=0)
    assert torch.allclose(total.sums["control"].double(), control, atol=K * run.grid.step, rtol=0)


def test_nothing_but_masked_vectors_and_a_salt_leaves_a_client():
    aggregator = aggregator_of(secure_run())
    upload = leaving(aggregator, 0, uploads(1)[0])
    assert (upload.examples, upload.steps, upload.loss) == (1, 1, 0.0)
    assert list(upload.vectors) == ["delta/codes", "salt"]


def test_masked_bytes_are_uniform(monkeypatch):
    """Chi-square over two million bytes of an upload whose numbers are nearly all equal."""
    seeds = np.random.default_rng(1)
    monkeypatch.setattr(simulated_helpers, "new_seeds", lambda n: tuple(seeds.bytes(32) for _ in range(n)))
    dimension = 500_000
    aggregator = aggregator_of(secure_run(dimension))
    plain = layer_of(aggregator_of(secure_run(dimension), masked=False))
    vectors = {"delta": torch.full((dimension,), 0.25)}
    seen = leaving(aggregator, 0, vectors).vectors["delta/codes"].numpy().view(np.uint8)
    bare = plain.client(Upload(vectors, 1, 1, 0.0), Task(0, 0, 0, {}), {}).vectors["delta/codes"]
    assert scipy.stats.chisquare(np.bincount(seen, minlength=256)).pvalue > 1e-3
    pairs = seen.view(np.uint16)
    assert scipy.stats.chisquare(np.bincount(pairs, minlength=2**16)).pvalue > 1e-3
    assert scipy.stats.chisquare(np.bincount(bare.numpy().view(np.uint8), minlength=256)).pvalue < 1e-9


def test_equal_sums_of_different_uploads_give_transcripts_that_differ_only_in_masks(monkeypatch):
    """For each seeds of the one buffer there are seeds of the other with the same transcript: here the masks
    themselves are chosen, as the server sees them."""
    run = secure_run(helpers=1)
    drawn = np.random.default_rng(5).integers(0, 2**32, (K, 6), dtype=np.uint32)
    one = np.array([[1, 2, 3, 4, 5, 6], [6, 5, 4, 3, 2, 1], [9, 9, 9, 9, 9, 9], [0, 0, 0, 0, 0, 1]])
    other = np.array([[16, 0, 0, 0, 0, 0], [0, 16, 0, 0, 0, 0], [0, 0, 16, 0, 0, 17], [0, 0, 0, 16, 16, 0]])
    assert np.array_equal(one.sum(0), other.sum(0))

    class Chosen:
        """The stream of a mask that is chosen, and not made from a seed."""

        def __init__(self, seed, bits):
            self.numbers, self.at = masks_of[seed], 0

        def take(self, count, scratch=None):
            self.at += count
            return self.numbers[self.at - count : self.at]

    monkeypatch.setattr(masks, "MaskStream", Chosen)
    transcripts = []
    for codes, chosen in ((one, drawn), (other, drawn + (one - other).astype(np.uint32))):
        masks_of = {bytes([n]) * 32: mask for n, mask in enumerate(chosen)}
        seeds = iter(masks_of)
        monkeypatch.setattr(simulated_helpers, "new_seeds", lambda n, seeds=seeds: (next(seeds),))
        aggregator = aggregator_of(run)
        seen = []
        for trip, row in enumerate(codes):
            vectors = {"delta/codes": torch.from_numpy(row.astype(np.int32))}
            hidden = layer_of(aggregator)._helpers.masked(trip, vectors)
            seen.append(hidden["delta/codes"].clone())
            add(aggregator, trip, Upload(hidden, 1, 1, 0.0))
        aggregator.close()
        layer = layer_of(aggregator)
        transcripts.append((seen, layer.masked_digest(0), layer._released[0].copy()))
        aggregator.step()
    (seen, digest, released), (also, same_digest, same_released) = transcripts
    assert all(map(torch.equal, seen, also))
    assert digest == same_digest
    assert np.array_equal(released, same_released)


def test_what_helpers_release_does_not_depend_on_the_uploads(monkeypatch):
    released = []
    for seed in (1, 2):
        seeds = np.random.default_rng(9)
        monkeypatch.setattr(
            simulated_helpers, "new_seeds", lambda n, s=seeds: tuple(s.bytes(32) for _ in range(n))
        )
        aggregator = aggregator_of(secure_run())
        for trip, vectors in enumerate(uploads(K, seed=seed)):
            add(aggregator, trip, leaving(aggregator, trip, vectors))
        aggregator.close()
        released.append(layer_of(aggregator)._released[0])
    assert np.array_equal(*released)


# -- a server, whose helpers are elsewhere ---------------------------------------------------------


def served_buffer(run: SecureRun, seed=0):
    """Return an aggregator with a closed buffer, its codes, and the sum of what its helpers release."""
    aggregator = aggregator_of(run, simulated=False)
    grid = GridLayer(run.grid, run.algorithm, lambda trip: trip)
    codes, seeds = [], []
    for trip, vectors in enumerate(uploads(K, seed=seed)):
        upload = grid.client(Upload(vectors, 1, 1, 0.0), Task(trip, trip, 0, {}), {})
        codes.append(upload.vectors["delta/codes"].numpy().astype(np.int64))
        own = masks.new_seeds(2)
        seeds += [(seed, (256,)) for seed in own]
        add(aggregator, trip, Upload(masks.masked(upload.vectors, own, 32), 1, 1, 0.0))
    aggregator.close()
    return aggregator, codes, weighted_masks(seeds, (6,), 32)


def test_step_waits_for_what_the_helpers_release():
    aggregator, codes, released = served_buffer(secure_run())
    called = []
    aggregator.notify(lambda: called.append(True))
    assert not aggregator.ready
    layer_of(aggregator).unmask(0, released)
    assert aggregator.ready
    assert called == [True]
    aggregator.step()
    total = layer_of(aggregator).released_total(0)
    assert total is not None
    assert total.view(np.int32).tolist() == (256 * sum(codes)).tolist()
    layer_of(aggregator).receipted(0)
    assert layer_of(aggregator).released_total(0) is None


def test_digest_is_that_of_the_masked_sum_as_little_endian_integers():
    aggregator, codes, released = served_buffer(secure_run())
    expected = (256 * sum(codes)).astype(np.uint32) + released
    assert layer_of(aggregator).masked_digest(0) == blake3(expected.astype("<u4").tobytes()).digest()


def test_abandoned_batch_counts_as_a_version_and_leaves_the_model():
    aggregator, _, _ = served_buffer(secure_run())
    before = aggregator.state["model"].clone()
    layer_of(aggregator).unmask(0, None)
    assert aggregator.ready
    assert aggregator.step() == {}
    assert aggregator.version == 1
    assert torch.equal(aggregator.state["model"], before)
    assert layer_of(aggregator).released_total(0) is None


@pytest.mark.parametrize("moment", ["closed", "released", "abandoned", "moved"])
def test_restored_server_goes_on_with_the_same_sums(moment):
    run = secure_run()
    aggregator, _, released = served_buffer(run)
    if moment != "closed":
        layer_of(aggregator).unmask(0, None if moment == "abandoned" else released)
    if moment == "moved":
        aggregator.step()
    other = aggregator_of(run, simulated=False)
    tensors, document = aggregator.snapshot()
    other.restore({name: tensor.clone() for name, tensor in tensors.items()}, document)
    if moment == "closed":
        assert not other.ready
        assert layer_of(other).masked_digest(0) == layer_of(aggregator).masked_digest(0)
        for one in (aggregator, other):
            layer_of(one).unmask(0, released)
    if moment != "moved":
        aggregator.step()
        other.step()
    assert torch.equal(aggregator.state["model"], other.state["model"])
    ours, theirs = (layer_of(one).released_total(0) for one in (aggregator, other))
    assert (ours is None and theirs is None) or np.array_equal(ours, theirs)


# -- sums that no honest clients make ---------------------------------------------------------------


def test_sum_of_the_largest_codes_does_not_wrap_around(caplog):
    run = secure_run()
    aggregator = aggregator_of(run)
    for trip in range(K):
        vectors = {"delta": torch.tensor([1.0, -1.0, 1.0, -1.0, 9.0, -9.0])}
        add(aggregator, trip, leaving(aggregator, trip, vectors))
    metrics = aggregator.step()
    assert torch.equal(aggregator.state["model"].sign(), -torch.tensor([1.0, -1.0] * 3))
    assert torch.allclose(aggregator.state["model"].abs(), torch.ones(6), atol=1e-6)
    assert "beyond_limit" not in metrics
    assert not caplog.records


@pytest.mark.parametrize("times", [1.15, 1.25])
def test_sum_that_wraps_around_is_noticed(times, caplog):
    """All clients lie and send codes beyond the limit, so far that the sum just wraps around."""
    run = secure_run()
    aggregator = aggregator_of(run)
    lie = int(run.grid.largest * times)
    assert lie * K * 256 > 2**31
    for trip in range(K):
        vectors = {"delta/codes": torch.tensor([lie, -lie, 0, 0, 0, 0], dtype=torch.int32)}
        hidden = layer_of(aggregator)._helpers.masked(trip, vectors)
        add(aggregator, trip, Upload(hidden, 1, 1, 0.0))
    with caplog.at_level(logging.WARNING):
        assert aggregator.step()["beyond_limit"] == 2.0
    assert "2 numbers of the sum of version 1 are larger" in caplog.text


@pytest.mark.parametrize("bits", [16, 32])
def test_headroom_keeps_an_eighth_of_the_range_free(bits):
    grid = secure_run(bits=bits).grid
    assert K * 256 * grid.largest <= 2 ** (bits - 1) - spare(bits)
    assert K * 256 * (grid.largest + 1) > 2 ** (bits - 1) - spare(bits)


def test_layer_refuses_algorithms_that_need_single_uploads():
    run = secure_run(algorithm=td.FedAsync())
    with pytest.raises(ConfigError, match="masked grid"):
        Aggregator(
            td.FedAsync(), torch.zeros(6), run.situation,
            layers=[MaskedGridLayer(run.grid, td.FedAsync(), lambda trip: trip)],
        )  # fmt: skip
