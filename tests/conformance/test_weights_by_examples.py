"""Clients that weigh by their number of examples, for every algorithm, against naive computations in float64.

The clients have between 1 and 16 examples. A mean over the buffer is the sum of n_i times what client i sent
over the sum of n_i; a mean over all clients (SCAFFOLD's and MasFL's c, CA2FL's h) is the sum of n_i c_i over
the number of all examples, which the naive computations take anew from a table of all c_i at every step.
"""

import math

import numpy as np
import pytest
import torch
from problem import (
    BOUND,
    BUFFER,
    CLIENTS,
    LOCAL_LR,
    LOCAL_STEPS,
    SCRIPT,
    SIZE,
    X0,
    Arrival,
    Quadratic,
    assert_same,
    schedule,
)

import tardigrad as td
from event_records import records
from tardigrad.algorithms.ca2fl import CA2FL
from tardigrad.algorithms.defedavg import DeFedAvg
from tardigrad.algorithms.fadas import FADAS
from tardigrad.algorithms.fedac import FedAC
from tardigrad.algorithms.fedopt import FedAdaGrad, FedAdam, FedYogi
from tardigrad.algorithms.masfl import AdaMasFL, MasFL
from tardigrad.algorithms.registry import BUILT_IN
from tardigrad.algorithms.robust_fedbuff import RobustFedBuff
from tardigrad.algorithms.scaffold import SCAFFOLD
from tardigrad.algorithms.weight_prediction import WeightPrediction
from tardigrad.core.robust import TrimmedMean
from tardigrad.core.upload import WeightedSum
from tardigrad.experiments.runs.simulation_assembly import build
from tardigrad.learning.heads import Head

N = np.array([3, 9, 4, 16, 1, 6, 11])
assert len(N) == CLIENTS
_random = np.random.default_rng(21)
A = [_random.normal(size=(n, SIZE)) for n in N]
B = [_random.normal(size=n) + 0.5 * i for i, n in enumerate(N)]
FULL_BATCH = 32
"""More than anybody has: every local step takes all examples of its client."""


def gradient(client, x):
    """Of f_i(x) = 1/2 mean over the rows of (A_i x - b_i)^2."""
    return A[client].T @ (A[client] @ x - B[client]) / N[client]


class MeanSquaredError(Head):
    """1/2 (A x - b)^2, mean over the rows."""

    def loss(self, outputs, labels):
        return 0.5 * ((outputs - labels) ** 2).mean()

    def metrics(self, outputs):
        return {"loss": sum(float(self.loss(x, y)) for x, y in outputs)}


def run(algorithm, size=BUFFER, bound=BOUND, clients=range(CLIENTS), look=None, **settings):
    """Every version of the model that the package makes, and all uploads. `look`: called after each step."""
    options = {
        "pace": td.Scripted(trips=tuple(SCRIPT)),
        "buffer": td.Buffer(size=size, staleness_bound=bound, weights="examples"),
        "local": td.Local(steps=LOCAL_STEPS, batch_size=FULL_BATCH, lr=LOCAL_LR),
        "stop": td.Stop(trips=len(SCRIPT)),
        "evaluation": td.Evaluation(every_steps=10**6),
    } | settings
    config = td.Config(algorithm=algorithm, **options)
    module = Quadratic(torch.tensor(X0, dtype=torch.float64))
    simulation = build(config, module, {i: (A[i], B[i]) for i in clients}, head=MeanSquaredError())
    models, arrivals = [simulation.aggregator.state["model"].numpy()], []
    for events in records(simulation.engine.run()):
        for event in events:
            if event["event"] == "upload":
                numbers = (event[key] for key in ("start_version", "version", "accepted"))
                arrivals.append(Arrival(int(event["client"]), *numbers))
            elif event["event"] == "step":
                models.append(simulation.aggregator.state["model"].numpy())
                if look is not None:
                    look(simulation)
    return models, arrivals, simulation


# -- the naive computations --------------------------------------------------------------------------


