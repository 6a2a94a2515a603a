"""Several trips in one go: the numbers of one by one, to rounding."""

import json
import warnings

import pytest
import torch
from torch import nn

import tardigrad as td
from event_records import records
from tardigrad.algorithms.algorithm import Algorithm
from tardigrad.algorithms.registry import BUILT_IN
from tardigrad.experiments.runs.simulation_assembly import build
from tardigrad.simulation.executors.vectorised import Vectorised

ASYNCHRONOUS = {"pace": td.Asynchronous(concurrency=15), "buffer": td.Buffer(size=4)}
SYNCHRONOUS = {"pace": td.Synchronous(cohort=8)}
ALGORITHMS = {
    "fedbuff": (td.FedBuff(), ASYNCHRONOUS),
    "fedasync": (td.FedAsync(), {"pace": td.Asynchronous(concurrency=15)}),
    "fedasync, option II": (td.FedAsync(rho=0.5), {"pace": td.Asynchronous(concurrency=15)}),
    "adamasfl": (td.AdaMasFL(), ASYNCHRONOUS),
    "scaffold": (td.SCAFFOLD(), SYNCHRONOUS),
    "fedprox": (td.FedProx(mu=0.5), SYNCHRONOUS),
}
ALGORITHMS |= {
    kind().name: (kind(), SYNCHRONOUS if kind.synchronous else ASYNCHRONOUS)
    for kind in BUILT_IN
    if kind().name not in ALGORITHMS
    and (kind.rule is not Algorithm.rule or kind.broadcast is not Algorithm.broadcast)
}
"""Those whose clients do something of their own, and plain ones."""
EQUAL, RAGGED = [10] * 20, [10, 10, 7, 10, 3, 10, 12, 12, 7, 1] * 2 + [2]


def population(sizes, shape=(6,)):
    random = torch.Generator().manual_seed(0)
    return {
        client: (
            torch.randn(n, *shape, generator=random, dtype=torch.float64),
            torch.randint(3, (n,), generator=random),
        )
        for client, n in enumerate(sizes)
    }


def mlp():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)).double()


def simulation(at_once, sizes=EQUAL, algorithm="fedbuff", module=None, clients=None, **more):
    kind, options = ALGORITHMS[algorithm]
    settings = {
        "local": td.Local(batch_size=4, epochs=2, lr=0.05), "stop": td.Stop(trips=80),
        "evaluation": td.Evaluation(every_steps=5), "device": {"clients_at_once": at_once},
    }  # fmt: skip
    config = td.Config(algorithm=kind, **(settings | options | more))
    clients = clients or population(sizes)
    return build(config, module or mlp(), clients, clients[0])


@pytest.fixture
def groups(monkeypatch):
    """How many examples those who were trained at once had, each time."""
    sizes = []
    trained = Vectorised._trained

    def counting(self, jobs, rules):
        result = trained(self, jobs, rules)
        sizes.append([self._clients.examples(job.client) for job in jobs])
        return result

    monkeypatch.setattr(Vectorised, "_trained", counting)
    return sizes


def largest(groups):
    return max(map(len, groups))


def agree(*arguments, at_once=6, exactly=False, **settings):
    """Run one by one and together; the events must be the same, the models to rounding."""
    one, many = simulation(1, *arguments, **settings), simulation(at_once, *arguments, **settings)
    assert isinstance(many.executor, Vectorised)
    for ours, theirs in zip(records(many.engine.run()), records(one.engine.run()), strict=True):
        for a, b in zip(ours, theirs, strict=True):
            assert a.keys() == b.keys()
            for name, value in a.items():
                near = pytest.approx(b[name], rel=1e-9, abs=1e-12) if isinstance(value, float) else b[name]
                assert value == near, name
    for name, value in one.aggregator.state.items():
        ours = many.aggregator.state[name]
        if isinstance(value, torch.Tensor):
            tolerance = {"rtol": 0, "atol": 0} if exactly else {"rtol": 1e-10, "atol": 1e-12}
            assert torch.allclose(ours, value, **tolerance), name
        else:
            assert ours == value
    return many


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_agrees_with_one_by_one(groups, algorithm):
    agree(algorithm=algorithm)
    assert largest(groups) == 6
    assert sum(map(len, groups)) >= 79  # of 80: at most the last one of the run was alone


def test_clients_of_other_sizes_are_trained_apart(groups):
    agree(RAGGED)
    assert largest(groups) > 1
    assert all(len(set(sizes)) == 1 for sizes in groups)
    assert not any(2 in sizes for sizes in groups)  # there is only one of them


