"""Models that start from a file or from a run's folder."""

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import tardigrad as td
from tardigrad.errors import ConfigError
from tardigrad.learning.start import load_start

SHORT = {"stop": td.Stop(trips=12), "pace": td.Asynchronous(concurrency=4), "buffer": td.Buffer(size=4)}
DATA = td.Digits(partition=td.IID(clients=20))


def state_of(seed=1):
    torch.manual_seed(seed)
    return {name: value.clone() for name, value in nn.Linear(3, 2).state_dict().items()}


def saved(kind, folder, state):
    if kind == "folder":
        folder.mkdir()
        save_file(state, folder / "model.safetensors")
        return folder
    file = folder.with_suffix({"safetensors": ".safetensors", "torch": ".pt"}[kind])
    save_file(state, file) if kind == "safetensors" else torch.save(state, file)
    return file


@pytest.mark.parametrize("kind", ["safetensors", "torch", "folder"])
def test_module_gets_the_values_of_the_file(kind, tmp_path):
    state, module = state_of(), nn.Linear(3, 2)
    load_start(module, saved(kind, tmp_path / "start", state))
    for name, value in module.state_dict().items():
        assert torch.equal(value, state[name])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.pop("bias"), r"has no 'bias', which the model has; the file has weight"),
        (
            lambda s: s.update(bias=torch.zeros(4)),
            r"'bias' has the shape \(4,\) in .*, but \(2,\) in",
        ),
        (
            lambda s: s.update(more=torch.zeros(1)),
            r"has 'more', which the model does not have; it has",
        ),
    ],
)
def test_first_difference_is_named(change, message, tmp_path):
    state, module = state_of(), nn.Linear(3, 2)
    before = module.weight.clone()
    change(state)
    with pytest.raises(ConfigError, match=r"^model.start: .*" + message):
        load_start(module, saved("safetensors", tmp_path / "start", state))
    assert torch.equal(module.weight, before)


class Code:
    """Unpickling it would run code."""

    def __reduce__(self):
        return print, ("unpickled",)


@pytest.mark.parametrize("content", [Code(), [1, 2], {"weight": 3}])
def test_file_with_something_else_is_refused_and_nothing_is_run(content, tmp_path, capsys):
    torch.save(content, tmp_path / "start.pt")
    with pytest.raises(ConfigError, match=r"^model.start: .*state dict"):
        load_start(nn.Linear(3, 2), tmp_path / "start.pt")
    assert capsys.readouterr().out == ""


def test_file_that_is_missing_or_damaged_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"^model.start: .*none.pt does not exist$"):
        load_start(nn.Linear(3, 2), tmp_path / "none.pt")
    with pytest.raises(ConfigError, match=r"model.safetensors does not exist; is the run finished\?"):
        load_start(nn.Linear(3, 2), tmp_path)
    for name in ("bad.safetensors", "bad.pt"):
        (tmp_path / name).write_bytes(b"no tensors")
        with pytest.raises(ConfigError, match="cannot be read as a state dict"):
            load_start(nn.Linear(3, 2), tmp_path / name)


def test_run_goes_on_from_the_model_of_another_run(tmp_path):
    first = td.run(data=DATA, model=td.MLP(hidden=(8,)), out=tmp_path / "first", **SHORT)
    second = td.run(data=DATA, model=td.MLP(hidden=(8,), start=tmp_path / "first"), **SHORT)
    assert second.history[0].metrics["accuracy"] == first.accuracy
    assert second.model_sha256 != first.model_sha256


def test_resumed_run_notices_that_its_start_has_changed(tmp_path):
    config = td.Config(data=DATA, model=td.MLP(hidden=(8,), start=tmp_path / "start.pt"), **SHORT)
    torch.manual_seed(0)
    module = td.MLP(hidden=(8,)).build((1, 8, 8), 10)
    torch.save(module.state_dict(), tmp_path / "start.pt")
    expected = td.run(config, out=tmp_path / "run")
    assert td.run(config, out=tmp_path / "run", resume=True).model_sha256 == expected.model_sha256
    with torch.no_grad():
        next(module.parameters()).add_(1.0)
    torch.save(module.state_dict(), tmp_path / "start.pt")
    with pytest.raises(td.ConfigError, match="the model"):
        td.run(config, out=tmp_path / "run", resume=True)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (torch.zeros(2, dtype=torch.complex64), "complex numbers in .*, but of floats"),
        (torch.zeros(2, dtype=torch.int64), "whole numbers in"),
        (torch.zeros(2).to_sparse(), "in another form"),
        (torch.tensor([1.0, float("nan")]), "not finite"),
    ],
)
def test_values_of_another_kind_are_refused(value, message, tmp_path):
    torch.save(state_of() | {"bias": value}, tmp_path / "start.pt")
    with pytest.raises(ConfigError, match=rf"^model.start: 'bias' .*{message}"):
        load_start(nn.Linear(3, 2), tmp_path / "start.pt")


@pytest.mark.parametrize("content", [b"abc", b"\x80\x02h\x01.", b"\x80\x02jAAAA."])
def test_damaged_pickles_are_refused(content, tmp_path):
    (tmp_path / "start.pt").write_bytes(content)
    with pytest.raises(ConfigError, match=r"^model.start: .* cannot be read as a state dict"):
        load_start(nn.Linear(3, 2), tmp_path / "start.pt")


def test_tied_parameter_needs_one_name_and_group_norm_no_statistics(tmp_path):
    module = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False), nn.BatchNorm1d(2))
    module[1].weight = module[0].weight
    start = {"0.weight": torch.eye(2), "2.weight": torch.ones(2), "2.bias": torch.ones(2)}
    file = saved("safetensors", tmp_path / "start", start)
    with pytest.raises(ConfigError, match=r"has no '2.running_mean'"):
        load_start(module, file)
    load_start(module, file, group_norm=True)
    assert torch.equal(module[1].weight, torch.eye(2))
    assert torch.equal(module[2].bias, torch.ones(2))
