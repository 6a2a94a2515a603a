"""What a run sends to its Ray workers: a trainer with the same module, whatever was trained before."""

import pytest
import torch

import tardigrad as td
from ordinary_modules import CASES, clients_of, module_of
from tardigrad.core.upload import Task
from tardigrad.experiments.runs.simulation_assembly import assemble_simulation, training_parts
from tardigrad.simulation.executors.ray.kit import pack_kit, unpack_kit

cloudpickle = pytest.importorskip("ray.cloudpickle")
CHOSEN = [
    "view of large maps", "resnet, each client's own BatchNorm", "resnet, BatchNorm replaced", "packed lstm",
    "transformer with masks", "frozen parts", "personal head",
]  # fmt: skip


@pytest.mark.parametrize("name", CHOSEN)
def test_worker_trains_a_trip_to_the_same_bits(name):
    case = CASES[name]
    config = td.Config(local=td.Local(batch_size=4, **case.local), stop=td.Stop(trips=20))
    assembly = assemble_simulation(config, module_of(case), clients_of(case), head=case.head)
    trainer = training_parts(assembly).trainer
    task = Task(0, 0, 0, {"model": assembly.flat.shared.clone()})

    def train(trainer, clients, memory):
        upload, kept = trainer.train(task, memory, clients.indexed(0), seed=7)
        return {name: vector.clone() for name, vector in (upload.vectors | kept).items()}, kept

    first, memory = train(trainer, assembly.clients, {})
    again, _ = train(trainer, assembly.clients, memory)
    other, clients = unpack_kit(pack_kit(cloudpickle, trainer, assembly.clients))
    for remembered, expected in (({}, first), (memory, again)):
        found, _ = train(other, clients, remembered)
        assert found.keys() == expected.keys()
        for key, vector in expected.items():
            assert torch.equal(found[key], vector), key
