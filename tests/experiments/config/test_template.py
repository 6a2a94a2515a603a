"""The template that `tardigrad init` writes."""

import tomllib
from importlib.resources import files

from tardigrad.experiments.config.reading import parse_config

TEXT = files("tardigrad.experiments.config").joinpath("template.toml").read_text()
EXAMPLES = {"staleness_bound", "accuracy", "model_average", "held_out"}
"""Lines that are commented out and show a value other than the default."""


def test_template_is_a_config():
    assert parse_config(tomllib.loads(TEXT), "template.toml").stop.trips == 3000


def test_lines_that_are_commented_out_show_the_defaults():
    lines = [line.removeprefix("# ") for line in TEXT.splitlines()]
    shown = [line for line in lines if line.startswith("[") or " = " in line.split("#")[0]]
    shown = [line for line in shown if line.split(" = ")[0] not in EXAMPLES]
    assert len(shown) > 30
    config = parse_config(tomllib.loads("\n".join(shown)), "template.toml")
    plain = parse_config(tomllib.loads(TEXT), "template.toml", ["local.epochs=1"])  # None means 1
    assert config.resolved(100) == plain.resolved(100)
