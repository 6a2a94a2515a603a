"""One client's share of a buffer on a server: a quarter by default, and the same after a restart."""

import os
import signal
import tomllib

import pytest
import torch
from service_harness import enrolled_key

import tardigrad as td
from tardigrad.experiments.runs.serve import serve
from tardigrad.service.access.enrolment import LIST, Enrolled
from tardigrad.service.server.endpoint import Endpoint


def share_of(folder):
    return tomllib.loads((folder / "config.toml").read_text())["buffer"].get("most_per_client")


def served(tmp_path, config):
    """Serve until it listens; then it is asked to stop."""
    endpoint = Endpoint(keys=tmp_path / "keys", insecure=True)
    stop = lambda line: os.kill(os.getpid(), signal.SIGTERM) if "listening" in line else None  # noqa: E731
    torch.manual_seed(0)
    assert (
        serve(config, out=tmp_path / "run", endpoint=endpoint, model=torch.nn.Linear(2, 2), say=stop) is None
    )
    return share_of(tmp_path / "run")


def config(size, **settings):
    return td.Config(
        data=None, model=None, buffer=td.Buffer(size=size, **settings), stop=td.Stop(trips=100),
        pace=td.Asynchronous(concurrency=2), service={"linger_seconds": 0.0},
    )  # fmt: skip


def enroll(keys, count):
    keys.mkdir()
    for number in range(count):
        enrolled_key(keys, f"client{number}")


@pytest.mark.parametrize(
    ("size", "enrolled", "share"),
    [(10, 50, 3), (8, 50, 2), (1, 50, 1), (10, 3, 7), (10, 2, 10), (3, 3, 2), (3, 6, 1)],
)
def test_default_share_is_a_quarter_or_what_half_of_the_clients_need(size, enrolled, share, tmp_path):
    enroll(tmp_path / "keys", enrolled)
    assert served(tmp_path, config(size)) == share


def test_restart_keeps_the_share_although_clients_were_enrolled(tmp_path):
    enroll(tmp_path / "keys", 4)
    assert served(tmp_path, config(10)) == 5
    enrolled_key(tmp_path / "keys", "another")
    enrolled_key(tmp_path / "keys", "one-more")
    assert len(Enrolled(tmp_path / "keys" / LIST)) == 6
    assert served(tmp_path, config(10)) == 5
    with pytest.raises(td.ConfigError, match=r"buffer\.most_per_client"):
        served(tmp_path, config(10, most_per_client=7))


def test_without_a_list_of_clients_nothing_is_written(tmp_path):
    with pytest.raises(td.ConfigError, match=r"clients\.txt: cannot be read"):
        served(tmp_path, td.Config(service={"population": 100}, data=None, model=None))
    assert not (tmp_path / "run").exists()


def test_share_of_the_config_is_kept(tmp_path):
    enroll(tmp_path / "keys", 9)
    assert served(tmp_path, config(8, most_per_client=8)) == 8


def test_once_per_client_needs_no_share(tmp_path):
    enroll(tmp_path / "keys", 9)
    assert served(tmp_path, config(8, once_per_client=True)) is None


def test_a_run_that_was_begun_without_a_share_goes_on_without(tmp_path):
    enroll(tmp_path / "keys", 9)
    served(tmp_path, config(8))
    file = tmp_path / "run" / "config.toml"
    file.write_text(file.read_text().replace("most_per_client = 2\n", ""))
    assert share_of(tmp_path / "run") is None
    assert served(tmp_path, config(8)) is None


def test_a_share_with_which_a_buffer_is_never_full_is_refused():
    with pytest.raises(td.ConfigError, match=r"buffer\.most_per_client: .* give at least 4"):
        td.Config(buffer=td.Buffer(size=10, most_per_client=3)).resolved(3)
