"""What a client trains with: its own head, or that of the server."""

import json

import pytest
import torch
from torch import nn

import tardigrad as td
from tardigrad.core.upload import Task
from tardigrad.errors import ConfigError
from tardigrad.experiments.runs.server_assembly import build_server
from tardigrad.service.client.client_trainer import Assignment, ClientTrainer
from tardigrad.service.server.run_plan import facts_of

X = torch.randn(12, 3, generator=torch.Generator().manual_seed(0))
YES = (X[:, 0] > 0).long()
WEIGHTED = td.Binary(class_weights=(1.0, 10.0))


def settings_of(**tables):
    config = td.Config(data=None, model=None, service={"population": 100}, stop={"trips": 100}, **tables)
    return facts_of(build_server(config, nn.Linear(3, 1)).plan).settings


def trained(settings, labels, head=None):
    torch.manual_seed(1)
    module = nn.Linear(3, 1)
    trainer = ClientTrainer("ann", td.Client(module, examples=(X, labels), held_out=(X, labels), head=head))
    model = torch.cat([p.detach().flatten() for p in module.parameters()])
    task = Task(0, "ann", 0, {"model": model}, 0.0)
    return trainer.train(Assignment(task, 5, settings, evaluate=True, epoch=1), {})


@pytest.mark.parametrize(
    ("head", "labels"), [(WEIGHTED, YES), (td.Regression(loss="huber"), X[:, 1] * 3)], ids=lambda v: type(v)
)
def test_client_without_a_head_uses_that_of_the_server(head, labels):
    told, own = trained(settings_of(head=head), labels), trained(settings_of(), labels, head)
    assert torch.equal(told.upload.vectors["delta"], own.upload.vectors["delta"])
    assert told.metrics == own.metrics


def test_head_of_the_client_comes_before_that_of_the_server():
    mine, told = (
        trained(settings_of(head=WEIGHTED), YES, td.Binary()),
        trained(settings_of(), YES, td.Binary()),
    )
    assert torch.equal(mine.upload.vectors["delta"], told.upload.vectors["delta"])


def test_server_without_a_head_tells_none_and_fractions_are_not_taken_for_classes():
    settings = settings_of()
    assert "head" not in json.loads(settings)
    with pytest.raises(ConfigError, match=r'its labels are fractions .* head = "regression"'):
        trained(settings, X[:, 1])


def test_balanced_weights_are_refused_by_a_server_that_cannot_count_labels():
    with pytest.raises(ConfigError, match=r"^head.class_weights: a server without data"):
        settings_of(head=td.Binary(class_weights="balanced"))
