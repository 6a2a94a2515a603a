"""Personal parts: parameters that stay with their client, in its memory."""

import asyncio

import pytest
import torch
import torch.nn.functional as F
from service_harness import Puppet, serving
from torch import nn

import tardigrad as td
from ordinary_modules import CASES, clients_of, module_of
from tardigrad.errors import ConfigError
from tardigrad.experiments.runs.simulation_assembly import build
from tardigrad.learning.flat import PERSONAL, FlatModule
from tardigrad.service.client.app import Client
from tardigrad.service.client.client_trainer import ClientTrainer
from tardigrad.service.protocol.task_settings import to_json

CASE = CASES["personal head"]
LOCAL = td.Local(batch_size=4, personal=["out.*"])
ASYNCHRONOUS = {"buffer": td.Buffer(size=2), "pace": td.Asynchronous(concurrency=3)}
ROUNDS = {"pace": td.Synchronous(cohort=3)}


def config(algorithm, trips=9, **settings):
    pace = ROUNDS if algorithm.synchronous else ASYNCHRONOUS
    given = {"algorithm": algorithm, "local": LOCAL, "stop": td.Stop(trips=trips)}
    return td.Config(**(given | pace | settings))


def simulated(settings, **own):
    simulation = build(settings, module_of(CASE), clients_of(CASE), **own)
    events = [event for events in simulation.engine.run() for event in events]
    return simulation, events


def test_personal_parameters_are_the_end_of_the_vector_and_not_in_the_shared_part():
    flat = FlatModule(module_of(CASE), ["body.0.w*", "out.bias"])
    assert flat.names == ["body.0.bias", "out.weight", "body.0.weight", "out.bias"]
    assert [tuple(shape) for shape in flat.shared_shapes] == [(8,), (3, 8)]
    assert len(flat.shared) == 8 + 24
    assert flat.shared.data_ptr() == flat.vector.data_ptr()
    plain = FlatModule(module_of(CASE))
    assert plain.shared is plain.vector
    assert not plain.has_personal


@pytest.mark.parametrize(
    ("patterns", "message"),
    [
        (["head.*"], r"^local.personal: 'head.\*' matches no trained parameter .* called body.0.weight"),
        (["out.*", "*.nothing"], r"'\*.nothing' matches no trained parameter"),
        (["*"], r"^local.personal: every parameter would stay with its client"),
    ],
)
def test_patterns_that_cannot_be_meant_are_refused(patterns, message):
    with pytest.raises(ConfigError, match=message):
        td.run(
            model=module_of(CASE), clients=clients_of(CASE), local=td.Local(personal=patterns),
            stop=td.Stop(trips=30),
        )  # fmt: skip


ALGORITHMS = [td.FedBuff(), td.FedAsync(), td.FedAC(), td.CA2FL(), td.SCAFFOLD(), td.FedProx(), td.FedAdam()]


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda one: one.kind)
def test_every_algorithm_sees_only_the_shared_part(algorithm):
    buffer = {"buffer": td.Buffer(size=1)} if algorithm.single_upload else {}
    simulation, _ = simulated(config(algorithm, **buffer))
    shared = 5 * 8 + 8
    tensors, _ = simulation.engine.snapshot()
    for name, tensor in tensors.items():
        length = 27 if name.endswith(PERSONAL) else shared
        assert tensor.numel() == length, name
    memories = simulation.engine.memories
    assert set(memories) == {0, 1, 2}
    assert not torch.equal(memories[0][PERSONAL], memories[1][PERSONAL])


def test_scaffold_corrects_the_shared_part_and_personal_parts_follow_their_gradient():
    """Against two rounds of SCAFFOLD in plain torch, with one step a trip."""
    local = td.Local(steps=1, batch_size=10, lr=0.1, personal=["out.*"])
    settings = config(td.SCAFFOLD(), trips=6, local=local)
    simulation, _ = simulated(settings)
    start = module_of(CASE)
    shared = [p.detach().clone() for p in start.body.parameters()]
    own = [[p.detach().clone() for p in start.out.parameters()] for _ in range(3)]
    c, controls = (
        [torch.zeros_like(p) for p in shared],
        [[torch.zeros_like(p) for p in shared] for _ in range(3)],
    )
    for _ in range(2):
        deltas = []
        for client, (x, y) in enumerate(clients_of(CASE).values()):
            module = module_of(CASE)
            body, out = list(module.body.parameters()), list(module.out.parameters())
            with torch.no_grad():
                for p, value in zip(body + out, shared + own[client]):
                    p.copy_(value)
            F.cross_entropy(module(x), y).backward()
            deltas.append([0.1 * (p.grad - mine + all_) for p, mine, all_ in zip(body, controls[client], c)])
            own[client] = [value - 0.1 * p.grad for value, p in zip(own[client], out)]
            controls[client] = [
                mine - all_ + delta / 0.1 for mine, all_, delta in zip(controls[client], c, deltas[-1])
            ]
        shared = [value - sum(parts) / 3 for value, parts in zip(shared, zip(*deltas))]
        c = [sum(parts) / 3 for parts in zip(*controls)]
    expected = torch.cat([value.reshape(-1) for value in shared])
    torch.testing.assert_close(simulation.model, expected, rtol=1e-4, atol=1e-6)
    for client in range(3):
        expected = torch.cat([value.reshape(-1) for value in own[client]])
        torch.testing.assert_close(
            simulation.engine.memories[client][PERSONAL], expected, rtol=1e-4, atol=1e-6
        )


