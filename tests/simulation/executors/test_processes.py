"""Training in forked processes: what only this executor has. `test_contract` has the rest."""

from typing import Literal

import pytest
import torch

import tardigrad as td
from tardigrad.simulation.executors.shared_memory import Slots, VersionSlots

SETTINGS = {"stop": td.Stop(trips=60), "pace": td.Asynchronous(concurrency=10), "buffer": td.Buffer(size=2)}


class HoardingRule(td.Rule):
    """Remembers some vectors as long as the model, and uses the last of them."""

    def finish(self, end, steps, path):
        last = str(self.vectors - 1)
        count = self.memory[last] if last in self.memory else torch.zeros_like(end)
        self.memory = {str(i): count + 1 for i in range(self.vectors)}
        return {"delta": (self.start - end) * count}


class Hoarding(td.SumOnly):
    kind: Literal["hoarding"] = "hoarding"
    vectors: int = 4
    remembers = True

    def rule(self, task, memory, lr):
        rule = HoardingRule(task, memory, lr)
        rule.vectors = self.vectors
        return rule

    def step(self, state, buffer):
        state["model"] = state["model"] - 0.3 * buffer.mean()
        return {}


def test_a_client_may_remember_four_vectors():
    settings = SETTINGS | {"algorithm": Hoarding()}
    assert td.run(workers=2, **settings).model_sha256 == td.run(**settings).model_sha256


@pytest.mark.parametrize("vectors", [6, 12])
def test_a_client_that_remembers_more_than_four_vectors_is_refused(vectors):
    with pytest.raises(td.RunError, match=r"trip \d+: more than 4 vectors of the algorithm to upload"):
        td.run(workers=2, **SETTINGS, algorithm=Hoarding(vectors=vectors))


def test_vectors_are_packed_into_their_part_of_a_slot_or_not_at_all():
    slots = Slots(512, 2)
    slot = slots.take()
    first = {"a": torch.arange(4.0), "b": torch.tensor([[True, False]])}
    second = {"c": torch.full((16,), 7.0, dtype=torch.float64)}
    layouts = slots.pack(slot, first, 128), slots.pack(slot, second, 128, start=128)
    assert slots.pack(slot, {"d": torch.zeros(33)}, 128, start=256) is None
    for layout, vectors in zip(layouts, (first, second)):
        found = slots.unpack(slot, layout)
        assert found.keys() == vectors.keys()
        for name, vector in vectors.items():
            assert found[name].dtype == vector.dtype
            assert torch.equal(found[name], vector)


def test_slots_are_reused_and_run_out():
    slots = Slots(64, 2)
    taken = [slots.take(), slots.take()]
    assert slots.take() is None
    slots.release(taken[0])
    assert slots.take() == taken[0]


def test_more_versions_than_there_are_slots(monkeypatch):
    monkeypatch.setattr("tardigrad.simulation.executors.shared_memory.MOST_VERSIONS", 2)
    versions = VersionSlots()
    assert [versions.publish(n, {"model": torch.ones(3)}) is not None for n in range(3)] == [
        True,
        True,
        False,
    ]
    versions.withdraw(2)  # it has no slot
    versions.withdraw(0)
    assert torch.equal(versions.publish(3, {"model": torch.full((3,), 3.0)})["model"], torch.full((3,), 3.0))
    monkeypatch.setattr("tardigrad.simulation.executors.shared_memory.MOST_VERSIONS", 1)
    with pytest.raises(td.RunError, match=r"1 versions are in use at once.* set buffer\.staleness_bound"):
        td.run(workers=2, **SETTINGS)
    td.run(**SETTINGS)  # in one process, other versions are kept elsewhere