class Naive:
    """Plain SGD on the clients; the server's step is what differs."""

    memory = False

    def __init__(self, lr=1.0, s=lambda staleness: 1.0, size=BUFFER):
        self.lr, self.s, self.size = lr, s, size
        self.x, self.table = X0.copy(), np.zeros((CLIENTS, SIZE))
        self.m, self.v, self.t = np.zeros(SIZE), np.zeros(SIZE), 0

    def sent(self):
        return (self.x,)

    def descend(self, i, start, direction=lambda g, y: g, lr=LOCAL_LR):
        y = start
        for _ in range(LOCAL_STEPS):
            y = y - lr * direction(gradient(i, y), y)
        return y

    def trip(self, i, staleness, x):
        return {"delta": x - self.descend(i, x)}

    def models(self, arrivals):
        models, versions, buffer = [self.x], [self.sent()], []
        for arrival in arrivals:
            if not arrival.accepted:
                continue
            i = arrival.client
            upload = self.trip(i, arrival.staleness, *versions[arrival.start_version])
            buffer.append((N[i], arrival.staleness, versions[arrival.start_version][0], upload))
            if len(buffer) == self.size:
                self.t += 1
                self.step(buffer)
                models.append(self.x)
                versions.append(self.sent())
                buffer = []
        return models

    def mean(self, buffer, name="delta", discounted=True):
        total = sum(n * (self.s(tau) if discounted else 1.0) * up[name] for n, tau, _, up in buffer)
        return total / sum(n for n, *_ in buffer)

    def of_all(self):
        """The mean of what all clients remember, weighted by their examples."""
        return (N[:, None] * self.table).sum(axis=0) / N.sum()

    def step(self, buffer):
        self.x = self.x - self.lr * self.mean(buffer)


class NaiveHeavyBall(Naive):
    def step(self, buffer):
        self.m = 0.8 * self.m + self.mean(buffer)
        self.x = self.x - self.lr * self.m


class NaiveProximal(Naive):
    def trip(self, i, staleness, x):
        return {"delta": x - self.descend(i, x, lambda g, y: g + 0.3 * (y - x))}


class NaiveAdaptive(Naive):
    """m and v of Reddi et al., Algorithm 2; `v`: from v and the mean."""

    def __init__(self, beta1, next_v, **options):
        super().__init__(**options)
        self.beta1, self.next_v = beta1, next_v

    def step(self, buffer):
        r = self.mean(buffer)
        self.m = self.beta1 * self.m + (1 - self.beta1) * r
        self.v = self.next_v(self.v, r**2)
        self.x = self.x - self.lr * self.m / (np.sqrt(self.v) + 0.01)


class NaiveFadas(Naive):
    largest = 0.0

    def step(self, buffer):
        r = self.mean(buffer)
        self.m, self.v = 0.9 * self.m + 0.1 * r, 0.99 * self.v + 0.01 * r**2
        self.largest = np.maximum(self.largest, self.v)
        late = max(tau for _, tau, _, _ in buffer)
        lr = self.lr / late if late > 1 else self.lr
        m, v = self.m / (1 - 0.9**self.t), self.largest / (1 - 0.99**self.t)
        self.x = self.x - lr * m / (np.sqrt(v) + 1e-8)


class NaivePrediction(Naive):
    x_h = np.zeros(SIZE)

    def sent(self):
        return self.x, self.lr * self.x_h

    def trip(self, i, staleness, x, drift):
        start = x - staleness * drift
        return {"delta": start - self.descend(i, start)}

    def step(self, buffer):
        r = self.mean(buffer)
        self.x, self.x_h = self.x - self.lr * r, 0.9 * self.x_h + 0.1 * r


