"""The digest of what is neither trained nor sent."""

import asyncio
import copy
import re
from pathlib import Path

import grpc
import pytest
import torch
from service_harness import PATIENCE, serving
from torch import nn

import tardigrad as td
from ordinary_modules import CASES, clients_of, module_of
from tardigrad.errors import RunError
from tardigrad.learning.frozen import frozen_digest
from tardigrad.learning.normalisation import with_group_norm
from tardigrad.service.client.app import Client
from tardigrad.service.client.client_trainer import ClientTrainer
from tardigrad.service.client.connection import Connection
from tardigrad.service.client.participant import Participant

FROZEN = CASES["frozen parts"]


def changed(name):
    module = module_of(FROZEN)
    with torch.no_grad():
        module.get_parameter(name).add_(1.0) if "running" not in name else module.get_buffer(name).add_(1.0)
    return module


@pytest.mark.parametrize("name", ["one.weight", "norm.weight", "norm.running_mean"])
def test_digest_depends_on_every_frozen_value(name):
    assert frozen_digest(changed(name)) != frozen_digest(module_of(FROZEN))


@pytest.mark.parametrize("name", ["out.weight", "out.bias"])
def test_digest_does_not_depend_on_trained_values(name):
    assert frozen_digest(changed(name)) == frozen_digest(module_of(FROZEN))


def test_digest_depends_on_what_is_frozen():
    module = module_of(FROZEN)
    module.one.requires_grad_(True)
    assert frozen_digest(module) != frozen_digest(module_of(FROZEN))


def test_running_statistics_of_trained_layers_do_not_count():
    module = module_of(CASES["BatchNorm of rows"])
    before = frozen_digest(module)
    module(torch.randn(4, 5))
    assert frozen_digest(module) == before == frozen_digest(with_group_norm(module))


def test_buffers_that_are_not_saved_do_not_count():
    module = nn.Linear(2, 1)
    before = frozen_digest(module)
    module.register_buffer("cache", torch.ones(3), persistent=False)
    assert frozen_digest(module) == before
    module.register_buffer("table", torch.ones(3))
    assert frozen_digest(module) != before


CONFIG = td.Config(
    algorithm=td.FedBuff(), data=None, model=None, pace=td.Asynchronous(concurrency=1),
    buffer=td.Buffer(size=1), stop=td.Stop(trips=2), local=td.Local(batch_size=4),
    service={"requests_per_second": 10_000, "population": 3, "poll_seconds": 0.2, "linger_seconds": 0.0},
)  # fmt: skip


def test_client_with_other_frozen_parts_is_refused_when_it_joins(tmp_path):
    examples = clients_of(FROZEN)["client-0"]

    def participant(running, name, module):
        trainer = ClientTrainer(name, Client(module, examples))
        return Participant(running.address, running.signer(name), None, trainer, tmp_path / name, PATIENCE)

    async def scene():
        async with serving(CONFIG, tmp_path, model=module_of(FROZEN), durable=False) as running:
            with pytest.raises(RunError, match=r"the frozen parameters or buffers .* differ from the server"):
                await participant(running, "other", changed("one.weight")).take_part()
            assert running.refusals["other frozen parts"] == 1
            async with Connection(running.address, running.signer("old"), None) as older:
                assert older.shapes == [(3, 8), (3,)], "a client that sends no digest joins as before"
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                async with Connection(running.address, running.signer("x"), None, frozen=b"other"):
                    pass
            assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
            same = copy.deepcopy(module_of(FROZEN))
            return await asyncio.wait_for(participant(running, "same", same).take_part(), PATIENCE)

    assert asyncio.run(scene()) == "trips"


def test_adapters_as_the_documents_show_them_are_all_that_is_trained():
    page = (Path(__file__).parents[2] / "docs/models.md").read_text()
    (block,) = (
        text for text in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "class Adapted" in text
    )
    torch.manual_seed(0)
    encoder = nn.Module()
    encoder.blocks = nn.ModuleList(
        nn.ModuleDict({"query": nn.Linear(6, 4), "value": nn.Linear(6, 4)}) for _ in range(2)
    )
    before = encoder.blocks[0].query.weight.clone()
    x = torch.randn(5, 6)
    plain = encoder.blocks[0].query(x)
    exec(block, {"nn": nn, "encoder": encoder})
    assert torch.equal(encoder.blocks[0].query(x), plain), "adapters begin with no effect"
    names = [name for name, value in encoder.named_parameters() if value.requires_grad]
    assert {name.rsplit(".", 2)[-2] for name in names} == {"down", "up"}

    model = nn.Sequential(encoder.blocks[0].query, nn.ReLU(), nn.Linear(4, 2).requires_grad_(False))
    result = td.run(
        model=model, clients={"ann": (x, (x[:, 0] > 0).long())}, stop={"trips": 3}, buffer={"size": 1},
        pace={"kind": "asynchronous", "concurrency": 1},
    )  # fmt: skip
    assert torch.equal(result.model["0.layer.weight"], before)
    assert result.model["0.up.weight"].abs().sum() > 0
    assert result.bytes == 3 * 2 * 4 * (6 * 8 + 8 * 4), "only adapters travel"
