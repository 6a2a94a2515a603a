"""The page that compares frameworks quotes what was measured."""

import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/comparison.md").read_text()
TEXT = " ".join(PAGE.split())


def row(name):
    """The cells of the only row that begins with a name and has numbers."""
    (found,) = re.findall(rf"^\| {re.escape(name)} \|(.*\d.*)\|$", PAGE, re.MULTILINE)
    return [cell.strip() for cell in found.split("|")]


def test_speeds_are_those_of_the_last_benchmark():
    measured = json.loads((ROOT / "benchmarks/peers.json").read_text())
    for job, variants in measured["jobs"].items():
        wanted = [of["ratio"] for name, of in variants.items() if name not in ("bare", "2 bare loops")]
        assert row(job) == [f"{ratio:.2f}" for ratio in wanted]  # as benchmarks/peers.py writes them
    for name, version in measured["versions"].items():
        assert re.search(rf"{name}[\w-]* {re.escape(version)}", PAGE)
    machine = measured["machine"]
    assert machine["date"] in PAGE
    said = f"those of Tardigrad {machine['tardigrad']} at commit {machine['commit'].removesuffix('-dirty')}"
    assert said in TEXT
    assert ("with changes that were not committed yet" in TEXT) == machine["commit"].endswith("-dirty")


def test_the_longer_measurement_is_the_last_one():
    measured = json.loads((ROOT / "benchmarks/results.json").read_text())
    ratio = measured["speed"]["MLP, batch 50"]["2 workers"]["ratio"]
    assert f"a longer measurement of the same day gave {ratio:.2f} for two workers in the first row" in TEXT
    assert measured["machine"]["date"] in PAGE


def test_what_flower_took_is_from_the_last_benchmark():
    measured = json.loads((ROOT / "benchmarks/flower.json").read_text())
    names = {"FedAvg": "Flower's FedAvg, in rounds", "FedBuff": "`AsyncStrategy` with FedBuff, K = 3"}
    for name, words in names.items():
        last = measured["evaluations"][name][-1]
        assert row(words) == [
            str(last["step"]),
            f"{last['accuracy']:.1%}".replace("%", " %"),
            f"{last['seconds']:.0f}",
        ]
    assert measured["flwr"] in PAGE
    machine = measured["machine"]
    assert f"({machine['date']}, Tardigrad {machine['tardigrad']} at commit {machine['commit']}," in TEXT
