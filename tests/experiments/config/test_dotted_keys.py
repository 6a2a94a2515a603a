"""Dotted keys: what `--set KEY=VALUE` makes of a config."""

import logging

import pytest

import tardigrad as td
from tardigrad.experiments.config.dotted_keys import set_key
from tardigrad.experiments.config.reading import parse_config
from tardigrad.experiments.config.schema import Config


def changed(values, *settings):
    for setting in settings:
        set_key(values, setting, Config)
    return values


def test_new_kind_keeps_the_keys_that_it_has_and_a_warning_names_the_others(caplog):
    values = {"algorithm": {"kind": "fedbuff", "lr": 0.3, "momentum": {"kind": "ema", "beta": 0.5}}}
    with caplog.at_level(logging.WARNING, "tardigrad.experiments"):
        changed(values, "algorithm.kind=fedasync")
    assert "lr" not in td.FedAsync.model_fields, "or this test needs another example"
    assert values == {"algorithm": {"kind": "fedasync"}}
    assert [record.getMessage() for record in caplog.records] == [
        "--set algorithm.kind=fedasync: leaves out lr, momentum, which this kind does not have"
    ]


def test_new_kind_that_has_all_keys_keeps_them_without_a_warning(caplog):
    values = {"delay": {"kind": "half_normal", "give_up": 0.1}}
    with caplog.at_level(logging.WARNING, "tardigrad.experiments"):
        assert changed(values, "delay.kind=constant") == {"delay": {"kind": "constant", "give_up": 0.1}}
    assert not caplog.records


def test_kind_of_a_table_inside_a_table_keeps_the_keys_that_fit(caplog):
    values = {"algorithm": {"kind": "fedbuff", "momentum": {"kind": "ema", "beta": 0.5}}}
    changed(values, "algorithm.momentum.kind=heavy_ball")
    assert values["algorithm"]["momentum"] == {"kind": "heavy_ball", "beta": 0.5}
    values = {"data": {"kind": "digits", "partition": {"kind": "dirichlet", "clients": 7, "alpha": 0.3}}}
    changed(values, "data.partition.kind=iid")
    assert values["data"]["partition"] == {"kind": "iid", "clients": 7}
    assert "leaves out alpha" in caplog.text


def test_same_kind_again_changes_nothing():
    values = {"delay": {"kind": "half_normal", "scale": 2.0}}
    assert changed(values, "delay.kind=half_normal") == {"delay": {"kind": "half_normal", "scale": 2.0}}


def test_keys_that_fit_an_algorithm_of_ones_own_are_kept(tmp_path, caplog):
    file = tmp_path / "mine.py"
    file.write_text(
        "import tardigrad as td\n"
        "class Mine(td.SumOnly):\n"
        "    lr: float = 1.0\n"
        "    def step(self, state, buffer):\n"
        "        state['model'] = state['model'] - self.lr * buffer.mean()\n"
    )
    values = {"algorithm": {"kind": "fedbuff", "lr": 0.3, "staleness": "constant"}}
    changed(values, f"algorithm.kind={file}:Mine")
    assert "leaves out staleness, which" in caplog.text
    assert parse_config(values, "test").algorithm.lr == 0.3


def test_unknown_kind_is_explained_by_validation():
    with pytest.raises(td.ConfigError, match=r"algorithm\.kind must be one of .* got 'fedbuf'"):
        parse_config({"algorithm": {"kind": "fedbuff", "lr": 0.3}}, "a.toml", ["algorithm.kind=fedbuf"])


def test_settings_do_not_change_the_callers_values():
    values = {"local": {"lr": 0.1}}
    assert parse_config(values, "test", ["local.lr=0.2"]).local.lr == 0.2
    assert values == {"local": {"lr": 0.1}}


@pytest.mark.parametrize(
    ("setting", "table"),
    [
        ("pace.concurrency=3", {"kind": "asynchronous", "concurrency": 3}),
        ("pace.cohort=3", {"kind": "synchronous", "cohort": 3}),
        ("pace.kind=queued", {"kind": "queued"}),
    ],
)
def test_table_that_was_left_out_gets_the_kind_that_has_the_key(setting, table):
    assert changed({}, setting) == {"pace": table}


def test_kind_given_as_a_word_becomes_a_table():
    assert changed({"algorithm": "fedbuff"}, "algorithm.lr=0.5") == {
        "algorithm": {"kind": "fedbuff", "lr": 0.5}
    }


def test_key_of_a_value_is_refused():
    with pytest.raises(td.ConfigError, match=r"--set seed\.x=1: seed is a value, not a table"):
        changed({"seed": 3}, "seed.x=1")