class NaiveTrimmed(Naive):
    """Every upload has n_i s(tau) votes; a fifth of all votes is cut off at each end of every coordinate."""

    def step(self, buffer):
        votes = np.array([n * self.s(tau) for n, tau, _, _ in buffer])
        low, high = 0.2 * votes.sum(), 0.8 * votes.sum()
        r = np.zeros(SIZE)
        for k in range(SIZE):
            seen = total = 0.0
            for value, vote in sorted((up["delta"][k], vote) for (*_, up), vote in zip(buffer, votes)):
                left = max(0.0, min(seen + vote, high) - max(seen, low))
                total, seen = total + left * value, seen + vote
            r[k] = total / (high - low)
        self.x = self.x - self.lr * r * votes.sum() / sum(n for n, *_ in buffer)


class NaiveMixing(Naive):
    """FedAsync: one upload a step, so there is nobody to be weighed against."""

    def step(self, buffer):
        ((_, tau, start, upload),) = buffer
        a = 0.6 * self.s(tau)
        self.x = (1 - a) * self.x + a * (start - upload["delta"])


class NaiveControlled(Naive):
    """SCAFFOLD and FedAC's clients."""

    memory = True

    def __init__(self, **options):
        super().__init__(**options)
        self.c = np.zeros(SIZE)

    def sent(self):
        return self.x, self.c

    def trip(self, i, staleness, x, c):
        before = self.table[i].copy()
        y = self.descend(i, x, lambda g, y: g - before + c)
        self.table[i] = before - c + (x - y) / (LOCAL_STEPS * LOCAL_LR)
        return {"delta": x - y, "control": self.table[i] - before}

    def step(self, buffer):
        super().step(buffer)
        self.c = self.of_all()


class NaiveFedac(NaiveControlled):
    def __init__(self, cosine, of_population, **options):
        super().__init__(**options)
        self.cosine, self.of_population = cosine, of_population

    def step(self, buffer):
        r = []
        for _, _, start, upload in buffer:
            moved, change = self.x - start, -upload["delta"]
            lengths = np.sqrt((moved @ moved) * (change @ change))
            r.append(max(moved @ change / lengths, 0.0) if moved.any() else 1.0)
        if not self.cosine or sum(r) <= 1e-6 * len(buffer):
            r = [1.0] * len(buffer)
        w = np.array([n * r_i for (n, *_), r_i in zip(buffer, r)])
        w = w / w.sum()
        g = sum(w_i * up["delta"] for w_i, (*_, up) in zip(w, buffer))
        self.m, self.v = 0.6 * self.m + 0.4 * g, 0.9 * self.v + 0.1 * g**2
        self.x = self.x - self.lr * (0.6 * self.m + 0.4 * g) / (np.sqrt(self.v) + 1e-8)
        if self.of_population:
            self.c = self.of_all()
        else:
            self.c = self.c + sum(w_i * up["control"] for w_i, (*_, up) in zip(w, buffer))


class NaiveMasfl(Naive):
    memory, beta, gamma, eta = True, 0.4, 0.05, LOCAL_LR
    adaptive = False

    def __init__(self, **options):
        super().__init__(**options)
        self.c, self.g = np.zeros(SIZE), np.zeros(SIZE)

    def sent(self):
        return self.x, self.c, self.g

    def trip(self, i, staleness, x, c, g):
        before, raw = self.table[i].copy(), []

        def direction(gradient, y):
            raw.append(gradient)
            d = self.beta * (gradient - before + c) + (1 - self.beta) * g
            return d / np.sqrt(d @ d) if self.adaptive else d

        y = self.descend(i, x, direction, self.eta)
        self.table[i] = sum(raw) / LOCAL_STEPS
        return {"control": self.table[i] - before, "delta": (x - y) / (self.eta * LOCAL_STEPS)}

    def step(self, buffer):
        self.g = self.beta * (self.mean(buffer, "control") + self.c) + (1 - self.beta) * self.g
        self.x = self.x - self.gamma * (self.mean(buffer) if self.adaptive else self.g)
        self.c = self.of_all()


class NaiveAdaMasfl(NaiveMasfl):
    adaptive, eta = True, 0.03


