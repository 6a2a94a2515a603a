"""The grid that noise and sums are rounded to: it hides the last bits, and epsilon includes its cost."""

import math

import pytest
import torch

import tardigrad as td
from private_aggregators import Watching, centrally_private, delivery, locally_private
from tardigrad.core.situation import Situation
from tardigrad.core.upload import Upload
from tardigrad.experiments.runs.server_assembly import build_server
from tardigrad.experiments.runs.simulation_assembly import build
from tardigrad.privacy.accounting import ByParticipation, BySampling
from tardigrad.privacy.blt import BLT
from tardigrad.privacy.clipping import AdaptiveClip
from tardigrad.privacy.grid import FINENESS, add_noise, cost
from tardigrad.privacy.independent import Independent
from tardigrad.privacy.normal import Seeded
from tardigrad.privacy.poisson import poisson_epsilon
from tardigrad.privacy.settings import LocalPrivacy, Participation, PoissonSampling
from tardigrad.privacy.tree import Tree

DELTA = 1e-7


def test_an_attack_that_rounding_makes_stronger_stays_within_the_accounting():
    """Everybody else's sum lies just below the middle of two grid points, so that a small upload moves every
    coordinate by a whole step of the grid."""
    z, clip, size = 1e5, 1.0, 10_000
    privacy = Participation(noise=Independent(), noise_multiplier=z, clip=clip)
    guarantee = privacy.guarantee(1, 9, td.Asynchronous(), td.Buffer(size=2), dimension=size)
    step = z * clip / 2**20

    def released(victim):
        model = torch.zeros(size)
        aggregator = centrally_private(
            td.FedBuff(), model, Situation(9, 2, 5, 1), guarantee, Seeded, watching := Watching()
        )
        aggregator._open.sums = {"delta": torch.full((size,), 0.49 * step)}  # of all others
        aggregator.add(delivery(), Upload({"delta": victim}, 1, 1, 0.0), model)
        aggregator.step()
        return watching.totals[0].sums["delta"].double()

    moved = float((released(torch.full((size,), 5.0)) - released(torch.zeros(size))).norm())
    assert moved > 9 * clip, "rounding carries it far above the clip"
    assert moved / (z * clip) <= guarantee.mode.mu(z, 1)


@pytest.mark.parametrize("noise", [BLT(), Tree(), Independent()], ids=lambda noise: noise.kind)
def test_rounding_is_counted_with_every_contribution(noise):
    plain = ByParticipation(noise, 4, 100)
    rounded = plain._replace(rounding=cost(10**6))
    sensitivity = noise.sensitivity(400, 4, 100)
    for z in (0.5, 8.0, 40.0):
        assert rounded.mu(z, 400) == pytest.approx(sensitivity * (1 / z + 1000 * 2**-20), rel=1e-12)
        assert rounded.epsilon(z, 400, DELTA) > plain.epsilon(z, 400, DELTA)
        assert plain._replace(rounding=0.0).epsilon(z, 400, DELTA) == plain.epsilon(z, 400, DELTA)
    for epsilon in (0.5, 2.0, 8.0):
        z = rounded.noise_multiplier(epsilon, 400, DELTA)
        assert z > plain.noise_multiplier(epsilon, 400, DELTA)
        assert rounded.epsilon(z, 400, DELTA) == pytest.approx(epsilon, rel=1e-9)


def test_rounding_is_counted_with_every_sampled_contribution():
    plain, rounded = BySampling(0.01), BySampling(0.01, rounding=cost(10**8))
    z = 1.1
    assert rounded.epsilon(z, 100, DELTA) == poisson_epsilon(z / (1 + z * 1e4 / 2**20), 0.01, 100, DELTA)
    assert rounded.epsilon(z, 100, DELTA) > plain.epsilon(z, 100, DELTA)
    assert rounded.delta(1.0, z, 100) > plain.delta(1.0, z, 100)
    for epsilon in (0.5, 2.0, 8.0):
        found = rounded.noise_multiplier(epsilon, 100, DELTA)
        assert epsilon * (1 - 1e-4) < rounded.epsilon(found, 100, DELTA) <= epsilon


def test_model_too_large_for_the_budget_is_refused():
    with pytest.raises(
        td.ConfigError, match=r"privacy\.epsilon: it takes a noise multiplier of .*raise epsilon"
    ):
        ByParticipation(Independent(), 1, 1, cost(10**14)).noise_multiplier(0.1, 10, DELTA)


