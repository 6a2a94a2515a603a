"""Layers with running statistics: refused, kept by each client, replaced, or frozen."""

import copy

import pytest
import torch
from torch import nn

import tardigrad as td
from ordinary_modules import CASES, clients_of, module_of
from tardigrad.errors import ConfigError
from tardigrad.experiments.runs.simulation_assembly import build
from tardigrad.learning.flat import STATISTICS, FlatModule
from tardigrad.learning.normalisation import group_count, with_group_norm

CLIENT = CASES["BatchNorm of rows"]


def test_refusal_names_both_remedies():
    with pytest.raises(ConfigError, match=r"norm is BatchNorm1d, .*'client'.*FedBN.*'group_norm'"):
        FlatModule(module_of(CLIENT))


def test_group_norm_replaces_every_layer_and_keeps_parameters():
    module = module_of(CASES["resnet, BatchNorm replaced"])
    with torch.no_grad():
        module.norm.weight.uniform_()
    replaced = with_group_norm(module)
    kinds = [type(part) for part in replaced.modules()]
    assert nn.BatchNorm2d not in kinds
    assert kinds.count(nn.GroupNorm) == sum(isinstance(part, nn.BatchNorm2d) for part in module.modules())
    assert torch.equal(replaced.norm.weight, module.norm.weight)
    assert replaced.norm.num_groups == group_count(8) == 2
    assert isinstance(module.norm, nn.BatchNorm2d), "the caller's module is not changed"
    assert list(replaced.state_dict()) == [
        n for n in module.state_dict() if "running" not in n and "tracked" not in n
    ]
    assert with_group_norm(replaced) is replaced


def test_group_norm_gives_what_group_norm_gives():
    x = torch.randn(3, 8, 4, 4, generator=torch.Generator().manual_seed(0))
    replaced = with_group_norm(nn.Sequential(nn.BatchNorm2d(8, eps=1e-3)))
    groups = x.view(3, 2, 4, 4, 4)
    mean = groups.mean((2, 3, 4), keepdim=True)
    variance = groups.var((2, 3, 4), keepdim=True, unbiased=False)
    expected = ((groups - mean) / (variance + 1e-3).sqrt()).view(3, 8, 4, 4)
    torch.testing.assert_close(replaced(x), expected)


def test_result_of_a_run_fits_the_module_with_group_norm():
    module = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
    x = torch.randn(12, 4, generator=torch.Generator().manual_seed(0))
    result = td.run(
        model=module, clients={"ann": (x, (x[:, 0] > 0).long())}, local={"batch_norm": "group_norm"},
        pace={"kind": "asynchronous", "concurrency": 1}, buffer={"size": 1}, stop={"trips": 2},
    )  # fmt: skip
    trained = td.with_group_norm(module)
    trained.load_state_dict(result.model)
    assert torch.equal(trained[1].weight, result.model["1.weight"])


def test_module_that_is_itself_a_layer_is_replaced():
    assert isinstance(with_group_norm(nn.BatchNorm1d(8)), nn.GroupNorm)


def test_shared_layer_is_replaced_by_one_layer():
    norm = nn.BatchNorm1d(8)
    replaced = with_group_norm(nn.Sequential(norm, nn.ReLU(), norm))
    assert replaced[0] is replaced[2]


@pytest.mark.parametrize("channels", [1, 2, 3, 6, 7, 16, 48, 100, 512, 1000])
def test_groups_divide_the_channels(channels):
    groups = group_count(channels)
    assert channels % groups == 0
    assert groups <= 32
    assert groups == 1 or channels // groups >= 4


def run(**settings):
    settings = {"local": td.Local(batch_size=4, batch_norm="client"), "stop": td.Stop(trips=12)} | settings
    config = td.Config(
        algorithm=td.FedBuff(), buffer=td.Buffer(size=2), pace=td.Asynchronous(concurrency=2), **settings
    )
    simulation = build(config, module_of(CLIENT), clients_of(CLIENT))
    events = [event for events in simulation.engine.run() for event in events]
    return simulation, events


def test_layers_of_clients_are_neither_sent_nor_averaged():
    simulation, _ = run()
    flat = simulation.flat
    assert flat.names == ["one.weight", "one.bias", "out.weight", "out.bias", "norm.weight", "norm.bias"]
    assert len(simulation.model) == 5 * 8 + 8 + 8 * 3 + 3
    memories = simulation.engine.memories
    assert set(memories) == {0, 1, 2}
    vectors = [memory["personal/vector"] for memory in memories.values()]
    statistics = [memory[STATISTICS] for memory in memories.values()]
    for parts in (vectors, statistics):
        assert not torch.equal(parts[0], parts[1])
        assert not torch.equal(parts[1], parts[2])
    counted = [int(part[-1]) for part in statistics]
    assert sum(counted) == 12 * 3, "three minibatches a trip, counted by num_batches_tracked"
    state = simulation.assembly.flat.state_dict(simulation.model)
    assert torch.equal(state["norm.weight"], torch.ones(8)), "the saved model has initial values there"


def test_each_client_is_evaluated_with_its_own_statistics():
    evaluation = td.Evaluation(held_out=0.3, every_steps=1)
    simulation, events = run(evaluation=evaluation)
    last = [event for event in events if hasattr(event, "metrics") and "client_accuracy" in event.metrics][-1]
    assert last.metrics["clients_with_personal_parts"] == 3.0
    flat, clients, right = simulation.flat, simulation.federation.clients, []
    for client in range(3):
        plain = copy.deepcopy(module_of(CLIENT))
        state = plain.state_dict()
        state.update(flat.state_dict(simulation.model))
        memory = simulation.engine.memories[client]
        state["norm.weight"], state["norm.bias"] = memory["personal/vector"].split(8)
        mean, variance, number = memory[STATISTICS].split([8, 8, 1])
        state["norm.running_mean"], state["norm.running_var"] = mean.float(), variance.float()
        state["norm.num_batches_tracked"] = number[0].long()
        plain.load_state_dict(state)
        x, y = clients.held_out(client)
        right.append(float((plain.eval()(x).argmax(1) == y).float().mean()))
    assert last.metrics["client_accuracy"] == pytest.approx(sum(right) / 3)
    first = next(event for event in events if getattr(event, "metrics", None))
    assert first.metrics["clients_with_personal_parts"] == 0.0


def test_frozen_layer_keeps_its_statistics_and_is_no_reason_to_refuse():
    case = CASES["frozen parts"]
    module = module_of(case)
    flat = FlatModule(copy.deepcopy(module))
    flat.train()
    assert flat.module.training
    assert not flat.module.norm.training
    flat.module(torch.randn(4, 5))
    assert torch.equal(flat.module.norm.running_mean, module.norm.running_mean)
    assert flat.names == ["out.weight", "out.bias"]
    assert not flat.has_personal
