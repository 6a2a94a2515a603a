"""The folders of Flower apps."""

import sys

import pytest

pytest.importorskip("flwr")

from kept_state_app import write_app

from tardigrad.errors import ConfigError
from tardigrad.flower.app_folder import open_app, parse_pairs

COMPONENTS = '[tool.flwr.app.components]\nclientapp = "{}"\n'


@pytest.fixture(autouse=True)
def own_imports(monkeypatch):
    """Forget the modules that a test imports from its own folder."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]


def refusal(action):
    with pytest.raises(ConfigError) as caught:
        action()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_folder_that_is_no_app_is_refused(tmp_path):
    assert "is no Flower app, because" in refusal(lambda: open_app(tmp_path / "nowhere"))
    assert "pyproject.toml cannot be read" in refusal(lambda: open_app(tmp_path))
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'other'\n")
    assert "has no [tool.flwr.app.components]" in refusal(lambda: open_app(tmp_path))
    (tmp_path / "pyproject.toml").write_text("[project")
    assert "is not TOML" in refusal(lambda: open_app(tmp_path))


@pytest.mark.parametrize(
    ("place", "sentence"),
    [
        ("", "has no clientapp"),
        ("somewhere", "give module:name"),
        ("no_such_module:app", "cannot be imported (ModuleNotFoundError"),
        ("own_module:other", "own_module has nothing called other"),
        ("own_module:number", "must be a flwr.clientapp.ClientApp, not a int"),
        ("broken_module:app", "cannot be imported (ValueError: no data here)"),
    ],
)
def test_a_client_app_that_cannot_be_loaded_is_refused(tmp_path, place, sentence):
    (tmp_path / "pyproject.toml").write_text(COMPONENTS.format(place) + 'serverapp = "s:app"\n')
    (tmp_path / "own_module.py").write_text("number = 3\n")
    (tmp_path / "broken_module.py").write_text("raise ValueError('no data\\nhere')\n")
    assert sentence in refusal(lambda: open_app(tmp_path).client_app())


@pytest.mark.parametrize(
    ("place", "sentence"),
    [
        ("own_models:wide", "wide has the parameter width"),
        ("own_models:broken", "broken failed at"),
        ("own_models:text", "must make a torch.nn.Module, a state dict or an ArrayRecord, not a str"),
        ("own_models:number", "must be a function or a class that makes the model"),
    ],
)
def test_a_model_that_cannot_be_made_is_refused(tmp_path, place, sentence):
    (tmp_path / "pyproject.toml").write_text(COMPONENTS.format("a:b"))
    (tmp_path / "own_models.py").write_text(
        "number = 3\ndef wide(width): pass\ndef broken(): raise ValueError('no')\ndef text(): return 'x'\n"
    )
    assert sentence in refusal(lambda: open_app(tmp_path).initial_arrays(place))


@pytest.mark.parametrize("name", ["Net", "net", "state_dict", "record"])
def test_a_model_may_be_a_module_a_state_dict_or_a_record(tmp_path, name):
    app = write_app(tmp_path)
    with (tmp_path / "kept_state" / "task.py").open("a") as file:
        file.write("net = Net()\nstate_dict = lambda: Net().state_dict()\nfrom flwr.app import ArrayRecord\n")
        file.write("record = lambda: ArrayRecord(Net().state_dict())\n")
    arrays = open_app(app).initial_arrays(f"kept_state.task:{name}")
    assert list(arrays) == ["scale", "convolution.weight", "convolution.bias", "output.weight", "output.bias"]


def test_the_config_of_an_app_is_flat(tmp_path):
    text = (
        COMPONENTS.format("a:b")
        + "[tool.flwr.app.config]\nlr = 0.1\n[tool.flwr.app.config.model]\nwide = true\n"
    )
    (tmp_path / "pyproject.toml").write_text(text)
    assert open_app(tmp_path).config == {"lr": 0.1, "model.wide": True}
    (tmp_path / "pyproject.toml").write_text(text + "sizes = [1]\n")
    assert "model.sizes must be a number, true, false or text" in refusal(lambda: open_app(tmp_path))


def test_pairs_are_written_as_flower_takes_them():
    assert parse_pairs("a=1 b='x y' c.d=false e=1e-3", "--x") == {
        "a": 1,
        "b": "x y",
        "c.d": False,
        "e": 0.001,
    }
    assert parse_pairs(None, "--x") == {}


@pytest.mark.parametrize("text", ["partition-id", "a=b", "a=1 b", "a=1 a=2"])
def test_pairs_that_are_none_are_refused(text):
    assert "--node-config: " in refusal(lambda: parse_pairs(text, "--node-config"))
