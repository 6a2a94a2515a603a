"""Algorithms by name, and one's own from a file."""

import tomllib

import pytest
from pydantic import ValidationError

import tardigrad as td
from tardigrad.algorithms.registry import BUILT_IN, load_algorithm
from tardigrad.experiments.config.reading import parse_config
from tardigrad.experiments.config.schema import Config

OWN = '''
import tardigrad as td


class Half(td.SumOnly):
    """Half a step."""

    share: float = 0.5

    def step(self, state, buffer):
        state["model"] = state["model"] - self.share * buffer.mean()
        return {}


class Nothing:
    pass
'''


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "own.py"
    path.write_text(OWN)
    return path


@pytest.mark.parametrize("kind", [a.model_fields["kind"].default for a in BUILT_IN])
def test_every_built_in_is_found_by_its_name_alone(kind):
    config = Config(algorithm=kind)
    assert config.algorithm.kind == kind
    assert Config.model_validate(tomllib.loads(config.to_toml())).algorithm == config.algorithm


@pytest.mark.parametrize("kind", [a.model_fields["kind"].default for a in BUILT_IN])
def test_every_built_in_is_exported(kind):
    name = next(a.__name__ for a in BUILT_IN if a.model_fields["kind"].default == kind)
    assert getattr(td, name).model_fields["kind"].default == kind


def test_own_algorithm_is_loaded_from_a_file(file):
    config = Config.model_validate({"algorithm": {"kind": f"{file}:Half", "share": 0.25}})
    assert type(config.algorithm).__name__ == "Half"
    assert config.algorithm.share == 0.25


def test_own_algorithm_is_written_to_toml_and_read_back(file):
    config = Config.model_validate({"algorithm": {"kind": f"{file}:Half", "share": 0.25}})
    again = Config.model_validate(tomllib.loads(config.to_toml()))
    assert again.algorithm.share == 0.25
    assert type(again.algorithm).__name__ == "Half"


def test_own_algorithm_is_accepted_as_an_object(file):
    half = load_algorithm(f"{file}:Half")(share=0.125)
    assert Config(algorithm=half).algorithm is half


@pytest.mark.parametrize(
    ("place", "says"),
    [
        ("missing.py:Half", "there is no file missing.py"),
        ("{file}:Whole", "has nothing called Whole"),
        ("{file}:Nothing", "has no class Nothing that is a SumOnly or Individual"),
        ("{file}:td", "has no class td"),
    ],
)
def test_missing_file_or_class_is_named(file, place, says):
    with pytest.raises(td.ConfigError, match=rf"algorithm\.kind: .*{says}"):
        Config.model_validate({"algorithm": {"kind": place.format(file=file)}})


def test_bad_setting_of_an_own_algorithm_is_named(file):
    with pytest.raises(ValidationError) as caught:
        Config.model_validate({"algorithm": {"kind": f"{file}:Half", "shore": 0.25}})
    assert caught.value.errors()[0]["loc"][-1] == "shore"
    with pytest.raises(
        td.ConfigError, match=r"unknown key 'algorithm\.shore'; the settings of Half are: .*share"
    ):
        parse_config({"algorithm": {"kind": f"{file}:Half", "shore": 0.25}}, "run.toml")


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(
        td.ConfigError,
        match=r"algorithm\.kind must be one of .*'fedbuff'.*got 'fedbuf'; did you mean 'fedbuff'",
    ):
        parse_config({"algorithm": {"kind": "fedbuf"}}, "run.toml")
    with pytest.raises(
        td.ConfigError, match=r"got 'half\.py'; an object of a file of your own is half\.py:NAME"
    ):
        parse_config({"algorithm": {"kind": "half.py"}}, "run.toml")
