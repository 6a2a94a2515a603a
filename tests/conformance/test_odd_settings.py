"""Settings at the edge of what is allowed, against naive computations in float64: buffers of one upload,
clients of very unequal size, every staleness law, uploads of zeros, momentum 0 and 0.99, models of several
tensors.

Uploads are handed to the algorithms without an engine. The clients differ from those of `problem`: client 0
has nothing to learn and comes first, so that the first step has neither an upload nor a momentum; client 3
leaves the first tensor, a scalar, as it is; client 1 is often twice in a buffer; client 5 is later than every
cutoff.
"""

import math
from dataclasses import dataclass
from itertools import product

import numpy as np
import pytest
import torch
from problem import Arrival, assert_same, schedule

import tardigrad as td
from tardigrad.algorithms.aggregator import Aggregator
from tardigrad.core.outcomes import Accepted, Ticket
from tardigrad.core.situation import Situation
from tardigrad.core.upload import Task, Upload

SHAPES = [(), (3,), (0,), (2, 1), (1,)]
ENDS = np.cumsum([math.prod(shape) for shape in SHAPES])
BLOCKS = [slice(end - math.prod(shape), end) for end, shape in zip(ENDS, SHAPES)]
SIZE = int(ENDS[-1])
LR, STEPS = 0.15, 2
"""Of local training."""
N = [4, 9, 1, 12, 2, 6]
"""Examples of the clients."""
CLIENTS = len(N)
SLOW = [0.5, 0.25, 1.1, 1.5, 2.3, 4.0]
TRIPS = 48

_random = np.random.default_rng(8)
A = [_random.normal(size=(n, SIZE)) for n in N]
B = [_random.normal(size=n) + i for i, n in enumerate(N)]
A[0][:] = 0.0
A[3][:, 0] = 0.0
X0 = _random.normal(size=SIZE)


def make_script():
    """[start, duration, client]; the first upload is client 0's."""
    free, script = [0.0] * CLIENTS, [(0.0, 0.1, 0)]
    free[0] = 0.11
    while len(script) < TRIPS:
        client = int(np.argmin(free))
        duration = SLOW[client] * float(_random.uniform(0.8, 1.2))
        script.append((free[client], duration, client))
        free[client] += duration + 0.01
    return sorted(script)


SCRIPT = make_script()


def gradient(client, x):
    return A[client].T @ (A[client] @ x - B[client]) / N[client]


def feed(algorithm, arrivals, weights="equal", size=None, bound=None, opening=None, steps=STEPS):
    """Every version of the model that the package makes. `opening`: how many uploads the first step needs."""
    by_examples = weights == "examples"
    situation = Situation(
        CLIENTS, size, bound, TRIPS // size, steps, sum(N) if by_examples else None,
        tuple(math.prod(shape) for shape in SHAPES),
    )  # fmt: skip
    aggregator = Aggregator(algorithm, torch.tensor(X0), situation)
    models, shared = [X0], [aggregator.broadcast()]
    memory, in_buffer = {client: {} for client in range(CLIENTS)}, 0
    for trip, one in enumerate(arrivals):
        if not one.accepted:
            continue
        client, version = one.client, one.start_version
        rule = algorithm.rule(Task(trip, client, version, shared[version]), memory[client], LR)
        y = rule.start
        for _ in range(steps):
            y = y - rule.lr * rule.direction(torch.tensor(gradient(client, y.numpy())), y)
        vectors = rule.finish(y, steps, steps * rule.lr)
        memory[client] = rule.memory
        mass = float(N[client]) if by_examples else 1.0
        in_buffer += 1
        closes = in_buffer == (opening if opening and len(models) == 1 else size)
        weight = mass * algorithm.law(one.staleness)
        delivery = Accepted(Ticket(trip, client, version, 0.0), 0.0, one.version, weight, mass, closes)
        aggregator.add(delivery, Upload(vectors, N[client], steps, 0.0), rule.start)
        if closes:
            aggregator.step()
            models.append(aggregator.state["model"].numpy())
            shared.append(aggregator.broadcast())
            in_buffer = 0
    return models


# -- the naive computations --------------------------------------------------------------------------


@dataclass
class Came:
    """An upload of a client with n examples (1 if all weigh the same), `late` versions after its start."""

    client: int
    n: int
    late: int
    start: np.ndarray
    delta: np.ndarray


