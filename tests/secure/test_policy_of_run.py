"""The policy of a run, and the grid that has room for its noise."""

import math
from dataclasses import replace

import pytest

import tardigrad as td
from tardigrad.encodings.common_grid import Grid
from tardigrad.errors import ConfigError
from tardigrad.experiments.config.schema import Config
from tardigrad.experiments.runs.simulation_assembly import assemble_simulation
from tardigrad.privacy.keys import NoiseKeys
from tardigrad.privacy.releases import digest_of
from tardigrad.secure.integer_noise import tail
from tardigrad.secure.policy import Policy, declared_digest, read_policy
from tardigrad.secure.policy_of_run import grid_with_headroom

PRIVATE = {"kind": "participation", "noise_multiplier": 2.0, "participations": 50, "separation": 1}
LINEAR = td.MLP(hidden=())


def assembly_of(**settings):
    given = {"stop": {"trips": 80}, "model": LINEAR, "buffer": {"size": 8}, "secure": {}} | settings
    return assemble_simulation(Config(**given))


def policy_of(**settings) -> Policy:
    return assembly_of(**settings).policy("run", "{}", ("helper",), "server")


@pytest.mark.parametrize("noise", ["blt", "tree", "independent"])
def test_policy_of_a_private_run_survives_its_canonical_bytes(noise):
    policy = policy_of(privacy=PRIVATE | {"noise": noise}, algorithm=td.FedBuff(staleness="polynomial"))
    assert read_policy(policy.to_bytes()) == policy
    assert policy.noise is not None
    assert policy.noise.noise().kind == noise
    assert (policy.batch, policy.least_clients, policy.limits) == (8, 4, (50, 1))


def test_policy_names_what_clients_download_first():
    assembly = assembly_of()
    aggregator = assembly.aggregator(NoiseKeys())
    assert assembly.policy("run", "{}", ("helper",), "server").start == digest_of(aggregator.broadcast())


def test_policy_names_what_is_declared_to_clients_with_tables():
    assembly = replace(assembly_of(), declaration="columns and model")
    policy = assembly.policy("run", "{}", ("helper",), "server")
    assert policy.declaration == declared_digest("columns and model") != declared_digest("other columns")
    assert policy_of().declaration == declared_digest("") == ""


def test_policy_says_which_vectors_are_not_discounted():
    vectors = policy_of(algorithm=td.SCAFFOLD(), buffer={}).vectors
    assert {vector.name: vector.discounted for vector in vectors} == {"delta": True, "control": False}


def test_synchronous_rounds_take_fresh_uploads_only():
    assert policy_of(algorithm=td.FedAvg(), buffer={}).staleness_bound == 0
    assert policy_of().staleness_bound is None


def test_first_pass_is_a_batch_of_everybody():
    policy = policy_of(algorithm=td.MasFL(first_pass=True), stop={"trips": 400})
    assert (policy.batch_size(1), policy.batch_size(2)) == (policy.facts.population, 8)


def test_deviation_hides_the_longest_upload_at_the_largest_weight():
    policy = policy_of(privacy=PRIVATE)
    assert policy.noise is not None
    assert policy.norm is not None
    assert policy.noise.deviation == pytest.approx(2.0 * policy.norm * policy.denominator)
    clip = 1.0 / policy.step
    d = sum(policy.lengths)
    likely = math.sqrt(clip**2 + d / 4 + (clip + math.sqrt(d) / 2))
    assert policy.norm == pytest.approx(min(likely, clip + math.sqrt(d)))


@pytest.mark.parametrize("helpers", [1, 3])
def test_finest_grid_with_room_for_all_noise_is_taken(helpers):
    assembly = assembly_of(privacy=PRIVATE, secure={"helpers": helpers})
    grid, guarantee, d = assembly.config.encoding, assembly.guarantee, sum(assembly.lengths.values())
    assert isinstance(grid, Grid)
    assert guarantee is not None

    def needed(largest):
        norm = grid.model_copy(update={"headroom": 2**31 - largest * 8 * 256}).norm(d)
        noise = tail(guarantee.noise, 2.0 * norm * 256, guarantee.steps, d, helpers)
        return largest * 8 * 256 + noise

    assert needed(grid.largest) <= 7 * 2**28 < needed(grid.largest + 1)


def test_grid_that_would_lengthen_uploads_much_is_refused():
    with pytest.raises(
        ConfigError, match=r"secure.bits: rounding to 16 bits .* times as long as privacy.clip"
    ):
        grid_with_headroom(Grid(bits=16, uploads=8, clip=1.0), 10**6, None, helpers=1)


def test_grid_without_room_for_one_code_is_refused():
    with pytest.raises(
        ConfigError, match=r"secure.bits: a sum of 10000 uploads .* does not fit into 16 bits"
    ):
        grid_with_headroom(Grid(bits=16, uploads=10_000), 10, None, helpers=1)