def test_personal_part_of_an_upload_that_does_not_count_is_not_kept():
    """Client 1 is three versions late, and one is allowed."""
    script = [(0.0, 1.0, 0), (0.0, 4.0, 1), (1.5, 1.0, 0), (3.0, 0.5, 0)]
    settings = config(
        td.FedBuff(), trips=4, pace=td.Scripted(trips=script), buffer=td.Buffer(size=1, staleness_bound=1)
    )
    simulation, events = simulated(settings)
    assert [event.accepted for event in events if hasattr(event, "accepted")] == [True, True, True, False]
    assert set(simulation.engine.memories) == {0}


def test_clients_are_evaluated_with_their_own_personal_parts():
    settings = config(td.FedBuff(), trips=12, evaluation=td.Evaluation(held_out=0.3, every_steps=1))
    simulation, events = simulated(settings)
    metrics = [event.metrics for event in events if "client_accuracy" in (getattr(event, "metrics", 0) or {})]
    right = []
    for client in range(3):
        module = module_of(CASE)
        state = simulation.flat.state_dict(simulation.model)
        weight, bias = simulation.engine.memories[client][PERSONAL].split([24, 3])
        module.load_state_dict(state | {"out.weight": weight.view(3, 8), "out.bias": bias})
        x, y = simulation.federation.clients.held_out(client)
        right.append(float((module(x).argmax(1) == y).float().mean()))
    assert metrics[-1]["client_accuracy"] == pytest.approx(sum(right) / 3)
    assert metrics[-1]["accuracy"] == metrics[-1]["client_accuracy"]
    assert metrics[0]["clients_with_personal_parts"] == 0.0
    assert metrics[-1]["clients_with_personal_parts"] == 3.0


def test_central_test_set_alone_is_refused_and_beside_held_out_examples_not_used(caplog):
    test = clients_of(CASE)["client-0"]
    with pytest.raises(
        ConfigError, match=r"^evaluation.held_out: parts of this model stay with their clients"
    ):
        simulated(config(td.FedBuff()), test=test)
    _, events = simulated(config(td.FedBuff(), evaluation=td.Evaluation(held_out=0.3)), test=test)
    assert "loss" not in events[0].metrics
    assert "the central test set is not used" in caplog.text
    result = td.run(config(td.FedBuff(), evaluation=td.Evaluation(held_out=0.3)), model=module_of(CASE),
                    clients=clients_of(CASE), test=test)  # fmt: skip
    assert result.baseline is None, "it would be of other examples than the accuracy"


def test_private_run_keeps_personal_parts_and_says_so(tmp_path):
    settings = config(
        td.FedBuff(), trips=6,
        privacy=td.Participation(participations=2, separation=1, clip=1.0, noise_multiplier=1.0, delta=1e-5),
        buffer=td.Buffer(size=2), pace=td.Asynchronous(concurrency=2),
    )  # fmt: skip
    result = td.run(settings, model=module_of(CASE), clients=clients_of(CASE), out=tmp_path / "run")
    start = module_of(CASE).state_dict()
    assert torch.equal(result.model["out.weight"], start["out.weight"]), "no personal part is released"
    assert not torch.equal(result.model["body.0.weight"], start["body.0.weight"])
    assert "Personal parts of the model" in (tmp_path / "run" / "privacy.md").read_text()


def test_vectorised_executor_trains_them_one_by_one():
    with pytest.warns(UserWarning, match="personal parts are trained one by one"):
        simulation, _ = simulated(config(td.FedBuff(), device=td.Device(clients_at_once=3)))
    expected, _ = simulated(config(td.FedBuff()))
    assert torch.equal(simulation.model, expected.model)
    for client, memory in expected.engine.memories.items():
        assert torch.equal(simulation.engine.memories[client][PERSONAL], memory[PERSONAL])


