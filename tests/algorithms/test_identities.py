"""Identities between algorithms. Where the computation is the same operation for operation the bits must be
equal; where it is only the same in exact arithmetic, equal to rounding. Each test says which."""

import numpy as np
import pytest
import torch
from problem import Quadratic, SquaredError
from torch import nn

import tardigrad as td
from event_records import records
from tardigrad.algorithms.aggregator import Aggregator
from tardigrad.core.outcomes import Accepted, Ticket
from tardigrad.core.situation import Situation
from tardigrad.core.upload import Upload
from tardigrad.experiments.runs.simulation_assembly import build
from tardigrad.learning.heads import Head

SIZE, CLIENTS = 5, 12
_random = np.random.default_rng(11)
DATA = {i: (_random.normal(size=(6, SIZE)), _random.normal(size=6) + i / 5) for i in range(CLIENTS)}


def run(algorithm, dtype=torch.float32, **settings):
    """Every version of the model."""
    options = {
        "local": td.Local(epochs=2, batch_size=4, lr=0.02),
        "stop": td.Stop(steps=12),
        "evaluation": td.Evaluation(every_steps=10**6),
    } | settings
    module = Quadratic(torch.linspace(-1, 1, SIZE, dtype=dtype))
    simulation = build(
        td.Config(algorithm=algorithm, **options), model=module, clients=DATA, head=SquaredError()
    )
    models = [simulation.aggregator.state["model"]]
    for events in records(simulation.engine.run()):
        models += [simulation.aggregator.state["model"] for e in events if e["event"] == "step"]
    return torch.stack(models)


def assert_moves(models):
    assert (models[1:] != models[:-1]).any(dim=1).all()


# -- FedAsync and FedBuff ------------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "rounding"), [(torch.float32, 1e-5), (torch.float64, 1e-13)])
@pytest.mark.parametrize("alpha", [0.25, 0.6, 1.0])
def test_fedasync_with_fresh_clients_is_fedbuff_of_one_upload_to_rounding(alpha, dtype, rounding):
    # (1 - a) x + a (x - delta) = x - a delta
    alone = {"pace": td.Asynchronous(concurrency=1), "stop": td.Stop(steps=40)}
    mixed = run(td.FedAsync(alpha=alpha), dtype, **alone)
    stepped = run(td.FedBuff(lr=alpha, staleness=td.Constant()), dtype, buffer=td.Buffer(size=1), **alone)
    assert_moves(mixed)
    assert torch.allclose(mixed, stepped, rtol=rounding, atol=rounding)


def test_fedasync_with_stale_clients_differs_from_fedbuff():
    # FedAsync mixes in the client's whole model, FedBuff only what it changed
    pace = {"pace": td.Asynchronous(concurrency=6)}
    mixed = run(td.FedAsync(alpha=0.6, staleness=td.Constant()), torch.float64, **pace)
    stepped = run(
        td.FedBuff(lr=0.6, staleness=td.Constant()), torch.float64, buffer=td.Buffer(size=1), **pace
    )
    assert not torch.allclose(mixed, stepped, rtol=1e-3)


# -- synchronous is a special case ---------------------------------------------------------------------


PAIRS = {
    "fedavg": (td.FedAvg(lr=0.7), td.FedBuff(lr=0.7)),
    "fedavgm": (td.FedAvgM(lr=0.3), td.FedBuff(lr=0.3, momentum=td.HeavyBall(beta=0.9))),
    "fedadam": (
        td.FedAdam(lr=0.05),
        td.FedBuff(
            lr=0.05, momentum=td.EMA(beta=0.9), preconditioner=td.Adam(beta2=0.99, adaptivity=1e-3)
        ),
    ),
    "fedadagrad": (td.FedAdaGrad(lr=0.1), td.FedBuff(lr=0.1, preconditioner=td.AdaGrad())),
    "fedyogi": (
        td.FedYogi(lr=0.05), td.FedBuff(lr=0.05, momentum=td.EMA(beta=0.9), preconditioner=td.Yogi()),
    ),
}  # fmt: skip


