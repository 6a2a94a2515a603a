"""FedAvg, FedAvgM and FedProx: rounds of gradient descent, the model moves by the mean of the deltas.

Who takes part in a round is read from the events; what comes of it is worked out here.
"""

import numpy as np
import pytest
import torch
from problem import CLIENTS, LOCAL_LR, LOCAL_STEPS, SIZE, X0, A, B, Quadratic, SquaredError, assert_same
from pydantic import ValidationError

import tardigrad as td
from event_records import records
from tardigrad.experiments.runs.simulation_assembly import build

ROWS_OF = [5, 1, 3, 2, 4, 5, 1]
"""Clients differ in their number of examples."""
DTYPES = [torch.float32, torch.float64]


def make(algorithm, dtype=torch.float64, **settings):
    options = {
        "pace": td.Synchronous(cohort=3),
        "local": td.Local(steps=LOCAL_STEPS, batch_size=max(ROWS_OF), lr=LOCAL_LR),
        "stop": td.Stop(steps=15),
        "evaluation": td.Evaluation(every_steps=10**6),
    } | settings
    clients = {i: (A[i][:n], B[i][:n]) for i, n in enumerate(ROWS_OF)}
    module = Quadratic(torch.tensor(X0, dtype=dtype))
    return build(
        td.Config(algorithm=algorithm, **options), model=module, clients=clients, head=SquaredError()
    )


def run_rounds(algorithm, dtype, **settings):
    """Every version of the model that the package makes, and for each step the clients that made it."""
    simulation = make(algorithm, dtype, **settings)
    models, rounds, members = [simulation.aggregator.state["model"].double().numpy()], [], []
    for events in records(simulation.engine.run()):
        for event in events:
            if event["event"] == "upload" and event["accepted"]:
                assert event["staleness"] == 0
                members.append(event["client"])
            if event["event"] == "step":
                models.append(simulation.aggregator.state["model"].double().numpy())
                rounds.append(members)
                members = []
    return models, rounds


def naive_rounds(rounds, direction, lr, mu=0.0, by_examples=False):
    """Lists of everything; `direction(means)` turns all means so far into the newest direction."""
    models, means = [X0], []
    for members in rounds:
        total, divisor = np.zeros(SIZE), 0.0
        for i in members:
            a, b = A[i][: ROWS_OF[i]], B[i][: ROWS_OF[i]]
            y = models[-1]
            for _ in range(LOCAL_STEPS):
                y = y - LOCAL_LR * (a.T @ (a @ y - b) + mu * (y - models[-1]))
            weight = ROWS_OF[i] if by_examples else 1
            total = total + weight * (models[-1] - y)
            divisor += weight
        if members:
            means.append(total / divisor)
            models.append(models[-1] - lr * direction(means))
        else:
            models.append(models[-1])
    return models


def newest(means):
    return means[-1]


def heavy_ball(beta):
    """The sum of all means, each beta times less for every step since."""
    return lambda means: sum(beta ** (len(means) - 1 - s) * r for s, r in enumerate(means))