class NaiveCached(Naive):
    memory = True
    h = np.zeros(SIZE)

    def trip(self, i, staleness, x):
        before, self.table[i] = self.table[i].copy(), x - self.descend(i, x)
        return {"difference": self.table[i] - before}

    def step(self, buffer):
        self.x = self.x - self.lr * (self.h + self.mean(buffer, "difference", discounted=False))
        self.h = self.of_all()


class NaiveDelayedNesterov(Naive):
    """N = 3, c = 0."""

    accumulated = np.zeros(SIZE)

    def step(self, buffer):
        r = self.mean(buffer)
        self.accumulated = self.accumulated + r
        self.x = self.x - self.lr * r / 3
        if self.t % 3 == 0:
            self.m = 0.9 * self.m + self.accumulated / 3
            self.x, self.accumulated = self.x - self.lr * 0.9 * self.m, np.zeros(SIZE)


class NaiveCorollary(Naive):
    """lr = K, eta = 1 / (K sqrt(T Q))."""

    def trip(self, i, staleness, x):
        eta = 1 / (BUFFER * math.sqrt((len(SCRIPT) // BUFFER) * LOCAL_STEPS))
        return {"delta": x - self.descend(i, x, lr=eta)}


class NaiveLookAhead(Naive):
    def step(self, buffer):
        r = self.mean(buffer)
        self.m = 0.9 * self.m + 0.1 * r
        self.x = self.x - self.lr * (r + 0.9 * self.m)


class NaiveAhead(NaiveLookAhead):
    """HeLoCo's clients start from where the momentum leads; without corrections."""

    def sent(self):
        return (self.x - self.lr * 0.9 * self.m,)


class NaiveAdam(Naive):
    def step(self, buffer):
        r = self.mean(buffer)
        self.m, self.v = 0.9 * self.m + 0.1 * r, 0.99 * self.v + 0.01 * r**2
        m, v = self.m / (1 - 0.9**self.t), self.v / (1 - 0.99**self.t)
        self.x = self.x - self.lr * m / (np.sqrt(v) + 1e-8)


class NaiveLatest(NaiveCached):
    """ACE: the mean of the last deltas of all clients."""

    def step(self, buffer):
        self.h = self.of_all()
        self.x = self.x - self.lr * self.h


class NaiveLocalModels(Naive):
    """AREA: the mean of the last local models of all clients."""

    def __init__(self, **options):
        super().__init__(**options)
        self.table[:] = X0

    def trip(self, i, staleness, x):
        self.table[i] = self.descend(i, x)
        return {}

    def step(self, buffer):
        self.x = self.of_all()


class NaiveCompensated(Naive):
    def step(self, buffer):
        for _, _, start, upload in buffer:
            upload["delta"] = upload["delta"] + 0.5 * upload["delta"] ** 2 * (self.x - start)
        super().step(buffer)


class NaiveBuckets(Naive):
    """BASGD: one upload a step. Clients that come first go to the buckets 0, 1, 2, 0, ..."""

    def __init__(self, clients, **options):
        super().__init__(size=1, **options)
        first = list(dict.fromkeys(clients))
        self.buckets, self.came = iter([first.index(client) % 3 for client in clients]), [[], [], []]

    def step(self, buffer):
        self.came[next(self.buckets)] += buffer
        if all(self.came):
            self.x = self.x - self.lr * np.median([self.mean(one) for one in self.came], axis=0)
            self.came = [[], [], []]


class NaiveBuffers(Naive):
    """Bucketed FedBuff: every third step moves, by the median of the last three means."""

    def __init__(self, **options):
        super().__init__(**options)
        self.means = []

    def step(self, buffer):
        self.means.append(self.mean(buffer))
        if self.t % 3 == 0:
            self.x = self.x - self.lr * np.median(self.means[-3:], axis=0)


def root(staleness):
    return 1 / math.sqrt(1 + staleness)


def gate(staleness):
    """CGAD's, which is 0 from 16 on; here no upload is older than 6."""
    return math.exp(-0.1 * staleness) * math.cos(math.pi * staleness / 32) ** 2


ACCEPTED = [arrival.client for arrival in schedule(size=1) if arrival.accepted]
ROUNDS = {
    "size": None, "bound": None, "buffer": td.Buffer(weights="examples"), "stop": td.Stop(steps=20),
    "pace": td.Synchronous(cohort=BUFFER, selected=5), "delay": td.UniformDelay(low=0.5, high=1.5),
}  # fmt: skip
"""Two of five come too late."""
ALONE = {"size": 1, "bound": None, "clients": [3], "pace": td.Asynchronous(concurrency=1)}


CASES = {
    "fedbuff": (td.FedBuff(lr=0.7), Naive(lr=0.7, s=root), {}),
    "fedbuff_corollary": (td.FedBuffCorollary(), NaiveCorollary(lr=BUFFER), {}),
    "robust_fedbuff": (
        RobustFedBuff(lr=0.7, mean=TrimmedMean(fraction=0.2)), NaiveTrimmed(lr=0.7, s=root), {},
    ),
    "weight_prediction": (WeightPrediction(lr=0.3), NaivePrediction(lr=0.3, s=root), {}),
    "fedasync": (td.FedAsync(alpha=0.6), NaiveMixing(s=root, size=1), {"size": 1}),
    "fedac": (FedAC(lr=0.02), NaiveFedac(lr=0.02, cosine=True, of_population=False), {}),
    "fedac, uniform, of the population": (
        FedAC(lr=0.02, weights="uniform", control_scale="population"),
        NaiveFedac(lr=0.02, cosine=False, of_population=True), {},
    ),
    "masfl": (MasFL(beta=0.4, gamma=0.05), NaiveMasfl(), {}),
    "adamasfl": (AdaMasFL(beta=0.4, gamma=0.05, eta=0.03), NaiveAdaMasfl(), {}),
    "ca2fl": (CA2FL(lr=0.6), NaiveCached(lr=0.6), {}),
    "fadas": (FADAS(lr=0.05), NaiveFadas(lr=0.05), {}),
    "defedavg": (DeFedAvg(lr=0.6), Naive(lr=0.6), {}),
    "delayed_nesterov": (td.DelayedNesterov(lr=0.2, period=3), NaiveDelayedNesterov(lr=0.2), {}),
    "momentum_look_ahead": (td.MomentumLookAhead(lr=0.2), NaiveLookAhead(lr=0.2), {}),
    "heloco": (td.HeLoCo(lr=0.2, k_s=0, k_d=0), NaiveAhead(lr=0.2), {}),
    "cgad": (td.CGAD(lr=0.02), NaiveAdam(lr=0.02, s=gate), {}),
    "ace": (td.ACE(lr=0.3), NaiveLatest(lr=0.3), {}),
    "area": (td.AREA(), NaiveLocalModels(), {}),
    "dc_asgd": (td.DCASGD(lr=0.4, compensation=0.5, adaptive=False), NaiveCompensated(lr=0.4), {}),
    "basgd": (td.BASGD(lr=0.6, buckets=3), NaiveBuckets(ACCEPTED, lr=0.6), {"size": 1}),
    "bucketed_fedbuff": (td.BucketedFedBuff(lr=0.8, buckets=3), NaiveBuffers(lr=0.8), {}),
    "ringmaster": (td.Ringmaster(lr=0.3), Naive(lr=0.3, size=1), {"size": 1}),
    "rennala": (td.Rennala(lr=0.6), Naive(lr=0.6, size=2), {"size": 2, "bound": 0}),
    "fedavg": (td.FedAvg(lr=0.6), Naive(lr=0.6), ROUNDS),
    "fedavgm": (td.FedAvgM(lr=0.2, beta=0.8), NaiveHeavyBall(lr=0.2), ROUNDS),
    "fedprox": (td.FedProx(lr=0.6, mu=0.3), NaiveProximal(lr=0.6), ROUNDS),
    "fedadam": (
        FedAdam(lr=0.05, adaptivity=0.01),
        NaiveAdaptive(lr=0.05, beta1=0.9, next_v=lambda v, r2: 0.99 * v + 0.01 * r2), ROUNDS,
    ),
    "fedadagrad": (
        FedAdaGrad(lr=0.05, adaptivity=0.01),
        NaiveAdaptive(lr=0.05, beta1=0.0, next_v=lambda v, r2: v + r2), ROUNDS,
    ),
    "fedyogi": (
        FedYogi(lr=0.05, adaptivity=0.01),
        NaiveAdaptive(lr=0.05, beta1=0.9, next_v=lambda v, r2: v - 0.01 * r2 * np.sign(v - r2)), ROUNDS,
    ),
    "scaffold": (SCAFFOLD(lr=0.6), NaiveControlled(lr=0.6), ROUNDS),
    "sgd": (td.SGD(), Naive(size=1), ALONE),
}  # fmt: skip


def test_every_built_in_algorithm_has_a_case():
    assert {name.split(",")[0] for name in CASES} == {one.model_fields["kind"].default for one in BUILT_IN}


@pytest.mark.parametrize("case", CASES)
def test_uploads_weigh_by_examples(case):
    algorithm, naive, settings = CASES[case]
    models, arrivals, simulation = run(algorithm, **settings)
    if "pace" not in settings and case != "sgd":
        assert arrivals == schedule(naive.size, settings.get("bound", BOUND))
    assert case == "sgd" or any(not arrival.accepted for arrival in arrivals)
    assert_same(models, naive.models(arrivals), torch.float64)
    if naive.memory:
        state = simulation.aggregator.state
        server = naive.h if case in ("ca2fl", "ace") else naive.c
        np.testing.assert_allclose(
            state["cache" if case in ("ca2fl", "ace") else "control"], server, atol=1e-9
        )


# -- the mean of what all clients remember -----------------------------------------------------------


class Discounted:
    """An algorithm of somebody's own: late uploads count less."""

    @property
    def law(self):
        return td.Polynomial(a=0.5)


class DiscountedCA2FL(Discounted, CA2FL):
    pass


class DiscountedMasFL(Discounted, MasFL):
    pass


class DiscountedAdaMasFL(Discounted, AdaMasFL):
    pass


BY_HAND = {"beta": 0.4, "gamma": 0.05}
AVERAGING = {
    "scaffold": SCAFFOLD(lr=0.6),
    "masfl": MasFL(**BY_HAND),
    "adamasfl": AdaMasFL(**BY_HAND, eta=0.03),
    "ca2fl": CA2FL(lr=0.6),
    "ace": td.ACE(lr=0.1),
    "area": td.AREA(),
    "ace, first pass": td.ACE(lr=0.1, first_pass=True),
    "fedac": FedAC(lr=0.02, weights="uniform", control_scale="population"),
    "masfl, first pass": MasFL(**BY_HAND, first_pass=True),
    "adamasfl, first pass": AdaMasFL(**BY_HAND, eta=0.03, first_pass=True),
    "masfl, discounted": DiscountedMasFL(**BY_HAND, first_pass=True),
    "adamasfl, discounted": DiscountedAdaMasFL(**BY_HAND, eta=0.03),
    "ca2fl, discounted": DiscountedCA2FL(lr=0.6),
}
LOSSY = td.HalfNormal(device_spread=1.0, give_up=0.2)
SCHEDULES = {
    "script": {"pace": td.Scripted(trips=tuple(SCRIPT))},
    "asynchronous": {"pace": td.Asynchronous(concurrency=5), "delay": LOSSY, "staleness_bound": 1},
    "once per client": {"pace": td.Asynchronous(concurrency=4), "delay": LOSSY, "once_per_client": True},
    "over-selection": {"pace": td.Synchronous(cohort=3, selected=5), "delay": LOSSY, "size": None},
    "poisson": {"pace": td.Poisson(probability=0.4), "delay": LOSSY, "size": None},
    "queued": {"pace": td.Queued(concurrency=6), "delay": td.HalfNormal(device_spread=1.0)},
    "sampled staleness": {"pace": td.SampledStaleness(maximum=1)},
    "arrivals": {"pace": td.Arrivals(rate=6.0, concurrency=5), "delay": LOSSY},
}


def possible(name, schedule_name):
    """SCAFFOLD works in rounds; a first pass draws its clients, so nobody else may."""
    algorithm, pace = AVERAGING[name], SCHEDULES[schedule_name]["pace"]
    if algorithm.opening and isinstance(pace, td.SampledStaleness | td.Scripted):
        return False
    return pace.in_rounds or not algorithm.synchronous


def test_every_algorithm_that_keeps_such_a_mean_is_compared():
    keeping = {kind for kind in BUILT_IN if kind().averages_memories} | {FedAC}
    assert keeping == {kind for kind in BUILT_IN if any(type(one) is kind for one in AVERAGING.values())}


@pytest.mark.parametrize("weights", ["equal", "examples"])
@pytest.mark.parametrize(
    ("name", "schedule_name"), [(n, s) for n in AVERAGING for s in SCHEDULES if possible(n, s)]
)
def test_the_server_keeps_the_mean_of_what_all_clients_remember(name, schedule_name, weights):
    algorithm, settings = AVERAGING[name], dict(SCHEDULES[schedule_name])
    n = torch.tensor(N if weights == "examples" else np.ones(CLIENTS))
    remembered, kept = {"ca2fl": ("delta", "cache"), "ace": ("delta", "cache"), "area": ("end", "model")}.get(
        algorithm.kind, ("control", "control")
    )
    first = torch.tensor(X0 if algorithm.kind == "area" else np.zeros(SIZE))  # before a client's first trip
    steps = []

    def look(simulation):
        memories = simulation.engine.memories
        every = [memories[i][remembered] if i in memories else first for i in range(CLIENTS)]
        mean = sum(n[i] * one for i, one in enumerate(every)) / n.sum()
        torch.testing.assert_close(simulation.aggregator.state[kept], mean, rtol=1e-10, atol=1e-10)
        steps.append(len(memories))

    in_buffer = {key: settings.pop(key) for key in ("staleness_bound", "once_per_client") if key in settings}
    size = settings.pop("size", BUFFER)
    run(
        algorithm,
        buffer=td.Buffer(size=size, weights=weights, **in_buffer),
        stop=td.Stop(trips=80),
        look=look,
        **settings,
    )
    assert len(steps) > 10
    assert steps[-1] > 4  # some are too slow for every round


def test_change_of_a_mean_is_the_sum_divided_by_the_weight_of_all():
    total = torch.tensor([3.0, -7.0], dtype=torch.float64)
    buffer = WeightedSum({"control": total}, (), 4, divisor=5.0)
    torch.testing.assert_close(buffer.change_of_mean("control", 50), total / 50)


@pytest.mark.parametrize(
    ("algorithm", "settings"),
    [
        (SCAFFOLD(), ROUNDS),
        (MasFL(beta=1.0, gamma=0.1), {}),
        (FedAC(lr=0.5, weights="uniform", momentum="none", control_scale="population"), {}),
    ],
)
def test_runs_end_at_the_optimum_of_all_examples(algorithm, settings):
    """Control variates take away what local steps and unequal clients add: the minimum of the mean over all
    examples, not over all clients, is where they stop."""
    pooled = np.linalg.lstsq(np.concatenate(A), np.concatenate(B), rcond=None)[0]
    options = {"pace": td.Asynchronous(concurrency=4), "size": BUFFER} | settings
    models, _, _ = run(algorithm, **options | {"stop": td.Stop(steps=800)})
    np.testing.assert_allclose(models[-1], pooled, atol=1e-3)