@pytest.mark.parametrize(
    ("privacy", "dimension"),
    [
        (Participation(noise_multiplier=3.0), 15),
        (Participation(noise_multiplier=3.0, adaptive=AdaptiveClip()), 16),
        (Participation(noise_multiplier=3.0, adaptive=AdaptiveClip(), versions="private"), 20),
        (PoissonSampling(noise_multiplier=3.0, sampling_rate=0.1), 15),
        (LocalPrivacy(noise_multiplier=3.0), 15),
    ],
    ids=lambda value: getattr(value, "kind", None),
)
def test_the_settings_count_every_coordinate_that_is_rounded(privacy, dimension):
    buffer = td.Buffer(size=2, staleness_bound=3, once_per_client=True)
    found = privacy.guarantee(5, 100, td.Asynchronous(), buffer, 15).mode.rounding
    assert found == math.sqrt(dimension) * 2**-20
    assert privacy.guarantee(5, 100, td.Asynchronous(), buffer).mode.rounding == 0.0


@pytest.mark.parametrize(("algorithm", "vectors"), [(td.FedBuff(), 1), (td.CA2FL(), 1), (td.AdaMasFL(), 2)])
def test_a_run_knows_the_dimension_of_its_uploads(algorithm, vectors, tmp_path):
    config = td.Config(
        algorithm=algorithm, data={"kind": "synthetic", "clients": 40, "examples": 6},
        model={"kind": "mlp", "hidden": [4]}, pace=td.Asynchronous(concurrency=5), buffer=td.Buffer(size=4),
        stop=td.Stop(steps=6), local=td.Local(steps=2), privacy=Participation(epsilon=2.0),
    )  # fmt: skip
    simulation = build(config)
    size = simulation.flat.vector.numel()
    assert simulation.guarantee.mode.rounding == cost(vectors * size)
    assert build_server(config).assembly.guarantee.mode.rounding == cost(vectors * size)
    result = td.run(config, out=tmp_path / "run")
    assert result.epsilon == pytest.approx(2.0)
    assert f"adds {cost(vectors * size):.3g} to 1 / noise" in (tmp_path / "run/privacy.md").read_text()


D = 100_000


def known(upload_size, dtype, privately):
    """A released sum of one upload, with the noise over its scale; and the scale."""
    x = torch.randn(D, generator=torch.Generator().manual_seed(1)).to(dtype) * upload_size
    guarantee = Participation(noise=Independent(), noise_multiplier=1.7, clip=1.5).guarantee(
        1, 1, td.Asynchronous(), td.Buffer(size=1)
    )
    return privately(x, guarantee), 1.7 * 1.5


def centrally(x, guarantee):
    situation = Situation(1, 1, 0, 1)
    aggregator = centrally_private(td.FedBuff(), torch.zeros_like(x), situation, guarantee, Seeded)
    aggregator.add(delivery(), Upload({"delta": x}, 1, 1, 0.0), torch.zeros_like(x))
    aggregator.step()
    return -aggregator.state["model"]


def locally(x, guarantee):
    guarantee = LocalPrivacy(noise_multiplier=1.7, clip=1.5).guarantee(
        1, 1, td.Asynchronous(), td.Buffer(size=1)
    )
    algorithm = td.FedAC(weights="uniform", momentum="none", lr=1.0, correction=False)
    aggregator = locally_private(algorithm, torch.zeros_like(x), Situation(1, 1, 0, 1), guarantee, Seeded)
    aggregator.add(delivery(), Upload({"delta": x}, 1, 1, 0.0), torch.zeros_like(x))
    aggregator.step()
    return -aggregator.state["model"]


@pytest.mark.parametrize("privately", [centrally, locally])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_last_bits_do_not_reveal_the_value_under_the_noise(dtype, privately):
    """Every number that is released with an upload could have been released without it."""
    for size in (0.0, 1e-4):
        released, scale = known(size, dtype, privately)
        whole = released.double() * (FINENESS / scale)
        assert float((whole - whole.round()).abs().max()) < 0.4  # float32's own rounding, of at most 2^24
        could = torch.zeros_like(released)
        add_noise(could, (whole.round() / FINENESS).float(), scale)
        assert torch.equal(could, released)
    assert float(released.double().std()) == pytest.approx(scale, rel=0.02)


def test_noise_without_the_grid_would_reveal_the_upload():
    """Why there is a grid: among scaled normals some floats are missing, so an upload shows."""
    scale = 1.7 * 1.5
    x = 1e-4 * torch.randn(D, generator=torch.Generator().manual_seed(1))

    def impossible(released):
        nearest = (released.double() / scale).float()
        around = [torch.nextafter(nearest, torch.full_like(nearest, way)) for way in (-math.inf, math.inf)]
        possible = [torch.zeros(D).add_(n, alpha=scale) == released for n in (nearest, *around)]
        return int((~torch.stack(possible).any(dim=0)).sum())

    assert impossible(torch.zeros(D).add_(Seeded(1)(D), alpha=scale)) == 0
    assert impossible(x.clone().add_(Seeded(2)(D), alpha=scale)) > D // 20
