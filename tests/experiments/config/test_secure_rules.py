"""Rules of a secure run: defaults, and what is refused by name."""

import pytest

import tardigrad as td
from tardigrad.algorithms.algorithm import SumOnly
from tardigrad.errors import ConfigError
from tardigrad.experiments.config.schema import Config
from tardigrad.experiments.config.secure_rules import check_secure_server

PRIVATE = {"kind": "participation", "epsilon": 8.0, "participations": 50, "clip": 0.25}
ADDRESS = {"address": "helper.example:7434", "identity": "AAAA"}


def resolved(**settings) -> Config:
    return Config(**({"secure": {}, "stop": {"steps": 10}} | settings)).resolved(100)


def test_defaults_follow_from_buffer_and_privacy():
    config = resolved(buffer={"size": 9}, privacy=PRIVATE)
    assert config.buffer.once_per_client
    assert config.secure is not None
    assert (config.secure.least_clients, config.secure.limit, config.secure.noise) == (5, 0.25, "helper")
    assert config.encoding == td.Grid(limit=0.25, clip=0.25, uploads=9)


def test_without_privacy_nobody_adds_noise():
    config = resolved(buffer={"size": 2})
    assert config.secure is not None
    assert (config.secure.least_clients, config.secure.limit, config.secure.noise) == (2, 1.0, "nobody")


def test_resolved_config_can_be_resolved_again():
    config = resolved(privacy=PRIVATE)
    assert config.resolved(100) == config


def test_runs_without_a_secure_table_are_as_before():
    config = resolved(secure=None)
    assert (config.secure, config.encoding, config.buffer.once_per_client) == (None, td.Float32(), False)


REFUSED = {
    "individual": ({"algorithm": "fedasync"}, "algorithm.kind: fedasync looks at every upload"),
    "robust": ({"algorithm": "robust_fedbuff"}, "algorithm.kind: robust_fedbuff looks at every upload"),
    "single": ({"algorithm": "sgd"}, "algorithm.kind: sgd makes a step of each upload"),
    "too few": ({"buffer": {"size": 3}, "secure": {"least_clients": 4}}, "3 uploads .* at least 4"),
    "size one": ({"buffer": {"size": 1}}, "buffer.size: 1 uploads .* at least 2"),
    "no size": ({"pace": {"kind": "poisson", "probability": 0.1}}, "buffer.size: the batches"),
    "often": ({"buffer": {"most_per_client": 2}}, "buffer.most_per_client: .* not 2 times"),
    "not once": ({"buffer": {"once_per_client": False}}, "buffer.once_per_client: must be true"),
    "examples": ({"buffer": {"weights": "examples"}}, "buffer.weights: in a secure run"),
    "encoding": ({"encoding": "int8"}, "encoding.kind: .* 'int8' has no place"),
    "own grid": ({"encoding": td.Grid(bits=16)}, "encoding.kind: .* 'grid' has no place"),
    "feedback": ({"encoding": td.Int8(error_feedback=True)}, "encoding.kind: .* leave .encoding. out"),
    "broadcast": ({"broadcast": "differences"}, "broadcast.kind: the helpers"),
    "local": ({"privacy": {"kind": "local", "epsilon": 1.0}}, "privacy.kind: 'local'"),
    "poisson": (
        {"privacy": {"kind": "poisson", "epsilon": 1.0, "sampling_rate": 0.1}}, "privacy.kind: 'poisson'",
    ),
    "versions": (
        {"privacy": PRIVATE | {"versions": "private"}, "algorithm": td.FedBuff(momentum="approximation")},
        "privacy.versions: the helpers",
    ),
    "adaptive": ({"privacy": PRIVATE | {"adaptive": {}}}, "privacy.adaptive: clients of a secure run"),
    "nobody": ({"privacy": PRIVATE, "secure": {"noise": "nobody"}}, "secure.noise: .privacy. promises noise"),
    "helper": ({"secure": {"noise": "helper"}}, "secure.noise: .* give .privacy."),
    "norms": ({"service": {"norm_bound": 3.0}}, "service.norm_bound: the server of a secure run"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_combinations_that_cannot_work_are_refused_by_name(case):
    settings, message = REFUSED[case]
    with pytest.raises(ConfigError, match=message):
        resolved(**settings)


@pytest.mark.parametrize(
    ("secure", "message"),
    [
        ({"denominator": 3}, "secure.denominator: must be a power of two"),
        ({"helpers": []}, "secure.helpers: must be one or more helpers"),
        ({"helpers": [ADDRESS, ADDRESS]}, "secure.helpers: must be one or more helpers"),
        ({"helpers": [{"address": "nowhere", "identity": "A"}]}, "HOST:PORT"),
    ],
)
def test_secure_table_is_checked(secure, message):
    with pytest.raises(ConfigError, match=message):
        Config(secure=secure)


class Mean(SumOnly):
    def step(self, state, buffer):
        state["model"] = state["model"] - buffer.mean()
        return {}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"secure": {}}, "secure.helpers: a server must know"),
        ({"secure": {"helpers": [ADDRESS], "masks": False}}, "secure.masks: false is for simulations"),
        ({"secure": {"helpers": [ADDRESS]}, "algorithm": Mean()}, "algorithm.kind: Mean is not built in"),
    ],
)
def test_what_only_a_simulation_can_do_is_refused_on_a_server(settings, message):
    config = Config(**settings)
    config.resolved(100)
    with pytest.raises(ConfigError, match=message):
        check_secure_server(config)
