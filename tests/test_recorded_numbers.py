"""Numbers on pages are those of the recorded runs that they quote, or are computed anew."""

import json
import re
from pathlib import Path

import pytest

import tardigrad

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def recorded(name, target):
    """The rows of a recorded comparison: entry, cost to the target, final accuracy."""
    found = json.loads((ROOT / "docs/recorded" / f"{name}.json").read_text())["rows"]
    return [row | row["targets"][target] for row in found]


def row(page, name):
    """The cells of the only row of a page that begins with a name and has numbers."""
    (found,) = re.findall(rf"^\| {re.escape(name)} \|(.*\d.*)\|$", page, re.MULTILINE)
    return [cell.strip() for cell in found.split("|")]


def test_the_readme_s_table_is_that_of_the_recorded_demo():
    rows = recorded("demo", "0.9")
    best = min(one["time"]["mean"] for one in rows)
    for one in rows:
        name = one["entry"] + (" (synchronous)" if one["entry"].startswith("FedAvg") else "")
        assert row(README, name) == [
            f"{one['trips']['mean']:,.0f} ± {one['trips']['sd']:,.0f}",
            f"{one['time']['mean']:.1f} ± {one['time']['sd']:.1f}",
            f"{one['time']['mean'] / best:.2f}",
            f"{one['accuracy']['mean']:.1%}".replace("%", " %"),
        ]
    assert [one["reached"] for one in rows] == [3, 3, 3, 3]


def test_the_page_of_the_demo_quotes_the_same_ratios():
    time = {one["entry"]: one["time"]["mean"] for one in recorded("demo", "0.9")}
    said = "FedAvgM takes {:.1f} times and FedAvg {:.1f} times FedBuff's"
    text = " ".join((ROOT / "docs/demo.md").read_text().split())
    assert said.format(time["FedAvgM"] / time["FedBuff"], time["FedAvg"] / time["FedBuff"]) in text


@pytest.mark.parametrize("page", ["README.md", "docs/flower.md"])
def test_what_flower_s_nodes_took_is_from_the_last_benchmark(page):
    measured = json.loads((ROOT / "benchmarks/flower.json").read_text())["evaluations"]
    ratio = measured["FedBuff"][-1]["seconds"] / measured["FedAvg"][-1]["seconds"]
    assert f"in {ratio:.2f} of FedAvg's time" in " ".join((ROOT / page).read_text().split())


def test_the_noise_on_the_page_of_privacy_is_what_the_command_prints(cli):
    page = (ROOT / "docs/privacy.md").read_text()
    (line,) = re.findall(r"^\$ tardigrad (privacy plan .*--compare)$", page, re.MULTILINE)
    code, printed, _ = cli(*line.split())
    assert code == 0
    for kind in ("blt", "tree", "independent"):
        (shown,) = re.findall(rf"^{kind} +(\d.*)$", page, re.MULTILINE)
        assert all(number in printed for number in shown.split()), kind


def test_one_version_is_named_everywhere():
    version = tardigrad.__version__
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"\n| Tardigrad | {version} |" in (ROOT / "docs/comparison.md").read_text()
    assert f"\n## [{version}] - 20" in (ROOT / "CHANGELOG.md").read_text()
