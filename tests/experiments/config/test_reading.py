"""Reading a config: files, and errors that name the key."""

import pytest

import tardigrad as td
from tardigrad.experiments.config.reading import load_config, parse_config, read_toml


def test_file_can_be_given_as_text_or_path(tmp_path):
    (tmp_path / "run.toml").write_text("seed = 3\n")
    assert load_config(tmp_path / "run.toml") == load_config(str(tmp_path / "run.toml")) == td.Config(seed=3)


def test_config_that_was_written_is_read_back(tmp_path):
    config = td.Config(seed=2, algorithm=td.FedAC(), privacy={"kind": "local", "epsilon": 4.0})
    (tmp_path / "run.toml").write_text(config.to_toml())
    assert td.load_config(tmp_path / "run.toml") == config


def test_byte_order_mark_is_accepted(tmp_path):
    (tmp_path / "run.toml").write_bytes("\ufeffseed = 3\n".encode())
    assert load_config(tmp_path / "run.toml").seed == 3


def test_missing_file_is_named_with_advice(tmp_path):
    with pytest.raises(
        td.ConfigError, match=r"no\.toml: there is no such file; `tardigrad init .*` writes one"
    ):
        load_config(tmp_path / "no.toml")
    with pytest.raises(td.ConfigError, match=r"no\.toml: there is no such file$"):
        read_toml(tmp_path / "no.toml")


def test_file_that_is_not_toml_is_named(tmp_path):
    (tmp_path / "run.toml").write_text("seed = \n")
    with pytest.raises(td.ConfigError, match=r"run\.toml: not valid TOML"):
        load_config(tmp_path / "run.toml")
    (tmp_path / "run.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(td.ConfigError, match=r"run\.toml: cannot be read"):
        load_config(tmp_path / "run.toml")


def test_comparison_is_not_a_config():
    with pytest.raises(td.ConfigError, match="is a comparison of several runs; `tardigrad compare x`"):
        parse_config({"entries": {}}, "x")


# ruff: noqa: E501
@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"local": {"lr": "fast"}}, "x: local.lr: must be a valid number, .* (got 'fast')"),
        ({"algorithm": {"kind": "fedbuff", "momentun": 1}}, "x: unknown key 'algorithm.momentun'; did you mean 'momentum'?"),
        ({"algorithm": {"lr": 1.0}}, "x: algorithm.kind is missing: it says which of the kinds is meant"),
        ({"algorithm": {"kind": "fedbuff", "momentum": {"kind": "emma"}}}, "x: algorithm.momentum.kind must be one of"),
        ({"model": {"kind": "mlp", "hidden": [3, -1]}}, "x: model.hidden.1: must be greater than 0 (got -1)"),
    ],
)  # fmt: skip
def test_error_names_the_key_as_the_user_wrote_it(values, message):
    with pytest.raises(td.ConfigError) as error:
        parse_config(values, "x")
    for part in message.split(" .* "):
        assert part in str(error.value)