def follow(arrivals, size, weights, move, ahead=lambda x: x, opening=None):
    """All models; `move(x, buffer)` makes the next one."""
    models, starts, buffer = [X0], [ahead(X0)], []
    for one in arrivals:
        if not one.accepted:
            continue
        start = y = starts[one.start_version]
        for _ in range(STEPS):
            y = y - LR * gradient(one.client, y)
        n = N[one.client] if weights == "examples" else 1
        buffer.append(Came(one.client, n, one.staleness, start, start - y))
        if len(buffer) == (opening if opening and len(models) == 1 else size):
            models.append(move(models[-1], buffer))
            starts.append(ahead(models[-1]))
            buffer = []
    return models


def mean(buffer, s):
    return sum(one.n * s(one.late) * one.delta for one in buffer) / sum(one.n for one in buffer)


def decayed(values, beta):
    """beta m + (1 - beta) value from 0, as one sum over the past."""
    return sum(((1 - beta) * beta**age * v for age, v in enumerate(values[::-1])), np.zeros(SIZE))


def delayed_nesterov(s, lr, beta, period, c):
    m, D, came = np.zeros(SIZE), np.zeros(SIZE), 0

    def move(x, buffer):
        nonlocal m, D, came
        r = mean(buffer, s)
        came, D = came + 1, D + r
        if came % period:
            return x - lr * (c * beta * m + r / period)
        m, D = beta * m + D / period, np.zeros(SIZE)
        return x - lr * ((1 - c * period + c) * beta * m + r / period)

    return {"move": move}


def look_ahead(s, lr, beta, ahead):
    seen = []

    def move(x, buffer):
        seen.append(mean(buffer, s))
        return x - lr * (seen[-1] + beta * decayed(seen, beta))

    return {"move": move} | ({"ahead": lambda x: x - lr * beta * decayed(seen, beta)} if ahead else {})


def corrected(delta, m, o):
    length, other = np.sqrt(delta @ delta), np.sqrt(m @ m)
    if length == 0 or other == 0:
        return delta
    u, v = delta / length, m / other
    c, conf = u @ v, length / (length + o["kappa"] * other + 1e-8)
    if c >= o["c_ok"]:
        return delta
    if c < 0:
        return delta - min(o["k_s"] * -c * conf, o["most_shrink"]) * c * length * v
    gap = (o["c_ok"] - c) / (o["c_ok"] - o["c_bad"]) if o["turn"] == "continuous" else 1 - c
    share = min(o["k_d"] * gap * conf, 1.0)
    toward = (1 - share) * u + share * v
    return length * toward / np.sqrt(toward @ toward)


def heloco(s, lr, beta, options):
    seen = []

    def move(x, buffer):
        m = decayed(seen, beta)
        for one in buffer:
            one.delta = np.concatenate([corrected(one.delta[b], m[b], options) for b in BLOCKS])
        seen.append(mean(buffer, s))
        return x - lr * (seen[-1] + beta * decayed(seen, beta))

    return {"move": move, "ahead": lambda x: x - lr * beta * decayed(seen, beta)}


def cgad(s, lr, beta1, beta2, epsilon):
    seen = []

    def move(x, buffer):
        seen.append(mean(buffer, s))
        m = decayed(seen, beta1) / (1 - beta1 ** len(seen))
        v = decayed([r**2 for r in seen], beta2) / (1 - beta2 ** len(seen))
        return x - lr * m / (np.sqrt(v) + epsilon)

    return {"move": move}


def dc_asgd(s, lr, strength, decay):
    v = np.zeros(SIZE)

    def move(x, buffer):
        nonlocal v
        for one in buffer:
            factor = strength
            if decay is not None:
                v = decay * v + (1 - decay) * one.delta**2
                factor = strength / np.sqrt(v + 1e-7)
            one.delta = one.delta + factor * one.delta**2 * (x - one.start)
        return x - lr * mean(buffer, s)

    return {"move": move}


def minimum_norm(s, lr, beta, cutoff):
    rows, means = [], []

    def move(x, buffer):
        t = len(means)
        means.append(mean(buffer, s))
        row = np.zeros(TRIPS)
        for one in buffer:
            row[t - one.late] += one.n * s(one.late) / sum(one.n for one in buffer)
        rows.append(row)
        momentum = [(1 - beta) * beta ** (t - version) for version in range(t + 1)]
        a = np.linalg.pinv(np.array(rows)[:, : t + 1].T, rcond=cutoff) @ momentum
        return x - lr * a @ np.array(means)

    return {"move": move}