CASES = {
    "fedavg": (td.FedAvg(), newest, 1.0, 0.0),
    "fedavg, lr 0.6": (td.FedAvg(lr=0.6), newest, 0.6, 0.0),
    "fedavgm": (td.FedAvgM(lr=0.3), heavy_ball(0.9), 0.3, 0.0),
    "fedavgm, beta 0.5": (td.FedAvgM(lr=0.5, beta=0.5), heavy_ball(0.5), 0.5, 0.0),
    "fedprox": (td.FedProx(), newest, 1.0, 0.01),
    "fedprox, mu 2": (td.FedProx(mu=2.0, lr=0.8), newest, 0.8, 2.0),
}
PACES = {
    "cohort": {"pace": td.Synchronous(cohort=3)},
    "over-selection": {"pace": td.Synchronous(cohort=3, selected=5)},
    "by examples": {"pace": td.Synchronous(cohort=4), "buffer": td.Buffer(weights="examples")},
    "poisson": {"pace": td.Poisson(probability=0.25)},
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("pace", PACES)
@pytest.mark.parametrize("case", CASES)
def test_rounds_follow_the_papers(case, pace, dtype):
    algorithm, direction, lr, mu = CASES[case]
    models, rounds = run_rounds(algorithm, dtype, **PACES[pace])
    if pace == "poisson":
        assert [] in rounds, "nobody ever joined nobody: the empty step is not met"
    else:
        assert {len(members) for members in rounds} == {PACES[pace]["pace"].cohort}
    naive = naive_rounds(rounds, direction, lr, mu, by_examples=pace == "by examples")
    assert_same(models, naive, dtype)


def test_fedavg_with_lr_1_is_the_mean_of_the_clients_models():
    models, rounds = run_rounds(td.FedAvg(), torch.float64)
    for before, after, members in zip(models, models[1:], rounds):
        ends = []
        for i in members:
            a, b = A[i][: ROWS_OF[i]], B[i][: ROWS_OF[i]]
            y = before
            for _ in range(LOCAL_STEPS):
                y = y - LOCAL_LR * (a.T @ (a @ y - b))
            ends.append(y)
        assert after == pytest.approx(np.mean(ends, axis=0), rel=1e-12, abs=1e-12)


def test_fedprox_without_pull_and_fedavgm_without_momentum_are_fedavg_to_the_bit():
    reference, _ = run_rounds(td.FedAvg(lr=0.7), torch.float32)
    for same in (td.FedProx(lr=0.7, mu=0.0), td.FedAvgM(lr=0.7, beta=0.0)):
        models, _ = run_rounds(same, torch.float32)
        assert np.array_equal(models, reference)


def test_fedavgm_is_fedbuffs_average_with_a_larger_lr():
    # sum against average: lr differs by 1 / (1 - beta)
    ours, _ = run_rounds(td.FedAvgM(lr=0.2, beta=0.8), torch.float64)
    average = td.FedBuff(lr=1.0, momentum=td.EMA(beta=0.8))
    theirs, _ = run_rounds(average, torch.float64)
    assert_same(ours, theirs, torch.float64)


@pytest.mark.parametrize(
    ("make_algorithm", "names"),
    [
        (lambda: td.FedAvg(lr=0.0), "lr"),
        (lambda: td.FedAvg(lr=-1.0), "lr"),
        (lambda: td.FedAvg(beta=0.9), "beta"),
        (lambda: td.FedAvgM(lr=0.0), "lr"),
        (lambda: td.FedAvgM(beta=1.0), "beta"),
        (lambda: td.FedAvgM(beta=-0.1), "beta"),
        (lambda: td.FedProx(mu=-0.1), "mu"),
        (lambda: td.FedProx(mu=float("nan")), "mu"),
    ],
)
def test_bad_settings_name_the_key(make_algorithm, names):
    with pytest.raises(ValidationError) as caught:
        make_algorithm()
    assert [problem["loc"] for problem in caught.value.errors()] == [(names,)]


@pytest.mark.parametrize("algorithm", [td.FedAvg(), td.FedAvgM()])
@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"pace": td.Asynchronous(concurrency=3)}, r"pace\.kind: .* works in rounds.*not 'asynchronous'"),
        ({"pace": td.Poisson(), "buffer": td.Buffer(size=2)}, r"pace\.kind: .* 'poisson' without buffer\.si"),
    ],
)
def test_paces_that_do_not_fit_name_the_key(algorithm, settings, says):
    with pytest.raises(td.ConfigError, match=says):
        make(algorithm, **settings)


@pytest.mark.parametrize("algorithm", [td.FedAvg(), td.FedAvgM(), td.FedProx()])
@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"buffer": td.Buffer(size=2)}, r"buffer\.size: .*closed by its cohort \(3\)"),
        ({"pace": td.Synchronous(cohort=8)}, rf"pace\.cohort: 8 clients a round, but there are {CLIENTS}"),
        ({"pace": td.Synchronous(cohort=2, selected=9)}, r"pace\.selected: 9 clients a round"),
    ],
)
def test_settings_that_do_not_fit_name_the_key(algorithm, settings, says):
    with pytest.raises(td.ConfigError, match=says):
        make(algorithm, **settings)
