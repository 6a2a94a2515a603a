"""Numbers on pages are those of the recorded runs that they quote, or are computed anew."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from pydantic import TypeAdapter

import demo_grid
import tardigrad
from tardigrad.core.download_sizes import MOST_DIFFERENCES
from tardigrad.experiments.compare.compare import load_comparison
from tardigrad.experiments.compare.pool import fingerprint
from tardigrad.experiments.config.reading import load_config
from tardigrad.learning.models import Model
from tardigrad.simulation.device_profiles import DEVICES, LATENCY, MEGABIT, MIXES, SPREAD

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def recorded(name, target):
    """The rows of a recorded comparison: entry, cost to the target, final accuracy."""
    found = json.loads((ROOT / "docs/recorded" / f"{name}.json").read_text())["rows"]
    return [row | row["targets"][target] for row in found]


def sentences(name, target):
    """What a recorded comparison says of the differences between its entries."""
    return json.loads((ROOT / "docs/recorded" / f"{name}.json").read_text())["sentences"][target]


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


@pytest.mark.parametrize(
    "file",
    [f"experiments/{name}.toml" for name in ("demo", "phones", "encodings", "attacks")]
    + ["docs/recorded/secure.toml"],
)
def test_a_recorded_comparison_is_of_its_file_as_it_is_now(file):
    """The name of a run's folder ends with the fingerprint of its config."""
    comparison = load_comparison(ROOT / file)
    found = json.loads((ROOT / "docs/recorded" / f"{Path(file).stem}.json").read_text())
    assert (found["title"], found["seeds"]) == (comparison.title, list(comparison.seeds))
    assert not any(Path(folder).is_absolute() for folder in found["folders"].values())
    assert {run: folder.rpartition("-")[2] for run, folder in found["folders"].items()} == {
        f"{label} (seed {seed})": fingerprint(comparison.config(label, seed, file))
        for label in comparison.entries
        for seed in comparison.seeds
    }


def test_the_recorded_audit_is_of_its_config_as_it_is_now():
    found = json.loads((ROOT / "docs/recorded/audit.json").read_text())
    file, *settings = re.findall(r"audit (\S+)|--set (\S+)", found["command"])
    config = load_config(ROOT / file[0], [setting for _, setting in settings])
    assert found["config"] == fingerprint(config)
    assert f"--canaries {found['canaries']} " in found["command"]
    assert (found["steps"], found["delta"]) == (config.stop.steps, config.privacy.delta)
    assert found["accountant_epsilon"] == pytest.approx(config.privacy.epsilon)


def test_the_recorded_runs_on_real_data_are_of_their_configs_as_they_are_now():
    runs = json.loads((ROOT / "docs/recorded/data.json").read_text())["runs"]
    files = {file.stem: load_config(file) for file in (ROOT / "experiments/data").glob("*.toml")}
    assert {name: one["config"] for name, one in runs.items()} == {
        name: fingerprint(config) for name, config in files.items()
    }
    assert {name: one["client_trips"] for name, one in runs.items()} == {
        name: config.stop.trips for name, config in files.items()
    }


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


def test_the_readme_s_first_result_is_that_of_the_recorded_demo():
    said = r"FedBuff reaches the target in ([\d.]+) of FedAvgM's virtual time and in ([\d.]+) of FedAvg's\."
    ((momentum, plain),) = re.findall(said, in_one_line("README.md"))
    for ratio, other in ((momentum, "FedAvgM"), (plain, "FedAvg")):
        (found,) = [one for one in sentences("demo", "0.9") if f"virtual time of {other} (" in one]
        assert found.startswith(f"FedBuff takes {ratio} times ")
        assert "could be chance" not in found


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


def test_the_recorded_grid_of_the_demo_has_what_its_tool_measures():
    found = json.loads((ROOT / "docs/recorded/demo-grid.json").read_text())
    assert (found["seeds"], found["stop"]) == (list(demo_grid.SEEDS), demo_grid.STOP)
    assert {name: list(map(float, row)) for name, row in found["trips"].items()} == {
        f"{label.lower()} " + ", ".join(f"{key} {value:g}" for key, value in one.items()): list(
            demo_grid.LOCAL_LRS
        )
        for label, tried in demo_grid.SETTINGS.items()
        for one in tried
    }


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
    for sentence in sentences("phones", "0.9"):
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