def sums(s, lr, step=lambda seen: seen[-1]):
    """FedBuff's `combine`: no divisor."""
    seen = []

    def move(x, buffer):
        seen.append(sum(s(one.late) * one.delta for one in buffer))
        return x - lr * step(seen)

    return {"move": move}


def plain(lr):
    return {"move": lambda x, buffer: x - lr * mean(buffer, lambda late: 1.0)}


def ace(lr, weights):
    n = np.array(N if weights == "examples" else [1] * CLIENTS)
    table = np.zeros((CLIENTS, SIZE))

    def move(x, buffer):
        for one in buffer:
            table[one.client] = one.delta
        return x - lr * (n @ table) / n.sum()

    return {"move": move}


def area(weights):
    n = np.array(N if weights == "examples" else [1] * CLIENTS)
    table = np.tile(X0, (CLIENTS, 1))

    def move(x, buffer):
        for one in buffer:
            table[one.client] = one.start - one.delta
        return (n @ table) / n.sum()

    return {"move": move}


def trimmed(fraction):
    """Of every coordinate, with a value that the cut divides counting in part."""

    def of(values):
        B = len(values)
        share = [max(0.0, min(k + 1, (1 - fraction) * B) - max(k, fraction * B)) for k in range(B)]
        return np.array(share) @ np.sort(values, axis=0) / sum(share)

    return of


def basgd(lr, buckets, robust):
    came, known = [[] for _ in range(buckets)], []

    def move(x, buffer):
        for one in buffer:
            if one.client not in known:
                known.append(one.client)
            came[known.index(one.client) % buckets].append(one)
        if not all(came):
            return x
        step = robust(np.array([mean(bucket, lambda late: 1.0) for bucket in came]))
        for bucket in came:
            bucket.clear()
        return x - lr * step

    return {"move": move}


def yogi(lr, beta1, beta2, tau, v0):
    seen, v = [], np.full(SIZE, v0)

    def move(x, buffer):
        nonlocal v
        r = mean(buffer, lambda late: 1.0)
        seen.append(r)
        v = v - (1 - beta2) * r**2 * np.sign(v - r**2)
        return x - lr * decayed(seen, beta1) / (np.sqrt(v) + tau)

    return {"move": move}


def fedac(arrivals, size, weights, reading, lr, nadam, correction, of_population):
    """As the paper writes it: end - start, and added."""
    models, c = [X0], [np.zeros(SIZE)]
    c_i, gs, buffer = np.zeros((CLIENTS, SIZE)), [], []
    for one in arrivals:
        if not one.accepted:
            continue
        i, start = one.client, models[one.start_version]
        h = c[one.start_version] - c_i[i] if correction else np.zeros(SIZE)
        y = start
        for _ in range(STEPS):
            y = y - LR * (gradient(i, y) + h)
        new = (start - y) / (STEPS * LR) - h
        buffer.append((N[i] if weights == "examples" else 1, start, y - start, new - c_i[i]))
        c_i[i] = new
        if len(buffer) < size:
            continue
        n = np.array([one[0] for one in buffer])
        cosines = []
        for _, start, change, _ in buffer:
            moved = models[-1] - start
            lengths = np.sqrt((moved @ moved) * (change @ change))
            cosines.append(None if not moved.any() else moved @ change / lengths if lengths else 0.0)
        r = np.array(reading(cosines, n))
        if n @ r <= 1e-6 * n.sum():
            r = np.ones(size)
        w = n * r / (n @ r)
        gs.append(sum(share * change for share, (_, _, change, _) in zip(w, buffer)))
        if nadam:
            m_hat = 0.6 * decayed(gs, 0.6) + 0.4 * gs[-1]
            models.append(models[-1] + lr * m_hat / (np.sqrt(decayed([g**2 for g in gs], 0.9)) + 1e-8))
        else:
            models.append(models[-1] + lr * gs[-1])
        scale = n.sum() / (sum(N) if weights == "examples" else CLIENTS) if of_population else 1.0
        c.append(c[-1] + scale * sum(share * dc for share, (*_, dc) in zip(w, buffer)))
        buffer = []
    return models


def of_others(cosines, n):
    others = [max(c, 0.0) for c in cosines if c is not None]
    return [(np.mean(others) if others else 1.0) if c is None else max(c, 0.0) for c in cosines]


