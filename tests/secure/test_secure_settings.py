"""Values of the secure table that cannot be meant are refused in one sentence."""

import pytest

from tardigrad.errors import ConfigError
from tardigrad.experiments.config.reading import parse_config

HELPER = {"address": "localhost:7434", "identity": "one"}


@pytest.mark.parametrize(
    ("key", "values", "told"),
    [
        ("limit", [0, -1.0, 1e-19], "must be greater than or equal to 0.000000001"),
        ("limit", [1e19], "must be less than or equal to 1000000000"),
        ("limit", [float("nan"), float("inf")], "must be a finite number"),
        ("least_clients", [0, 1, -3], "must be greater than or equal to 2"),
        ("least_clients", [2.5, float("nan"), "many"], "must be a "),
        ("noise", ["everybody", 0, True], "must be 'helper' or 'nobody'"),
        ("post_quantum", ["maybe", 3], "must be a valid boolean"),
        ("bits", [8, 64, -1], "must be 16 or 32"),
        ("denominator", [3, 2**21], "must be a power of two up to 2^20"),
        ("helpers", [0, -1, 65, 10**9, 1.5, True, "two"], "must be a list of helpers, or for a simulation"),
        ("helpers", [[]], "must be one or more helpers"),
        ("helpers", [[HELPER, HELPER]], "each with an identity of its own"),
        ("helpers.0.address", [[HELPER | {"address": at}] for at in ("a", "a:0", "a:99999")], "HOST:PORT"),
    ],
)  # fmt: skip
def test_impossible_values_are_refused_in_one_sentence(key, values, told):
    for value in values:
        with pytest.raises(ConfigError) as caught:
            parse_config({"secure": {key.partition(".")[0]: value}}, "run.toml")
        said = str(caught.value)
        assert said.startswith(f"run.toml: secure.{key}: ")
        assert told in said
        assert "\n" not in said
