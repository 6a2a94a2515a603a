"""Recovery needs no more memory than serving: a snapshot's tensors are taken over one by one."""

import json

SCRIPT = """
import json, resource, torch
import tardigrad as td
from tardigrad.algorithms.aggregator import Aggregator
from tardigrad.core.situation import Situation
from tardigrad.service.server.model_state import ModelState

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

def values():
    return ModelState(Aggregator(td.FedBuff(), torch.zeros(size), Situation(2, 2)), None, None, False, False)

size, versions = 10_000_000, 6
first = values()
tensors, document = first.snapshot()
tensors = {name: tensor.clone() for name, tensor in tensors.items() if not name.startswith("broadcast/")}
tensors |= {f"broadcast/{version}/model": torch.full((size,), float(version)) for version in range(versions)}
del first
second = values()
before = peak()
second.restore(tensors, document)
assert not tensors, "nobody holds the snapshot any more"
assert [float(second.broadcasts[v].vectors["model"][-1]) for v in range(versions)] == list(range(versions))
print(json.dumps((peak() - before) / (4 * size)))
"""


def test_restoring_takes_little_more_than_the_snapshot(commands):
    """Six versions are in the snapshot; with a copy of each, it would take six models more."""
    process = commands.start(program=SCRIPT)
    said, errors = process.communicate()
    assert process.returncode == 0, errors
    assert json.loads(said) < 2.5
