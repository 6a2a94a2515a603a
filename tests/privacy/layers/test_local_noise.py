"""The local noise layer: each upload is clipped and gets noise of its own."""

import math

import pytest
import torch

import tardigrad as td
from private_aggregators import delivery, locally_private
from tardigrad.core.situation import Situation
from tardigrad.core.upload import Upload
from tardigrad.privacy.normal import Seeded
from tardigrad.privacy.settings import LocalPrivacy


@pytest.mark.parametrize("length", [0.1, 50.0])
def test_every_upload_gets_noise_of_its_own(length):
    guarantee = LocalPrivacy(noise_multiplier=1.3, clip=0.7).guarantee(
        500, 1000, td.Asynchronous(), td.Buffer(size=1)
    )
    start = torch.full((40,), 3.0)
    change = torch.ones(40) * (length / math.sqrt(40))
    for algorithm, upload, base in (
        (td.FedAsync(), {"model": start + change}, start),
        (td.FedAC(), {"delta": change, "control": torch.zeros(40)}, torch.zeros(40)),
    ):
        aggregator = locally_private(algorithm, start, Situation(9, 500, 5, 1), guarantee, Seeded)
        for trip in range(400):
            aggregator.add(delivery(trip), Upload(upload, 17, 4, 2.5), start)
        received = [one.upload for one in aggregator._open.received]
        short = change * min(1.0, 0.7 / length)
        for name in upload:
            values = torch.stack([one.vectors[name] for one in received])
            values -= base + (0 if name == "control" else short)
            assert float(values.std()) == pytest.approx(1.3 * 0.7, rel=0.03)
            assert float(values.mean(dim=0).abs().max()) < 5 * 0.91 / 20, "each has its own"
        assert all((one.examples, one.steps, one.loss) == (1, 1, 0.0) for one in received)
