"""A run for which too few clients are enrolled is refused with advice that helps."""

from pathlib import Path

import pytest
import torch

import tardigrad as td
from tardigrad.errors import ConfigError
from tardigrad.service.access.enough_clients import check_enough_clients
from tardigrad.service.access.enrolment import LIST
from tardigrad.service.access.new_clients import enroll_clients
from tardigrad.service.server.endpoint import Endpoint

FILE = Path("keys") / LIST


@pytest.mark.parametrize(
    ("pace", "needed"),
    [
        (td.Asynchronous(concurrency=3), 3),
        (td.Queued(concurrency=4), 4),
        (td.Synchronous(cohort=2), 2),
        (td.Synchronous(cohort=2, selected=5), 5),
        (None, 1),
    ],
)
def test_the_pace_says_how_many_clients_must_be_enrolled(pace, needed):
    check_enough_clients(pace, needed, FILE)
    with pytest.raises(ConfigError, match="enroll more clients"):
        check_enough_clients(pace, needed - 1, FILE)


@pytest.mark.parametrize(
    ("enrolled", "said"),
    [
        (
            1,
            "1 client is enrolled, but pace.concurrency is 3; enroll more clients (`tardigrad enroll NAME "
            "--keys {keys}`), set pace.concurrency to 1, or set service.population to the number of clients "
            "that you expect",
        ),
        (
            0,
            "no client is enrolled; enroll more clients (`tardigrad enroll NAME --keys {keys}`), or set "
            "service.population to the number of clients that you expect",
        ),
    ],
)
def test_serve_with_too_few_clients_is_refused_before_anything_is_written(enrolled, said, tmp_path):
    keys = tmp_path / "keys"
    keys.mkdir()
    (keys / LIST).touch()
    if enrolled:
        enroll_clients(keys, [f"client{number}" for number in range(enrolled)])
    config = td.Config(data=None, model=None, pace=td.Asynchronous(concurrency=3), stop=td.Stop(trips=10))
    with pytest.raises(ConfigError) as caught:
        td.serve(config, out=tmp_path / "run", endpoint=Endpoint(keys=keys), model=torch.nn.Linear(2, 2))
    assert str(caught.value) == f"{keys / LIST}: {said.format(keys=keys)}"
    assert not (tmp_path / "run").exists()