@pytest.mark.parametrize("weights", ["equal", "examples"])
@pytest.mark.parametrize("name", PAIRS)
def test_without_delay_buffered_rounds_are_synchronous_to_the_bit(name, weights):
    rounds, buffered = PAIRS[name]
    no_delay = {"delay": td.ConstantDelay(duration=0.0)}
    synchronous = run(rounds, pace=td.Synchronous(cohort=4), buffer=td.Buffer(weights=weights), **no_delay)
    asynchronous = run(
        buffered,
        pace=td.Asynchronous(concurrency=4),
        buffer=td.Buffer(size=4, weights=weights),
        **no_delay,
    )
    assert_moves(synchronous)
    assert torch.equal(synchronous, asynchronous)


def test_the_delay_of_a_round_changes_only_the_order_of_the_sum():
    # the same cohorts, added up in the order of their arrival: equal to rounding
    instant = run(td.FedAvg(), torch.float64, pace=td.Synchronous(cohort=4), delay=td.ConstantDelay())
    delayed = run(td.FedAvg(), torch.float64, pace=td.Synchronous(cohort=4), delay=td.HalfNormal())
    assert torch.allclose(instant, delayed, rtol=1e-13, atol=1e-13)


def test_over_selection_of_no_further_client_is_the_plain_round_to_the_bit():
    plain = run(td.FedAvg(), pace=td.Synchronous(cohort=4))
    selected = run(td.FedAvg(), pace=td.Synchronous(cohort=4, selected=4))
    assert torch.equal(plain, selected)


def test_equal_weights_are_weights_by_examples_when_all_have_as_many():
    pace = {"pace": td.Synchronous(cohort=4)}
    equal = run(td.FedAvg(), torch.float64, **pace)
    examples = run(td.FedAvg(), torch.float64, buffer=td.Buffer(weights="examples"), **pace)
    assert torch.allclose(equal, examples, rtol=1e-13, atol=1e-13)


# -- staleness ------------------------------------------------------------------------------------------


def test_a_hinge_of_4_is_constant_while_staleness_is_at_most_4_to_the_bit():
    pace = {"pace": td.Asynchronous(concurrency=10), "stop": td.Stop(steps=30)}
    for bound, same in ((4, True), (None, False)):
        buffer = td.Buffer(size=1, staleness_bound=bound)
        hinge = run(td.FedBuff(lr=0.3, staleness=td.Hinge(b=4.0)), buffer=buffer, **pace)
        constant = run(td.FedBuff(lr=0.3, staleness=td.Constant()), buffer=buffer, **pace)
        assert torch.equal(hinge, constant) == same


class Slope(nn.Module):
    """A straight line: its gradient is the mean of the rows, wherever it stands."""

    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.zeros(2))

    def forward(self, rows):
        return rows @ self.x


class Straight(Head):
    def loss(self, outputs, labels):
        return outputs.mean()

    def metrics(self, outputs):
        return {"loss": sum(float(x.sum()) for x, _ in outputs)}


ROWS = {0: [1.0, 0.0], 1: [0.0, 1.0], 2: [2.0, -1.0], 3: [1.0, 1.0]}


def slide(algorithm, trips, size):
    """Every version of the model of a script on straight lines: a trip of client i uploads ROWS[i] / 2."""
    config = td.Config(
        algorithm=algorithm,
        pace=td.Scripted(trips=tuple(trips)),
        buffer=td.Buffer(size=size),
        local=td.Local(steps=1, lr=0.5),
        stop=td.Stop(trips=len(trips)),
        evaluation=td.Evaluation(every_steps=10**6),
    )
    clients = {i: (np.array([row]), np.zeros(1)) for i, row in ROWS.items()}
    simulation = build(config, model=Slope(), clients=clients, head=Straight())
    models = [simulation.aggregator.state["model"]]
    for events in records(simulation.engine.run()):
        models += [simulation.aggregator.state["model"] for e in events if e["event"] == "step"]
    return [model.tolist() for model in models]


