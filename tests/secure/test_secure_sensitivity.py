"""The sensitivity of a secure run, measured by attack: without the uploads of one client, whatever they are,
the released sums change by at most what the accounting assumes."""

import math
import random

import numpy as np
import pytest
import torch

import tardigrad as td
from tardigrad.core.participation import Limits
from tardigrad.core.situation import Situation
from tardigrad.core.upload import Task, Upload
from tardigrad.encodings.layer import GridLayer, joint_norm
from tardigrad.secure.batches import AdmittedUpload, BatchBook
from tardigrad.secure.integer_noise import IntegerNoise
from tardigrad.secure.masks import masked, new_seeds, weighted_masks
from tardigrad.secure.policy import Policy
from tardigrad.secure.policy_of_run import SecureRun, grid_with_headroom
from tardigrad.secure.secure_settings import Secure

K, STEPS, SIZE, CLIP, MULTIPLIER = 3, 12, 40, 0.7, 0.8
VICTIM = "victim"
NOISES = [td.Independent(), td.Tree(), td.Tree(honaker=False, restart_every=5), td.BLT()]
LAWS = [td.Constant(), td.Polynomial(), td.Hinge(b=1.0)]


class TwoVectors(td.FedBuff):
    """The second vector is not discounted, as those of CA2FL and SCAFFOLD are not."""

    undiscounted = frozenset({"control"})


def secure_run(noise, law, bits, seed=0) -> SecureRun:
    """Return a run whose grid is coarse, so that rounding matters."""
    rng = random.Random(f"{noise!r} {law!r} {bits}")
    limits = Limits(rng.choice([1, 2, 4]), rng.choice([1, 2, 3]))
    privacy = td.Participation(
        noise_multiplier=MULTIPLIER, clip=CLIP, noise=noise, participations=limits.participations,
        separation=limits.separation, noise_from="seed",
    )  # fmt: skip
    buffer, pace = td.Buffer(size=K, once_per_client=True), td.Asynchronous(concurrency=10)
    guarantee = privacy.guarantee(STEPS, 1000, pace, buffer, 4 * 2 * SIZE)
    secure = Secure(least_clients=2, limit=CLIP, bits=bits, denominator=8, noise="helper")
    grid = td.Grid(bits=bits, limit=CLIP, uploads=K, denominator=8, clip=CLIP)
    grid = grid_with_headroom(grid, 2 * SIZE, guarantee, 1)
    lengths = {"delta": SIZE, "control": SIZE}
    algorithm = TwoVectors(staleness=law)
    situation = Situation(1000, K, None, STEPS)
    return SecureRun(secure, grid, algorithm, pace, buffer, situation, lengths, privacy, guarantee, seed)


def schedule(policy: Policy, rng: random.Random) -> list[AdmittedUpload]:
    """Return the uploads of all batches: the victim comes as often and as fresh as it is admitted."""
    book, admitted, trip = BatchBook(policy), [], 0
    while book.open.number <= STEPS:
        now = book.open.number - 1
        for client in (VICTIM, f"client {rng.randrange(500)}"):
            version = now if client == VICTIM and rng.random() < 0.7 else rng.randint(max(0, now - 4), now)
            found = book.admit(trip, client, version)
            if isinstance(found, AdmittedUpload):
                admitted.append(found)
                trip += 1
    return [one for one in admitted if one.batch <= STEPS]


def vectors_of(rng: torch.Generator, coarse: float, way: int) -> dict[str, torch.Tensor]:
    """Return an upload that is long after its clip: in a random direction, or between all points of the
    grid, or in one coordinate, or one that is not finite."""
    vectors = {name: torch.randn(SIZE, generator=rng) * 10 for name in ("delta", "control")}
    if way == 1:
        between = CLIP / math.sqrt(2 * SIZE) // coarse * coarse + coarse / 2
        vectors = {name: torch.full((SIZE,), between) for name in vectors}
    if way == 2:
        vectors = {name: torch.eye(SIZE)[3] * 100 * (name == "control") for name in vectors}
    if way == 3:
        vectors["delta"][0] = math.inf
    return vectors


def released(policy: Policy, run: SecureRun, members, codes, without=None) -> np.ndarray:
    """Return what is released of each step, as a server unmasks it, with the same noise in each world."""
    noise = IntegerNoise(policy.noise, sum(policy.lengths))
    totals = []
    for batch in range(1, STEPS + 1):
        total, seeds = np.zeros(sum(policy.lengths), np.uint32 if policy.bits == 32 else np.uint16), []
        for member in (one for one in members if one.batch == batch):
            own = codes[member.trip]
            if member.client == without:
                own = {name: torch.zeros_like(vector) for name, vector in own.items()}
            (seed,) = new_seeds(1)
            weights = policy.weights(member.staleness)
            seeds.append((seed, weights))
            hidden = masked(own, (seed,), policy.bits)
            parts = [v.numpy().astype(np.int64) * w for v, w in zip(hidden.values(), weights)]
            total += np.concatenate(parts).astype(total.dtype)
        release = weighted_masks(seeds, policy.lengths, policy.bits)
        release -= noise.draw(batch - 1).astype(release.dtype)
        total -= release
        totals.append(total.view(np.int32 if policy.bits == 32 else np.int16).astype(np.int64))
    return np.array(totals)