READINGS = {
    "cosine": lambda cosines, n: [1.0 if c is None else max(c, 0.0) for c in cosines],
    "uniform": lambda cosines, n: [1.0] * len(cosines),
    "signed": lambda cosines, n: [1.0 if c is None else c for c in cosines],
    "absolute": lambda cosines, n: [1.0 if c is None else abs(c) for c in cosines],
    "shifted": lambda cosines, n: [1.0 if c is None else (1 + c) / 2 for c in cosines],
    "fresh_at_mean": of_others,
    "softmax": lambda cosines, n: [math.exp(1.0 if c is None else c) for c in cosines],
}


def masfl(arrivals, size, weights, bound, K, L):
    """With the theorem's beta, gamma and eta."""
    S, T = size, TRIPS // size
    beta = min(1.0, math.sqrt(S * K / T))
    root = math.sqrt(T - math.sqrt(S * K * T) - 4 * S * K * bound**2)
    eta = root / (4 * math.sqrt(5) * math.e * K * L * math.sqrt(T))
    share = np.array(N if weights == "examples" else [1] * CLIENTS)
    models, g, c = [X0], [np.zeros(SIZE)], [np.zeros(SIZE)]
    c_i, buffer = np.zeros((CLIENTS, SIZE)), []
    for one in arrivals:
        if not one.accepted:
            continue
        i, t = one.client, one.start_version
        y, raw = models[t], []
        for _ in range(K):
            raw.append(gradient(i, y))
            y = y - eta * (beta * (raw[-1] - c_i[i]) + beta * c[t] + (1 - beta) * g[t])
        buffer.append((share[i], sum(raw) / K - c_i[i]))
        c_i[i] = sum(raw) / K
        if len(buffer) == S:
            mean_change = sum(n * change for n, change in buffer) / sum(n for n, _ in buffer)
            g.append(beta * (mean_change + c[-1]) + (1 - beta) * g[-1])
            models.append(models[-1] - beta / (4 * L) * g[-1])
            c.append(share @ c_i / share.sum())
            buffer = []
    return models


# -- laws ----------------------------------------------------------------------------------------------

LAWS = {
    "constant": (td.Constant(), lambda t: 1.0),
    "linear": (td.Linear(a=0.7), lambda t: 1 / (0.7 * t + 1)),
    "polynomial": (td.Polynomial(a=1.5), lambda t: (t + 1) ** -1.5),
    "exponential": (td.Exponential(a=0.3), lambda t: math.exp(-0.3 * t)),
    "hinge": (td.Hinge(a=2, b=2), lambda t: 1.0 if t <= 2 else 1 / (2 * (t - 2) + 1)),
    "cosine_gate": (
        td.CosineGate(a=0.05, cutoff=5),
        lambda t: math.exp(-0.05 * t) * (1 + math.cos(math.pi * t / 5)) / 2 if t < 5 else 0.0,
    ),
}


def test_the_script_has_what_the_cases_need():
    for size in (1, 3):
        arrivals = schedule(size, None, SCRIPT)
        assert arrivals[0].client == 0
        assert min(one.staleness for one in arrivals) == 0
        assert max(one.staleness for one in arrivals) > 5, "later than the cutoff of the law below"
    buffers = [[one.client for one in arrivals[k : k + 3]] for k in range(0, TRIPS, 3)]
    assert sum(len(set(clients)) < 3 for clients in buffers) > 5
    assert not gradient(0, X0).any()
    assert gradient(3, X0)[BLOCKS[0]] == 0


# -- one model after the other -------------------------------------------------------------------------

MOMENTA = [0.0, 0.99]
NESTEROV = [(0.0, 4, 0.25), (0.99, 1, 0.0), (0.99, 1, 1.0), (0.99, 4, 0.0), (0.99, 4, 0.25)]
"""beta, the period N, and c, which is at most 1 / N."""
TURNS = {
    "paper": {"c_ok": 0.6, "k_s": 3.0, "most_shrink": 0.4, "k_d": 1.5, "kappa": 0.5, "turn": "paper"},
    "continuous": {
        "c_ok": 0.9,
        "k_s": 0.5,
        "most_shrink": 0.99,
        "k_d": 9.0,
        "kappa": 3.0,
        "turn": "continuous",
    },
}
MEANS = {
    "median": (td.Median(), lambda values: np.median(values, axis=0)),
    "trimmed": (td.TrimmedMean(fraction=0.3), trimmed(0.3)),
}


