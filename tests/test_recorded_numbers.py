"""Numbers on pages are those of the recorded runs that they quote, or are computed anew."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from pydantic import TypeAdapter

import tardigrad
from tardigrad.learning.models import Model

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def recorded(name, target):
    """The rows of a recorded comparison: entry, cost to the target, final accuracy."""
    found = json.loads((ROOT / "docs/recorded" / f"{name}.json").read_text())["rows"]
    return [row | row["targets"][target] for row in found]


def measured(name):
    """The results of a benchmark."""
    return json.loads((ROOT / "benchmarks" / f"{name}.json").read_text())


def in_one_line(page):
    """A page without line breaks."""
    return " ".join((ROOT / page).read_text().split())


def count(found):
    """Mean and standard deviation of a number of trips, as pages write them."""
    return f"{found['mean']:,.0f} ± {found['sd']:,.0f}"


def percent(found):
    """Mean and standard deviation of a share, as pages write them."""
    return f"{100 * found['mean']:.1f} ± {100 * found['sd']:.1f} %"


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
            count(one["trips"]),
            f"{one['time']['mean']:.1f} ± {one['time']['sd']:.1f}",
            f"{one['time']['mean'] / best:.2f}",
            f"{one['accuracy']['mean']:.1%}".replace("%", " %"),
        ]
    assert [one["reached"] for one in rows] == [3, 3, 3, 3]


def test_the_page_of_the_demo_quotes_the_same_ratios():
    time = {one["entry"]: one["time"]["mean"] for one in recorded("demo", "0.9")}
    said = "FedAvgM takes {:.1f} times and FedAvg {:.1f} times FedBuff's"
    found = said.format(time["FedAvgM"] / time["FedBuff"], time["FedAvg"] / time["FedBuff"])
    assert found in in_one_line("docs/demo.md")


def test_the_demo_uses_what_its_recorded_grid_chose_and_the_page_shows_it():
    page, demo = ROOT / "docs/demo.md", tomllib.loads((ROOT / "experiments/demo.toml").read_text())
    grid = json.loads((ROOT / "docs/recorded/demo-grid.json").read_text())["trips"]
    for label, entry in demo["entries"].items():
        rows = {name: found for name, found in grid.items() if name.split()[0] == label.lower()}
        best = min(trips for found in rows.values() for trips in found.values() if trips)
        near = [
            (lr, name)
            for name, found in rows.items()
            for lr, trips in found.items()
            if trips and trips < best + 51
        ]
        chosen = min(near)
        for name, found in rows.items():
            cells = [f"{trips:,.0f}" if trips else "-" for trips in found.values()]
            if name == chosen[1]:
                place = list(found).index(chosen[0])
                cells[place] = f"**{cells[place]}**"
            assert row(page.read_text(), name) == cells
        own = ", ".join(f"{key} {value:g}" for key, value in entry["algorithm"].items() if key != "kind")
        assert chosen == (f"{demo['base']['local']['lr']:g}", f"{label.lower()} {own}")


def test_the_comparison_of_phones_is_the_recorded_one():
    rows, page = recorded("phones", "0.9"), (ROOT / "docs/network.md").read_text()
    fewest, fastest = (min(one[cost]["mean"] for one in rows) for cost in ("trips", "time"))
    for one in rows:
        trips, time, accuracy = one["trips"], one["time"], one["accuracy"]
        (shown,) = re.findall(rf"^ {one['entry']} +(\d.*±.*)$", page, re.MULTILINE)
        assert shown.split() == [
            *f"{count(trips)} {trips['mean'] / fewest:.2f}".split(),
            *f"{time['mean']:.1f} ± {time['sd']:.1f} {time['mean'] / fastest:.2f}".split(),
            f"{one['steps']['mean']:.0f}",
            f"{one['bytes_up']['mean'] / 1e6:,.1f}",
            *f"{100 * accuracy['mean']:.1f} ± {100 * accuracy['sd']:.1f}".split(),
        ]
    for sentence in json.loads((ROOT / "docs/recorded/phones.json").read_text())["sentences"]["0.9"]:
        assert sentence in in_one_line("docs/network.md")
    slowest = max(one["time"]["mean"] for one in rows)
    assert f"{fastest / slowest:.2f} of the time" in in_one_line("docs/network.md")
    for one in rows:
        down, train, up = one["time_split"][:3]
        split = f"{1 - train:.0%} of a trip is network (download {down:.0%}, upload {up:.0%})"
        found = f"{one['entry']}: {split}, {train:.0%} is training.".replace("%", " %")
        assert found in in_one_line("docs/network.md")


def test_the_plan_of_phones_is_what_the_command_prints(cli, tmp_path, monkeypatch):
    page = (ROOT / "docs/network.md").read_text()
    (config,) = re.findall(r"^```toml\n(data = .*?)^```$", page, re.MULTILINE | re.DOTALL)
    ((line, shown),) = re.findall(r"^\$ tardigrad (plan .*)\n((?: .*\n)*?) \.\.\.$", page, re.MULTILINE)
    monkeypatch.setenv("COLUMNS", "80")
    (tmp_path / "run.toml").write_text(config)
    code, printed, said = cli(*line.split())
    assert code == 0, said
    lines = [" ".join(each.split()) for each in printed.splitlines()]
    assert [each for each in shown.splitlines() if " ".join(each.split()) not in lines] == []

    def both(name):
        (cells,) = re.findall(
            rf"^ +{name} +([\d.]+)(?: \(.*?\))? +([\d.]+)(?: \(.*\))?$", shown, re.MULTILINE
        )
        return [float(cell) for cell in cells]

    slow, fast = map(sum, zip(both("seconds of a trip, mean: download"), both("compute"), both("upload")))
    steps = both("steps per unit of time")
    text = in_one_line("docs/network.md")
    assert f"a trip takes {fast:.1f} seconds in place of {slow:.1f}" in text
    assert f"the model moves {steps[1] / steps[0]:.1f} times as often" in text


def test_the_table_of_encodings_is_the_recorded_one():
    rows, page = recorded("encodings", "0.82"), (ROOT / "docs/encodings.md").read_text()
    full = rows[0]["bytes_up"]["mean"]
    names = {"grid": "grid, 16 bits", "randomk 10 %": "randomk 10 %, no error feedback"}
    for one in rows:
        trips, sent = one["trips"], one["bytes_up"]
        shown = row(page, names.get(one["entry"], one["entry"]))
        if one["reached"] < 3:
            assert shown[0] == f"not in {one['budget']['trips']:,} trips"
            found = f"{percent(one['accuracy'])} of the test images were right"
            assert found in in_one_line("docs/encodings.md")
        else:
            assert shown == [
                count(trips),
                f"{sent['mean'] / trips['mean']:,.0f}",
                f"{sent['mean'] / 1e6:.1f} MB",
                f"{100 * sent['mean'] / full:.1f} %".replace(".0 %", " %"),
            ]


def test_the_tables_of_adversaries_are_the_recorded_ones():
    page = (ROOT / "docs/adversaries.md").read_text()
    _, *parts = re.split("The final accuracy:|Client trips to 80 %:|The share of examples", page)
    names = {
        "norm bound 1": "norm bound of 1, no trimming",
        "norm bound 0.5": "norm bound of 0.5, no trimming",
        "trimmed mean": "trimmed mean, 0.4 at each end",
        "BASGD": "BASGD, 10 buckets",
        "bucketed FedBuff": "bucketed FedBuff, 10 buffers of 2",
    }
    shown = {part: {} for part in parts}
    assert len(shown) == 3
    for one in recorded("attacks", "0.8"):
        name = one["entry"].partition(", ")[0]
        cells = [cells.setdefault(names.get(name, name), []) for cells in shown.values()]
        cells[0].append(percent(one["accuracy"]))
        cells[1].append(count(one["trips"]) if one["trips"] else f"{one['reached']} of 3 seeds")
        if "attack_success" in one:
            cells[2].append(percent(one["attack_success"]))
    for part, rows in shown.items():
        assert {name: row(part, name) for name in rows} == rows


@pytest.mark.parametrize("page", ["README.md", "docs/flower.md"])
def test_what_flower_s_nodes_took_is_from_the_last_benchmark(page):
    found = measured("flower")["evaluations"]
    ratio = found["FedBuff"][-1]["seconds"] / found["FedAvg"][-1]["seconds"]
    assert f"in {ratio:.2f} of FedAvg's time" in in_one_line(page)


TABLES = """
import json, sys
import service, service_parts, service_trips, secure
from peers import shown
from report import HERE, table

