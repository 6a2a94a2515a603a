"""The common grid: exact sums in any order, weights on the grid, and no overflow."""

import math

import pytest
import torch

import tardigrad as td
from tardigrad.algorithms.aggregator import Aggregator
from tardigrad.core.outcomes import Accepted, Ticket
from tardigrad.core.situation import Situation
from tardigrad.core.staleness import RoundedLaw
from tardigrad.core.upload import Upload
from tardigrad.encodings.encoding import encoding_random
from tardigrad.encodings.layer import encoding_layers
from tardigrad.experiments.runs.assembly import make_bookkeeping
from tardigrad.experiments.runs.simulation_assembly import build


def aggregator(grid):
    layers = encoding_layers(grid, td.FedBuff(), lambda trip: trip)
    return Aggregator(td.FedBuff(), torch.zeros(50_000), Situation(population=5), layers=layers)


def added(grid, order, codes, weights):
    """The sum of the model's change after uploads with these codes and weights, in this order."""
    values = aggregator(grid)
    for trip in order:
        upload = Upload({"delta/codes": codes[trip]}, 1, 1, 0.0)
        delivery = Accepted(Ticket(trip, trip, 0, 0.0), 1.0, 0, weights[trip], 1.0, False)
        values.add(delivery, upload, torch.zeros(50_000))
    values.step()
    return -values.state["model"]


@pytest.mark.parametrize("bits", [8, 16, 32])
def test_sums_are_exact_and_independent_of_the_order(bits):
    grid = td.Grid(bits=bits, uploads=6, denominator=4)
    dtype = getattr(torch, f"int{bits}")
    generator = torch.Generator().manual_seed(0)
    codes = [
        torch.randint(-grid.largest, grid.largest + 1, (50_000,), generator=generator).to(dtype)
        for _ in range(6)
    ]
    weights = [1.0, 0.25, 0.5, 0.75, 1.0, 0.25]
    exact = sum(int(4 * w) * one.long() for w, one in zip(weights, codes))
    one, other = (added(grid, order, codes, weights) for order in (range(6), (3, 5, 0, 4, 1, 2)))
    assert torch.equal(one, other)
    assert torch.equal(one, (exact.double() * (grid.step / 4)).float() / 6)


def test_largest_sum_fits_into_the_bits_and_a_larger_code_would_not():
    for bits in (8, 16, 32):
        for uploads in (1, 3, 10, 30):
            grid = td.Grid(bits=bits, uploads=uploads, denominator=4)
            assert uploads * 4 * grid.largest < 2 ** (bits - 1) <= uploads * 4 * (grid.largest + 1)


def test_grid_without_room_is_refused_before_the_run():
    config = td.Config(encoding={"kind": "grid", "bits": 16, "denominator": 4096})
    with pytest.raises(td.ConfigError, match=r"encoding\.bits: a sum of 10 uploads .* room for 7 such"):
        config.resolved(100)
    few = td.Config(encoding={"kind": "grid", "bits": 16, "denominator": 4096}, buffer={"size": 7})
    assert few.resolved(100).encoding.uploads == 7


def test_all_clients_count_where_a_step_has_no_fixed_size_or_begins_with_everybody():
    poisson = td.Config(encoding="grid", algorithm="fedavg", pace=td.Poisson(probability=0.1))
    assert poisson.resolved(100).encoding.uploads == 100
    opening = td.Config(encoding="grid", algorithm=td.MasFL(beta=0.9, gamma=0.1, first_pass=True))
    assert opening.resolved(100).encoding.uploads == 100


def test_numbers_beyond_the_limit_are_sent_as_the_limit():
    grid = td.Grid(limit=2.0, uploads=10)
    parts = grid.encode("delta", torch.tensor([5.0, -3.0, 1e30]), encoding_random(0))
    assert grid.decode("delta", parts, 3).tolist() == [2.0, -2.0, 2.0]


def test_staleness_weights_are_integers_over_the_denominator_and_never_zero():
    config = td.Config(
        encoding={"kind": "grid", "denominator": 8}, algorithm=td.FedBuff(staleness={"kind": "exponential"})
    ).resolved(100)
    law = make_bookkeeping(config, 100, None).law
    assert isinstance(law, RoundedLaw)
    assert [law(s) for s in range(4)] == [round(8 * math.exp(-0.5 * s)) / 8 for s in range(4)]
    assert law(100) == 1 / 8


def test_events_show_the_weights_of_the_grid():
    config = td.Config(
        data=td.Digits(partition=td.IID(clients=12)), model=td.MLP(hidden=(4,)), stop=td.Stop(trips=60),
        pace=td.Asynchronous(concurrency=8), buffer=td.Buffer(size=3),
        encoding={"kind": "grid", "denominator": 8}, algorithm=td.FedBuff(staleness="polynomial"),
    )  # fmt: skip
    simulation = build(config)
    events = [event for events in simulation.engine.run() for event in events]
    weights = {event.weight for event in events if hasattr(event, "weight")}
    assert len(weights) > 1
    assert all(8 * weight == int(8 * weight) > 0 for weight in weights)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"algorithm": "fedasync", "buffer": {"size": 1}}, "looks at every upload by itself"),
        ({"buffer": {"weights": "examples"}}, r"buffer\.weights: on the common grid"),
        (
            {
                "stop": {"steps": 5},
                "privacy": {"kind": "participation", "clip": 0.5, "epsilon": 8.0, "participations": 2},
            },
            "the clip of central privacy changes each upload on the server",
        ),
    ],
)
def test_combinations_that_leave_the_grid_are_refused(settings, message):
    config = td.Config(
        **({"stop": {"trips": 20}, "encoding": "grid", "model": td.MLP(hidden=(4,))} | settings)
    )
    with pytest.raises(td.ConfigError, match=message):
        build(config)