@pytest.mark.parametrize(
    "local",
    [
        td.Local(batch_size=4, steps=3, weight_decay=0.1, lr_normalisation=True),
        td.Local(batch_size=4, steps=5, schedule=td.StepDecay(at=(2, 4, 6, 8), factor_at_each=0.5)),
        td.Local(batch_size=32),
        td.Local(batch_size=4, optimiser=td.AdamW(keep=True), lr=0.01, weight_decay=0.1, gradient_clip=0.5),
        td.Local(batch_size=2, accumulate=2, optimiser="momentum", trip_schedule="cosine"),
    ],
)
def test_agrees_whatever_the_local_settings(groups, local):
    agree(RAGGED, local=local)
    assert largest(groups) > 1


def test_autocast_is_followed(groups):
    """To the rounding of bfloat16, which has 8 bits: a batched product is rounded elsewhere."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
    models = {}
    for at_once, autocast in ((1, True), (6, True), (6, False)):
        local = td.Local(batch_size=4, epochs=2, lr=0.5, autocast=autocast)
        run = simulation(at_once, module=module, local=local, stop=td.Stop(trips=12))
        for _ in run.engine.run():
            pass
        models[at_once, autocast] = run.model
    assert largest(groups) == 6
    assert (models[6, True] - models[1, True]).norm() < 0.01
    assert (models[6, True] - models[6, False]).norm() > 1e-4


def test_sizes_that_begin_alike_are_not_mixed_up(groups):
    # in 4 steps: 4 1 4 1 and 4 4 1 4
    agree([5, 9] * 10, local=td.Local(batch_size=4, steps=4))
    assert largest(groups) > 1


def test_convolutions(groups):
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3)
    ).double()
    clients = population(EQUAL, (2, 4, 4))
    agree(module=module, clients=clients)
    assert largest(groups) == 6


def test_tied_and_frozen_parameters(groups):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.again, self.last = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)
            self.again.weight = self.first.weight
            self.last.bias.requires_grad_(False)

        def forward(self, x):
            return self.last(torch.tanh(self.again(torch.tanh(self.first(x)))))

    torch.manual_seed(0)
    agree(module=Tied().double())
    assert largest(groups) == 6


class Branching(nn.Linear):
    def forward(self, x):
        return super().forward(x if x.sum() > 0 else -x)


class Counting(nn.Linear):
    """Has a buffer that changes in training."""

    def __init__(self, *sizes, replaces):
        super().__init__(*sizes)
        self.replaces = replaces
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        if self.training and self.replaces:
            self.seen = self.seen + x.mean().detach()
        elif self.training:
            self.seen += x.mean().detach()
        return super().forward(x) * (1 + 0.1 * self.seen)


CANNOT = {
    "branching": lambda: Branching(6, 3),
    "dropout": lambda: nn.Sequential(nn.Dropout(0.5), nn.Linear(6, 3)),
    "a buffer that is changed": lambda: Counting(6, 3, replaces=False),
    "a buffer that is replaced": lambda: Counting(6, 3, replaces=True),
    "spectral norm": lambda: nn.utils.spectral_norm(nn.Linear(6, 3)),
}


@pytest.mark.parametrize("name", CANNOT)
def test_a_module_that_cannot_be_vectorised_is_trained_one_by_one(groups, name):
    torch.manual_seed(0)
    module = CANNOT[name]().double()
    with pytest.warns(UserWarning, match=r"device\.clients_at_once: this model cannot be vectorised"):
        many = agree(module=module, exactly=True)
    assert groups == []
    assert not many.executor.vectorised


def test_a_module_that_can_be_is_not_warned_of(groups):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        agree()


def test_a_trip_that_diverges_says_so_when_its_turn_comes(groups):
    clients = population(EQUAL)
    clients[13][0][2] = float("inf")
    said = []
    for at_once in (1, 6):
        one, events = simulation(at_once, clients=clients), []
        with pytest.raises(td.RunError, match="the training loss is not finite") as error:
            events.extend(one.engine.run())
        said.append((str(error.value), one.engine.trips))
    assert said[0] == said[1]
    assert largest(groups) == 6


def test_a_resumed_run_agrees_too(groups):
    whole, stopped, resumed = (simulation(6, algorithm="scaffold") for _ in range(3))
    for _ in whole.engine.run():
        pass
    for _, _ in zip(range(37), stopped.engine.run()):
        pass
    tensors, document = stopped.engine.snapshot()
    resumed.engine.restore(tensors, json.loads(json.dumps(document)))
    for _ in resumed.engine.run():
        pass
    assert torch.allclose(resumed.model, whole.model, rtol=1e-10, atol=1e-12)
