"""What a server without data declares, and what it refuses to begin without."""

import pytest
import torch

import tardigrad as td
from tardigrad.data.sets.own_files import Files
from tardigrad.errors import ConfigError
from tardigrad.experiments.runs.server_assembly import build_server
from tardigrad.service.protocol.site_declaration import read_declaration

NUMBERS = {"columns": {"age": "number", "weight": "number", "sick": ("no", "yes")}, "label": "sick"}


def config(data, **settings):
    return td.Config(
        **(
            {
                "data": data, "model": td.MLP(hidden=(3,)), "stop": td.Stop(trips=8),
                "pace": td.Asynchronous(concurrency=2), "service": {"population": 4},
                "buffer": td.Buffer(size=2),
            }
            | settings
        )
    )  # fmt: skip


def test_declared_numbers_and_classes_need_no_constants():
    plan = build_server(config(Files(**NUMBERS))).plan
    assert plan.shapes == [(3, 2), (3,), (2, 3), (2,)]
    preparation = read_declaration(plan.declaration).preparation
    assert preparation.outputs == ["age", "weight"]
    assert preparation.columns[0].missing == "refuse"
    assert preparation.target.classes == ("no", "yes")


def test_model_of_a_server_without_data_is_the_same_each_time():
    one, two = (build_server(config(Files(**NUMBERS))).assembly.flat.vector for _ in range(2))
    assert torch.equal(one, two)


@pytest.mark.parametrize(
    ("data", "settings", "message"),
    [
        ({"columns": {"age": "number"}}, {}, r"data\.columns\.label: a server .* must know the classes"),
        ({"columns": {"sick": ("no", "yes")}, "label": "sick"}, {}, r"data\.columns: declare the columns"),
        (NUMBERS | {"columns": NUMBERS["columns"] | {"age": "date"}}, {}, r"columns\.age: must be 'number'"),
        (NUMBERS | {"prepare": "standard"}, {}, r"prepare\.constants: a server without data"),
        (
            NUMBERS | {"prepare": {"constants": {"columns": [{"name": "a", "kind": "number"}]}}}, {},
            "must name the target",
        ),
        (NUMBERS, {"model": "fedac_cnn"}, r"model\.kind: sites that bring a table build"),
        (NUMBERS | {"test": {"by": "client"}}, {}, r"data\.test\.by: sites .* use 'example'"),
    ],
)  # fmt: skip
def test_incomplete_declaration_is_refused_before_the_run(data, settings, message):
    with pytest.raises(ConfigError, match=message):
        build_server(config(Files(**data), **settings))


def test_module_of_ones_own_does_not_go_with_declared_columns():
    with pytest.raises(ConfigError, match=r"leave \[data\] out and let clients join with --app"):
        build_server(config(Files(**NUMBERS)), torch.nn.Linear(2, 2))


def test_simulation_needs_the_files():
    with pytest.raises(ConfigError, match=r"data\.path: name the table or folder"):
        td.run(config(Files(**NUMBERS)))
