"""A run goes on with the config that it was begun with, also after an upgrade."""

import tomllib

import pytest
import tomli_w
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

import tardigrad as td
from tardigrad.experiments.runs.same_run import check_same_run
from tardigrad.service.access.enrolment import public_text

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


def test_a_helper_may_have_moved_to_another_address_but_not_become_another_one(tmp_path):
    identity, other = (public_text(Ed25519PrivateKey.generate()) for _ in range(2))
    buffer = td.Buffer(size=2, once_per_client=True)

    def config(address, identity):
        helpers = [{"address": address, "identity": identity}]
        return td.Config(**SETTINGS | {"buffer": buffer}, secure=td.Secure(helpers=helpers))

    (tmp_path / "config.toml").write_text(config("127.0.0.1:7434", identity).to_toml())
    (tmp_path / "inputs.json").write_text("{}")
    check_same_run(tmp_path, config("127.0.0.1:9", identity), {}, "--out")
    with pytest.raises(td.ConfigError, match=r"the config differs .* in secure\.helpers"):
        check_same_run(tmp_path, config("127.0.0.1:7434", other), {}, "--out")