def cases_with_a_law(law, s):
    """[name, algorithm, naive]; everything that takes any law. What else a case sets changes with the law."""
    for beta, period, c in NESTEROV:
        settings = {"lr": 0.3, "beta": beta, "period": period, "c": c}
        name = f"delayed_nesterov, beta {beta}, period {period}, c {c}"
        yield name, td.DelayedNesterov(**settings, staleness=law), delayed_nesterov(s, **settings)
    for beta, ahead in product(MOMENTA, (False, True)):
        algorithm = td.MomentumLookAhead(lr=0.2, beta=beta, start_ahead=ahead, staleness=law)
        yield f"momentum_look_ahead, {beta}, ahead {ahead}", algorithm, look_ahead(s, 0.2, beta, ahead)
    for beta, turn in product(MOMENTA, TURNS):
        options = TURNS[turn] | {"c_bad": -0.3}
        algorithm = td.HeLoCo(lr=0.2, beta=beta, staleness=law, **options)
        yield f"heloco, {beta}, {turn}", algorithm, heloco(s, 0.2, beta, options)
    for decay in (None, 0.0, 0.99):
        settings = {"adaptive": False} if decay is None else {"decay": decay}
        algorithm = td.DCASGD(lr=0.2, compensation=0.7, staleness=law, **settings)
        yield f"dc_asgd, decay {decay}", algorithm, dc_asgd(s, 0.2, 0.7, decay)
    for beta, cutoff in ((0.0, 0.01), (0.7, 0.01), (0.99, 0.2)):
        momentum = td.MinimumNormApproximation(beta=beta, cutoff=cutoff)
        algorithm = td.FedBuff(lr=0.2, staleness=law, momentum=momentum)
        yield f"minimum norm, {beta}", algorithm, minimum_norm(s, 0.2, beta, cutoff)


WITH_A_LAW = [name for name, *_ in cases_with_a_law(*LAWS["constant"])]
BUFFERS = [(1, 6), (3, 12)]
"""The size, and the bound of staleness, which refuses something in the first alone."""


def compare(algorithm, naive, size, bound, weights):
    arrivals = schedule(size, bound, SCRIPT)
    models = feed(algorithm, arrivals, weights, size, bound)
    assert_same(models, follow(arrivals, size, weights, **naive), torch.float64)


@pytest.mark.parametrize(("size", "bound"), BUFFERS)
@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("case", WITH_A_LAW)
def test_every_law_by_examples(case, law, size, bound):
    ((algorithm, naive),) = (rest for name, *rest in cases_with_a_law(*LAWS[law]) if name == case)
    compare(algorithm, naive, size, bound, "examples")


@pytest.mark.parametrize("weights", ["equal", "examples"])
@pytest.mark.parametrize(("size", "bound"), [*BUFFERS, (1, None)])
@pytest.mark.parametrize(("beta1", "beta2"), [(0.0, 0.0), (0.0, 0.99), (0.99, 0.0), (0.99, 0.99)])
def test_cgad_beyond_the_cutoff(beta1, beta2, size, bound, weights):
    law, s = LAWS["cosine_gate"]
    algorithm = td.CGAD(lr=0.02, beta1=beta1, beta2=beta2, adaptivity=1e-3, staleness=law)
    compare(algorithm, cgad(s, 0.02, beta1, beta2, 1e-3), size, bound, weights)