def measured(name):
    return json.loads((HERE / f"{name}.json").read_text())

peers = measured("peers")
json.dump({
    "service": table(service.rows_of(measured("service"))),
    "service_parts": table(service_parts.rows_of(measured("service_parts")["ms"])),
    "service_trips": table(service_trips.rows_of(measured("service_trips"))),
    "secure": table(secure.rows_of(measured("secure"))),
    "peers": shown(peers["jobs"], peers["versions"], peers["not_run"]),
}, sys.stdout)
"""


def test_the_tables_of_performance_are_those_of_the_last_benchmarks():
    command = [sys.executable, "-c", TABLES]
    done = subprocess.run(command, cwd=ROOT / "benchmarks", stdout=subprocess.PIPE, text=True, check=True)
    page = (ROOT / "docs/performance.md").read_text()
    assert [name for name, table in json.loads(done.stdout).items() if table not in page] == []


@pytest.mark.parametrize("name", sorted(file.stem for file in (ROOT / "benchmarks").glob("*.json")))
def test_each_part_of_performance_is_of_its_last_benchmark(name):
    page, machine = (ROOT / "docs/performance.md").read_text(), measured(name)["machine"]
    (part,) = re.findall(rf"<!-- {name}: begin -->(.*)<!-- {name}: end -->", page, re.DOTALL)
    loads = f"load average {machine['load_at_start']} at the start and {machine['load_at_end']} at the end"
    assert f"{machine['date']}, commit {machine['commit']}: {machine['processor']}" in part
    assert loads in part


def test_ratios_of_speed_are_those_of_the_last_benchmark():
    found, page = measured("results"), (ROOT / "docs/performance.md").read_text()
    for job, variants in found["speed"].items():
        for variant in ("1 worker", "2 workers"):
            one = variants[variant]
            ratios = rf"{one['ratio']:.2f} \({one['median_ratio']:.2f}\)"
            assert re.search(rf"{job}: {variant} over the bare loop \(.*\) \| {ratios} \|", page)
    forms = found["momentum_approximation"]
    slower, light = (forms[form]["late_times_ema"] for form in ("approximation", "light"))
    text = in_one_line("docs/algorithms.md")
    assert f"{slower:.2f} times a step with `ema`" in text
    assert f"The light form costs {light:.2f} times a step" in text


def test_a_planner_of_clients_that_come_and_go_is_as_the_page_says():
    assert "takes less than a gigabyte. It plans at least half as many" in in_one_line("docs/network.md")
    found = measured("results")["planner"]["interleaved"]
    assert max(one["peak_mb"] for one in found) < 1000
    assert min(one["of_plain"] for one in found) >= 0.5


def test_the_live_page_shows_an_event_as_soon_as_its_page_says():
    assert "within a second or two" in in_one_line("docs/watch.md")
    assert measured("live_page")["delay_seconds"]["most"] < 2


def test_the_bytes_of_a_sealed_seed_are_those_of_the_last_benchmark():
    page, found = (ROOT / "docs/secure-aggregation.md").read_text(), measured("secure")["bytes"]
    for kind, name in (("classic", "X25519"), ("hybrid", "hybrid with ML-KEM-768")):
        (shown,) = re.findall(rf"^\| the seed for one helper, {name} \| (\S+), and", page, re.MULTILINE)
        assert shown == f"{found[kind]:,}"


def test_the_accuracy_of_secure_runs_is_the_recorded_one():
    plain, secure = (percent(one["accuracy"]) for one in recorded("secure", "0.8"))
    said = f"{secure} of the test images in a secure run, and in {plain} without"
    assert said in in_one_line("docs/secure-aggregation.md")


def test_the_report_s_sentence_is_of_the_recorded_demo():
    (shown,) = re.findall(r'"(FedBuff takes .*?)" is a result', in_one_line("docs/how-to/read-a-report.md"))
    assert shown in json.loads((ROOT / "docs/recorded/demo.json").read_text())["sentences"]["0.9"]


def test_the_runs_on_real_data_are_the_recorded_ones():
    _, page = (ROOT / "docs/data.md").read_text().split("## Five runs on real data")
    for name, one in json.loads((ROOT / "docs/recorded/data.json").read_text())["runs"].items():
        clients, _, trips, *accuracies = row(page, name + " (folger)" * (name == "shakespeare"))
        assert (clients, trips) == (f"{one['clients']:,}", f"{one['client_trips']:,}")
        found = (one["accuracy"], one["baseline"]["metrics"]["accuracy"])
        assert accuracies == [f"{100 * accuracy:.1f} %" for accuracy in found]


def test_models_have_the_numbers_of_parameters_on_the_page_of_data():
    page = (ROOT / "docs/data.md").read_text()
    rows = re.findall(r"^\| (\w+) \|[^|]*\| ([\d,]+) \((.*)\) \|$", page, re.MULTILINE)
    assert len(rows) == 11
    for kind, count, of in rows:
        *shape, outputs = (int(number.replace(",", "")) for number in re.findall(r"\d[\d,]*\d|\d", of))
        shape = shape if " x " in of else shape[:1]
        model = TypeAdapter(Model).validate_python(kind).build(tuple(shape), outputs)
        assert f"{sum(each.numel() for each in model.parameters()):,}" == count, kind


def test_the_noise_on_the_page_of_privacy_is_what_the_command_prints(cli):
    page = (ROOT / "docs/privacy.md").read_text()
    (line,) = re.findall(r"^\$ tardigrad (privacy plan .*--compare)$", page, re.MULTILINE)
    code, printed, _ = cli(*line.split())
    assert code == 0
    for kind in ("blt", "tree", "independent"):
        (shown,) = re.findall(rf"^{kind} +(\d.*)$", page, re.MULTILINE)
        assert all(number in printed for number in shown.split()), kind
    blt, tree = (
        float(re.search(rf"^{kind} .* (\S+) +\d+$", page, re.MULTILINE)[1]) for kind in ("blt", "tree")
    )
    assert f"{blt / tree:.2f} times the noise of a tree" in in_one_line("docs/privacy.md")


def test_the_page_of_privacy_says_what_the_recorded_audit_found():
    found = json.loads((ROOT / "docs/recorded/audit.json").read_text())
    text = in_one_line("docs/privacy.md")
    assert f"can show up to {found['largest_bound']:.1f} at delta 1e-6" in text
    assert f"promises {found['accountant_epsilon']:.0f}, they find {found['lower_bound']:.1f} with" in text


def test_one_version_is_named_everywhere():
    version = tardigrad.__version__
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"\n| Tardigrad | {version} |" in (ROOT / "docs/comparison.md").read_text()
    assert f"\n## [{version}] - 20" in (ROOT / "CHANGELOG.md").read_text()