def test_bfloat16_parts_are_kept_in_their_dtype():
    clients = clients_of(CASE)
    simulation = build(config(td.FedBuff()), module_of(CASE).bfloat16(), clients)
    for _ in simulation.engine.run():
        pass
    assert simulation.engine.memories[0][PERSONAL].dtype is torch.bfloat16


def test_client_of_a_server_evaluates_with_its_personal_part_and_commits_it_when_it_counts(tmp_path):
    examples = clients_of(CASE)["client-0"]
    settings = config(
        td.FedBuff(), trips=2, data=None, model=None, pace=td.Asynchronous(concurrency=1),
        buffer=td.Buffer(size=1), evaluation=td.Evaluation(every_steps=1),
        service={"requests_per_second": 10_000, "population": 1},
    )  # fmt: skip

    async def scene():
        async with (
            serving(settings, tmp_path, model=module_of(CASE), durable=False) as running,
            running.connect("ann") as connection,
        ):
            trainer = ClientTrainer("ann", Client(module_of(CASE), examples, held_out=examples))
            trainer.check_shapes(connection.shapes, connection.settings)
            puppet, accuracies = Puppet(connection, trainer, tmp_path / "ann"), []
            for _ in range(2):
                trip = await puppet.fetch()
                model, before = puppet.holding[trip].task.vectors["model"], puppet.remembering.memory
                await puppet.deliver(trip)
                accuracies.append((puppet.finished[trip].metrics["accuracy"], model, before))
                assert puppet.finished[trip].upload.vectors["delta"].numel() == 48
                assert torch.equal(
                    puppet.remembering.memory[PERSONAL], puppet.finished[trip].memory[PERSONAL]
                )
            return accuracies

    for accuracy, model, memory in asyncio.run(scene()):
        flat = FlatModule(module_of(CASE), ["out.*"])
        with torch.no_grad():
            flat.load(model, memory)
        x, y = examples
        assert accuracy == pytest.approx(float((flat.module.eval()(x).argmax(1) == y).float().mean()))


def test_memory_that_is_larger_than_the_model_fits_into_the_slots_of_workers():
    """Almost all of this model is personal, and statistics are kept as float64."""
    module = nn.Sequential(nn.Linear(5, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 3))
    local = td.Local(batch_size=4, batch_norm="client", personal=["0.*"])
    settings = config(td.FedBuff(), local=local)
    states = []
    for workers in (0, 2):
        simulation = build(settings, module, clients_of(CASE), workers=workers)
        for _ in simulation.engine.run():
            pass
        simulation.executor.close()
        states.append((simulation.model, simulation.engine.memories))
    (model, memories), (other, others) = states
    assert torch.equal(model, other)
    for client, memory in memories.items():
        assert all(torch.equal(vector, others[client][name]) for name, vector in memory.items())


def test_client_that_joins_another_run_begins_its_personal_parts_anew():
    module = module_of(CASE)
    first = [p.detach().clone() for p in module.parameters()]
    trainer = ClientTrainer("ann", Client(module, clients_of(CASE)["client-0"]))
    one = trainer._trainer_for(to_json(td.FedBuff(), td.Local(batch_size=4)))
    with torch.no_grad():
        one.flat.vector.add_(1.0)  # what a trip of the first run leaves
    other = trainer._trainer_for(to_json(td.FedBuff(), LOCAL))
    with torch.no_grad():
        other.flat.load(other.flat.shared, {})
    for p, value in zip(module.parameters(), first):
        assert torch.equal(p, value)


def test_workers_keep_numbers_of_several_sizes():
    """The optimiser's state of an odd number of parameters comes before the statistics in float64."""
    module = nn.Sequential(nn.Linear(5, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))
    with torch.no_grad():
        module[2].bias.requires_grad_(False)
    clients = {name: (torch.randn(8, 5), torch.randint(0, 2, (8,))) for name in "ab"}
    local = td.Local(batch_size=4, batch_norm="client", optimiser=td.LocalMomentum(keep=True))
    settings = {
        "model": module.half(), "clients": clients, "local": local, "stop": td.Stop(trips=6),
        "pace": td.Asynchronous(concurrency=2), "buffer": td.Buffer(size=2),
    }  # fmt: skip
    assert td.run(**settings, workers=2).model_sha256 == td.run(**settings).model_sha256


def test_minibatch_of_one_example_is_refused_before_the_run():
    module = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    clients = {name: (torch.randn(9, 5), torch.randint(0, 2, (9,))) for name in "ab"}
    with pytest.raises(ConfigError, match=r"^local.batch_size: client 'a' has 9 examples"):
        td.run(model=module, clients=clients, local=td.Local(batch_size=4, batch_norm="client"))