def test_the_sentences_on_encodings_are_of_the_recorded_runs():
    trips, size = {}, {}
    for one in recorded("encodings", "0.82"):
        if one["reached"] == 3:
            name, _, _ = one["entry"].partition(",")
            trips[name] = one["trips"]["mean"]
            size[name] = round(one["bytes_up"]["mean"] / trips[name])
    page = in_one_line("docs/encodings.md")
    assert f"The model has {size['float32'] // 4:,} parameters." in page
    assert trips["sign"] / trips["float32"] == pytest.approx(1.5, abs=0.1)
    assert "`sign` takes half as many trips again" in page
    assert f"{trips['topk 1 %'] / trips['float32']:.1f} times as many, for a twentieth of the bytes" in page
    share = trips["topk 1 %"] * size["topk 1 %"] / (trips["float32"] * size["float32"])
    assert share == pytest.approx(1 / 20, abs=0.005)
    whole = {name: -(-size["float32"] // size[name]) for name in ("int8", "int4", "sign")}
    words = {4: "four", 8: "eight"}
    after = f"with `int8` after {words[whole['int8']]} versions, with `int4` after {words[whole['int4']]}"
    assert f"{after}, with `sign` after {whole['sign']}, and after {MOST_DIFFERENCES:,} versions" in page


def test_the_devices_on_the_page_of_networks_are_those_of_the_code():
    text, page = in_one_line("docs/network.md"), (ROOT / "docs/network.md").read_text()
    factors = {
        "5 times as long": 5.0, "as `[delay]` says": 1.0, "half as long": 0.5, "twice as long": 2.0,
        "a tenth": 0.1,
    }  # fmt: skip
    table = page.split("### Devices")[1].split("\n`phones` is")[0]
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \| ([\d.,]+) \| ([\d.,]+) \|", table, re.MULTILINE)
    shown = {name: (factors[factor], down, up) for name, factor, down, up in rows}
    assert shown == {
        name: (one.compute, *(f"{rate / MEGABIT:,.1f}".replace("1,000.0", "1,000") for rate in one[1:]))
        for name, one in DEVICES.items()
    }
    for name, mix in MIXES.items():
        *first, last = (f"{share:.0%} `{device}`".replace("%", " %") for device, share in mix.items())
        assert f"`{name}` is {', '.join(first)} and {last}" in text
    assert f"with a spread of {SPREAD}, and the latency is {LATENCY} s" in text


def test_the_limits_of_nodes_are_computed_as_the_page_of_scaling_says():
    """With the symbols of that page; SCAFFOLD broadcasts and uploads two vectors and has one as memory."""
    page = (ROOT / "docs/scaling.md").read_text()
    rows = re.findall(r"^\|(.*)\| (\d) \| (\d+) \| ([\d.]+) \| ([\d.]+) \|$", page, re.MULTILINE)
    assert len(rows) == 5
    for run, nodes, buffer, head, node in rows:
        hidden, scaffold = 1100 if "1100" in run else 200, "SCAFFOLD" in run
        vector = 4 * ((784 + 1) * hidden + (hidden + 1) * 10) / 1e6
        if "million" in run:
            assert f"{vector / 4:.2f} million" in run
        up, down, memory = (2 * vector, 2 * vector, vector) if scaffold else (vector, vector, 0)
        assert f"{up + memory:.3f}" == head
        assert f"{min(int(nodes), int(buffer)) * down / int(buffer) + memory:.3f}" == node


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


PARTS = """
import json, sys
import report

names = [file.stem for file in report.HERE.glob("*.json")]
json.dump({name: report.part(name) for name in names}, sys.stdout)
"""


def test_the_parts_of_performance_are_those_of_the_last_benchmarks():
    """With date, version and commit."""
    command = [sys.executable, "-c", PARTS]
    done = subprocess.run(command, cwd=ROOT / "benchmarks", stdout=subprocess.PIPE, text=True, check=True)
    page = (ROOT / "docs/performance.md").read_text()
    shown = re.findall(r"<!-- (\w+): begin -->\n\n(.*?)\n\n<!-- \1: end -->", page, re.DOTALL)
    assert dict(shown) == json.loads(done.stdout)


def test_the_prose_of_performance_has_no_measured_number():
    """Times, shares and ratios stand in the tables, which are made from the recorded JSON."""
    page = re.sub(r"<!-- (\w+): begin -->.*?<!-- \1: end -->", "", in_one_line("docs/performance.md"))
    found = re.findall(
        r"\d[\d.,]* (?:%|ms\b|µs|microseconds|page faults|trips/s)|\d\.\d\d+ (?:of|times)", page
    )
    assert found == []


def test_sizes_and_live_versions_of_performance_are_those_of_the_last_benchmark():
    runs, page = measured("results")["memory"]["concurrency"], in_one_line("docs/performance.md")
    one = next(run for run in runs if run["concurrency"] == 1000)
    assert f"CNN with {one['model_mb'] * 2**20 / 4e6:.2f} M parameters" in page
    (factor,) = re.findall(r"at some ([\d.]+) x concurrency / K \(230 for 1,000 and 10\)", page)
    assert float(factor) == pytest.approx(one["versions"] / (1000 / 10), abs=0.05)


def test_what_momentum_approximation_costs_is_from_the_last_benchmark():
    forms = measured("results")["momentum_approximation"]
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


@pytest.mark.parametrize("page", ["docs/how-to/read-a-report.md", "docs/guide.md"])
def test_the_report_s_sentence_is_of_the_recorded_demo(page):
    (shown,) = re.findall(r'"(FedBuff takes .*?)"', in_one_line(page))
    assert shown in sentences("demo", "0.9")


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


def test_models_of_other_shapes_have_the_numbers_of_parameters_on_the_page_of_data():
    page = in_one_line("docs/data.md")

    def count(kind, shape, outputs):
        model = TypeAdapter(Model).validate_python(kind).build(shape, outputs)
        return f"{sum(each.numel() for each in model.parameters()):,}"

    assert f"with 47 it has {count('fedac_mlp', (1, 28, 28), 47)}." in page
    narrow = {"kind": "fedac_cnn", "channels": [32, 64]}
    assert f"32 and 64 would have {count(narrow, (3, 32, 32), 10)}." in page


def test_what_travels_in_the_lora_example_is_as_its_page_says():
    """Of an encoder of 6 layers of width 384: two matrices each for query and value, and a linear layer."""
    width, layers, rank, classes = 384, 6, 8, 2
    travels = layers * 2 * 2 * width * rank + (width + 1) * classes
    page = in_one_line("examples/lora/README.md")
    assert f"{travels:,} parameters are trained and travel: {4 * travels / 1e6:.1f} MB a message" in page
    assert f"adapters of rank {rank}" in page
    assert f"def model(rank: int = {rank})" in (ROOT / "examples/lora/lora.py").read_text()


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
