"""A run goes on with the config that it was begun with, also after an upgrade."""

import tomllib

import pytest
import tomli_w

import tardigrad as td

SETTINGS = {
    "data": td.Digits(partition=td.IID(clients=4)), "model": td.MLP(hidden=(4,)),
    "pace": td.Asynchronous(concurrency=2), "buffer": td.Buffer(size=2), "stop": td.Stop(trips=6),
}  # fmt: skip


def stored_with(folder, change):
    """Change the config.toml of a run."""
    file = folder / "config.toml"
    config = tomllib.loads(file.read_text())
    change(config)
    file.write_text(tomli_w.dumps(config))


def test_run_of_a_version_without_a_setting_goes_on_if_the_setting_has_its_default(tmp_path):
    first = td.run(**SETTINGS, out=tmp_path / "run")

    def without_new_settings(config):
        for name in ("accumulate", "optimiser", "trip_schedule", "autocast"):
            del config["local"][name]

    stored_with(tmp_path / "run", without_new_settings)
    again = td.run(**SETTINGS, out=tmp_path / "run", resume=True)
    assert again.model_sha256 == first.model_sha256
    with pytest.raises(td.ConfigError, match=r"the config differs .* in local\.accumulate"):
        td.run(**SETTINGS, local=td.Local(accumulate=2), out=tmp_path / "run", resume=True)


def test_stored_setting_that_is_not_the_default_must_be_given(tmp_path):
    td.run(**SETTINGS, local=td.Local(accumulate=2), out=tmp_path / "run")
    with pytest.raises(td.ConfigError, match=r"the config differs .* in local\.accumulate"):
        td.run(**SETTINGS, out=tmp_path / "run", resume=True)


def test_data_that_came_from_python_is_not_replaced_by_the_default(tmp_path):
    own = {name: setting for name, setting in SETTINGS.items() if name != "data"}
    examples = {n: ([[1.0, 2.0], [3.0, 4.0]], [0, 1]) for n in range(4)}
    first = td.run(**own, clients=examples, out=tmp_path / "run")
    again = td.run(**own, clients=examples, out=tmp_path / "run", resume=True)
    assert again.model_sha256 == first.model_sha256
