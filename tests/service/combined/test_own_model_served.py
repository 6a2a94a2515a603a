"""A model from one's own file on a server: by `--model`, by the config, and with the simulator's bits."""

import asyncio

import pytest
import torch
from service_harness import replay, serving, trace_of

import tardigrad as td
from own_code_file import OWN, own_values
from tardigrad.experiments.config.reading import parse_config
from tardigrad.experiments.runs.server_assembly import assemble_server


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "own.py"
    path.write_text(OWN)
    return path


def test_a_server_with_own_model_and_data_gives_the_simulators_bits(file, tmp_path):
    config = parse_config(own_values(file, algorithm="fedbuff"), "test")
    simulation, events, steps = trace_of(config)

    async def served():
        async with serving(config, tmp_path) as running:
            assert await replay(running, simulation, steps) == events[-1]["reason"]
            return running

    running = asyncio.run(served())
    assert torch.equal(running.coordinator.model_state.aggregator.evaluated_model, simulation.model)


def served_assembly(file, option=None, **changes):
    values = own_values(file, algorithm="fedbuff", service={"population": 5}) | changes
    config = parse_config(values, "test").model_copy(update={"data": None})
    return assemble_server(config, option)


def test_the_option_model_and_the_model_of_the_config_are_the_same_thing(file):
    option = served_assembly(file, f"{file}:alone")
    config = served_assembly(file, model=f"{file}:alone")
    assert torch.equal(option.flat.vector, config.flat.vector)
    assert option.config == config.config
    assert option.inputs() == config.inputs()
    assert "the model's own file" in option.inputs()
    assert "data" not in option.config.to_toml().split("[")[0]


def test_a_function_that_wants_the_datas_shape_needs_it_from_the_config_on_a_server_without_data(file):
    with pytest.raises(td.ConfigError, match=r"model: Net has the parameter shape; give model\.shape"):
        served_assembly(file, model=f"{file}:Net")
    model = {"kind": f"{file}:Net", "shape": [3], "classes": 2}
    assert served_assembly(file, model=model).flat.vector.numel() == 3 * 8 + 8 + 8 * 2 + 2


def test_a_model_that_is_no_module_is_refused(file):
    with pytest.raises(td.ConfigError, match=r"model: .*own\.py:load must be a torch\.nn\.Module"):
        served_assembly(file, model={"kind": f"{file}:load", "seed": 1})