SUMS = {
    "plain": ({}, lambda seen: seen[-1]),
    "ema": ({"momentum": td.EMA(beta=0.99)}, lambda seen: decayed(seen, 0.99)),
    "adam": (
        {"preconditioner": td.Adam(beta2=0.0, adaptivity=0.01)},
        lambda seen: seen[-1] / (abs(seen[-1]) + 0.01),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("size", "bound"), BUFFERS)
@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("case", SUMS)
def test_fedbuff_without_a_divisor(case, law, size, bound):
    settings, step = SUMS[case]
    algorithm = td.FedBuff(lr=0.1, staleness=LAWS[law][0], combine="sum", **settings)
    compare(algorithm, sums(LAWS[law][1], 0.1, step), size, bound, "equal")


def test_minimum_norm_approximation_of_sums():
    """W has the shares of the mean, so the momentum is that of the mean, K times as long."""
    law, s = LAWS["polynomial"]
    algorithm = td.FedBuff(
        lr=0.1, staleness=law, combine="sum", momentum=td.MinimumNormApproximation(beta=0.7)
    )
    compare(algorithm, minimum_norm(s, 0.3, 0.7, 0.01), 3, 12, "equal")


@pytest.mark.parametrize("weights", ["equal", "examples"])
@pytest.mark.parametrize(("size", "bound"), [*BUFFERS, (3, 2), (2, 0)])
def test_no_settings_but_the_buffer(size, bound, weights):
    for algorithm, naive in (
        (td.Ringmaster(lr=0.2), plain(0.2)),
        (td.Rennala(lr=0.2), plain(0.2)),
        (td.ACE(lr=0.2), ace(0.2, weights)),
        (td.AREA(), area(weights)),
    ):
        compare(algorithm, naive, size, bound, weights)


@pytest.mark.parametrize("weights", ["equal", "examples"])
@pytest.mark.parametrize("size", [1, 3])
def test_ace_after_a_first_pass(size, weights):
    """Everybody uploads once, then the script goes on, one version later than it says."""
    first = [Arrival(client, 0, 0, True) for client in range(CLIENTS)]
    then = [Arrival(a.client, a.start_version + 1, a.version + 1, True) for a in schedule(size, None, SCRIPT)]
    algorithm = td.ACE(lr=0.2, first_pass=True)
    models = feed(algorithm, first + then, weights, size, opening=CLIENTS)
    theirs = follow(first + then, size, weights, **ace(0.2, weights), opening=CLIENTS)
    assert_same(models, theirs, torch.float64)


@pytest.mark.parametrize("weights", ["equal", "examples"])
@pytest.mark.parametrize("bound", [6, None])
@pytest.mark.parametrize("buckets", [2, 3, CLIENTS - 1])
@pytest.mark.parametrize("robust", MEANS)
def test_basgd(robust, buckets, bound, weights):
    robust_mean, naive = MEANS[robust]
    compare(
        td.BASGD(lr=0.5, buckets=buckets, mean=robust_mean), basgd(0.5, buckets, naive), 1, bound, weights
    )


@pytest.mark.parametrize("weights", ["equal", "examples"])
@pytest.mark.parametrize(("size", "bound"), BUFFERS)
@pytest.mark.parametrize(
    ("momentum", "scale"), [("nadam", "paper"), ("none", "population"), ("none", "no correction")]
)
@pytest.mark.parametrize("reading", READINGS)
def test_fedac(reading, momentum, scale, size, bound, weights):
    lr, corrected = 0.02 if momentum == "nadam" else 0.3, scale != "no correction"
    algorithm = td.FedAC(
        lr=lr, weights=reading, momentum=momentum, correction=corrected,
        control_scale=scale if corrected else "paper",
    )  # fmt: skip
    arrivals = schedule(size, bound, SCRIPT)
    settings = {"lr": lr, "nadam": momentum == "nadam", "correction": corrected}
    theirs = fedac(
        arrivals, size, weights, READINGS[reading], of_population=scale == "population", **settings
    )
    assert_same(feed(algorithm, arrivals, weights, size, bound), theirs, torch.float64)


@pytest.mark.parametrize("weights", ["equal", "examples"])
@pytest.mark.parametrize(("size", "bound", "steps"), [(1, 2, 1), (2, 1, 1), (3, 0, 1), (1, 1, 3)])
def test_masfl_with_the_step_of_the_theorem(size, bound, steps, weights):
    """The few settings that allow one in a run as short as this."""
    arrivals = schedule(size, bound, SCRIPT)
    models = feed(td.MasFL(eta="theorem", smoothness=2.0), arrivals, weights, size, bound, steps=steps)
    theirs = masfl(arrivals, size, weights, bound, steps, 2.0)
    assert len(models) == len(theirs) > 3
    np.testing.assert_allclose(models, theirs, rtol=0, atol=1e-9)


@pytest.mark.parametrize("weights", ["equal", "examples"])
@pytest.mark.parametrize("size", [1, 4])
@pytest.mark.parametrize(("beta1", "beta2"), [(0.0, 0.0), (0.0, 0.99), (0.99, 0.0), (0.99, 0.99)])
@pytest.mark.parametrize("v0", [1e-6, 0.3])
def test_fedyogi_from_v0(v0, beta1, beta2, size, weights):
    """Rounds, of which the first with one client has nothing but zeros."""
    rounds = [Arrival(trip % CLIENTS, trip // size, trip // size, True) for trip in range(12 * size)]
    algorithm = td.FedYogi(lr=0.02, beta1=beta1, beta2=beta2, v0=v0, adaptivity=0.01)
    theirs = follow(rounds, size, weights, **yogi(0.02, beta1, beta2, 0.01, v0))
    assert_same(feed(algorithm, rounds, weights, size), theirs, torch.float64)