def covariance(noise, steps) -> np.ndarray:
    """Return the covariance of the noise of all steps, for a multiplier of 1, from what is really drawn."""
    count = 2 * steps
    calls = iter(range(count))

    def unit(dimension):
        vector = torch.zeros(count)
        vector[next(calls)] = 1.0
        return vector

    state = noise.start(count, steps, 1, 1)
    rows = torch.stack([noise.draw(state, unit).clone() for _ in range(steps)]).double().numpy()
    return rows @ rows.T


@pytest.mark.parametrize("bits", [16, 32])
@pytest.mark.parametrize("noise", NOISES, ids=repr)
@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.kind)
def test_without_one_client_released_sums_change_by_at_most_the_claim(noise, law, bits):
    run = secure_run(noise, law, bits)
    policy = run.policy("run", "", "", ("helper",), "")
    assert policy.noise is not None
    assert run.guarantee is not None
    layer = GridLayer(run.grid, run.algorithm, lambda trip: trip)
    rng, generator = random.Random(f"{law!r}"), torch.Generator().manual_seed(3)
    inverse = np.linalg.inv(covariance(policy.noise.noise(), STEPS))
    claim = policy.noise.noise().sensitivity(STEPS, *run.guarantee.limits) / MULTIPLIER
    largest = 0.0
    for way in range(4):
        members = schedule(policy, rng)
        codes = {}
        for member in members:
            vectors = vectors_of(generator, run.grid.step, way if member.client == VICTIM else 0)
            task = Task(member.trip, 0, 0, {})
            codes[member.trip] = layer.client(Upload(vectors, 1, 1, 0.0), task, {}).vectors
            assert joint_norm(codes[member.trip]) <= policy.norm
        with_victim = released(policy, run, members, codes)
        change = with_victim - released(policy, run, members, codes, without=VICTIM)
        bound = 2 ** (bits - 1) - 2 ** (bits - 4)
        assert np.abs(with_victim).max() <= bound, "nothing wraps around"
        mu = math.sqrt(np.einsum("td,ts,sd->", change, inverse, change)) / policy.noise.deviation
        assert mu <= claim * (1 + 1e-9)
        largest = max(largest, mu)
    if isinstance(law, td.Constant) and not isinstance(noise, td.Tree):  # whose claim is an upper bound
        assert largest > 0.8 * claim, "the victim comes close to the claim"


@pytest.mark.parametrize("dimension", [1, 10, 1000])
def test_clients_round_again_until_the_codes_are_within_the_bound(dimension):
    """Between all points of a coarse grid, rounding once would often be beyond the bound."""
    grid = td.Grid(bits=16, uploads=10, denominator=64, limit=1.0, clip=1.0)
    coarse, bound = grid.step, grid.norm(dimension)
    vector = torch.full((dimension,), 1 / math.sqrt(dimension) // coarse * coarse + coarse / 2)
    vector *= min(1.0, 0.999999 / float(vector.norm()))
    once = [
        joint_norm(grid.encode("delta", vector, np.random.Generator(np.random.SFC64(n)))) for n in range(200)
    ]
    layer = GridLayer(grid, td.FedBuff(), lambda trip: trip)
    kept = []
    for trip in range(200):
        sent = layer.client(Upload({"delta": vector}, 1, 1, 0.0), Task(trip, 0, 0, {}), {}).vectors
        kept.append(joint_norm(sent))
    assert max(kept) <= bound
    assert bound <= (1 / coarse) + math.sqrt(dimension)
    assert np.mean(np.array(once) <= bound) >= 1 - math.exp(-0.5), "the chance that the bound is made for"


def test_codes_are_right_on_average():
    grid = td.Grid(bits=16, uploads=10, denominator=64, limit=1.0, clip=1.0)
    layer = GridLayer(grid, td.FedBuff(), lambda trip: trip)
    vector = torch.linspace(-0.3, 0.3, 10)
    total = torch.zeros(10, dtype=torch.float64)
    for trip in range(600):
        sent = layer.client(Upload({"delta": vector}, 1, 1, 0.0), Task(trip, 0, 0, {}), {}).vectors
        total += sent["delta/codes"].double() * grid.step
    assert torch.allclose(total / 600, vector.double(), atol=4 * grid.step / 2 / math.sqrt(600))
