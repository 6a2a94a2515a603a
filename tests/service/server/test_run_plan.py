"""What can be served."""

import asyncio

import pytest
from service_harness import serving
from upload_clients import (
    CONFIG,
)

import tardigrad as td
from tardigrad.errors import ConfigError
from tardigrad.service.server.run_plan import check_servable


@pytest.mark.parametrize(
    ("algorithm", "pace", "said"),
    [
        (td.WeightPrediction(), td.Asynchronous(), "expected_staleness"),
        (td.FedBuff(), td.Arrivals(), "'arrivals' decides when clients turn up"),
        (td.FedBuff(), td.SampledStaleness(), "'sampled_staleness' decides"),
        (td.FedBuff(), td.Scripted(trips=((0.0, 1.0, 0),)), "'scripted' decides"),
        (td.FedAvg(), td.Poisson(), "'poisson' decides"),
    ],
)
def test_algorithm_or_pace_of_simulations_alone_is_refused(algorithm, pace, said):
    with pytest.raises(ConfigError, match=said):
        check_servable(algorithm, pace)


def test_reception_bytes_below_one_upload_are_refused(tmp_path):
    small = td.Config(**(dict(CONFIG) | {"service": {"reception_bytes": 10}}))

    async def scene():
        async with serving(small, tmp_path):
            pass

    with pytest.raises(ConfigError, match=r"service\.reception_bytes"):
        asyncio.run(scene())