def test_a_buffer_of_stale_uploads_moves_less_by_exactly_s():
    # clients 2 and 3 start at once and come back last; 0 and 1 make three steps before: staleness 3, s = 1/2.
    # Dividing by the sum of the weights would undo the discount.
    quick = [(float(t), 0.5, c) for t in range(3) for c in (0, 1)]
    late = [(0.0, 9.0, 2), (0.0, 9.0, 3)]
    models = slide(td.FedBuff(lr=1.0), quick + late, size=2)
    fresh = slide(td.FedBuff(lr=1.0), [(0.0, 1.0, 2), (0.0, 1.0, 3)], size=2)
    # a fresh buffer of 2 and 3 moves by ((2, -1) + (1, 1)) / 2 / 2 = (0.75, 0)
    assert fresh == [[0.0, 0.0], [-0.75, 0.0]]
    # a fresh buffer of 0 and 1 by ((1, 0) + (0, 1)) / 2 / 2 = (0.25, 0.25), three times
    assert models[:4] == [[0.0, 0.0], [-0.25, -0.25], [-0.5, -0.5], [-0.75, -0.75]]
    # and the stale one by half of (0.75, 0)
    assert models[4:] == [[-1.125, -0.75]]


def test_a_late_upload_weighs_less_than_a_fresh_one_in_one_buffer():
    # client 2 is 3 stale when it meets a fresh upload of client 0: (0.5 (2, -1) + (1, 0)) / 2 / 2
    quick = [(float(t), 0.5, c) for t in range(3) for c in (0, 1)]
    models = slide(td.FedBuff(lr=1.0), [*quick, (0.0, 9.0, 2), (4.0, 1.0, 0)], size=2)
    assert np.subtract(models[3], models[4]).tolist() == [0.5, -0.125]


def test_a_sum_of_n_uploads_is_n_single_steps():
    # on straight lines; lr = n turns the mean into the sum
    trips = [(0.0, 1.0, c) for c in range(4)]
    one_by_one = slide(td.FedBuff(lr=1.0, staleness=td.Constant()), trips, size=1)
    together = slide(td.FedBuff(lr=4.0, staleness=td.Constant()), trips, size=4)
    assert one_by_one[-1] == together[-1] == [-2.0, -0.5]


# -- the order inside a buffer --------------------------------------------------------------------------


def stepped(algorithm, order, dtype):
    """The model after one buffer whose uploads were added in this order."""
    random = torch.Generator().manual_seed(1)
    deltas = [torch.randn(50, generator=random, dtype=torch.float64).to(dtype) for _ in range(10)]
    aggregator = Aggregator(algorithm, torch.zeros(50, dtype=dtype), Situation(population=10, buffer=10))
    for n in order:
        weight = 1 / (1 + n % 4) ** 0.5
        delivery = Accepted(Ticket(n, n, 0, 0.0), 1.0, n % 4, weight, 1.0, False)
        aggregator.add(delivery, Upload({"delta": deltas[n]}, 1, 1, 0.0), torch.zeros(50))
    aggregator.step()
    return aggregator.state["model"]


@pytest.mark.parametrize(("dtype", "rounding"), [(torch.float32, 1e-5), (torch.float64, 1e-13)])
@pytest.mark.parametrize(
    "algorithm", [td.FedBuff(), td.FedBuff(lr=0.1, momentum=td.EMA(), preconditioner=td.Adam()), td.FedAvg()]
)
def test_the_order_inside_a_buffer_does_not_matter_up_to_rounding(algorithm, dtype, rounding):
    forwards = stepped(algorithm, range(10), dtype)
    assert forwards.abs().max() > 0.01
    for seed in range(5):
        order = np.random.default_rng(seed).permutation(10).tolist()
        assert torch.allclose(stepped(algorithm, order, dtype), forwards, rtol=rounding, atol=rounding)


def test_same_order_gives_the_same_result_to_the_bit():
    assert torch.equal(
        stepped(td.FedBuff(), range(10), torch.float32), stepped(td.FedBuff(), range(10), torch.float32)
    )
