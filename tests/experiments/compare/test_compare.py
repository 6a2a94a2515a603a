"""Comparisons: what the table says, by hand; broken entries; killed and started again."""

import csv
import io
import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import tomli_w
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from scipy import stats

import tardigrad as td
from gated_algorithm import gated_algorithm
from own_code_file import OWN, own_values
from tardigrad.experiments.compare.compare import Comparison, _file_name, compare, load_comparison, merged
from tardigrad.experiments.compare.outcome import Outcome, Point
from tardigrad.experiments.compare.pool import locked_folder
from tardigrad.experiments.compare.statistics import paired
from tardigrad.experiments.compare.tables import HEADINGS, comma_separated, headings, latex, markdown, show
from tardigrad.experiments.compare.tables import _tex as latex_cell
from tardigrad.experiments.compare.time_split import TimeSplit


def outcome(label, seed, accuracies, every=100, error=None):
    curve = [Point(every * i, 10 * i, i / 2, 1e6 * i, a, 4e5 * i) for i, a in enumerate(accuracies)]
    return Outcome(label, seed, Path(label), {"oracle": False}, curve, Counter({0: 3, 2: 1}), error)


COMPARISON = Comparison(
    title="T & T", seeds=(0, 1), targets=(0.5, 0.9), entries={"a": {}, "b|c": {}, "d": {}}
)
OUTCOMES = [
    outcome("a", 0, [0.1, 0.5, 0.9]),
    outcome("a", 1, [0.1, 0.2, 0.6, 0.95]),
    outcome("b|c", 0, [0.1, 0.2, 0.3, 0.4, 0.6]),
    outcome("b|c", 1, [0.1, 0.2, 0.3, 0.55, 0.91]),
    outcome("d", 0, [0.1], error="boom"),
    outcome("d", 1, [0.1, 0.99]),
]


def test_the_table_has_the_numbers_worked_out_by_hand():
    table = COMPARISON.table(OUTCOMES)
    a, b, d = table["rows"]
    assert a["targets"]["0.5"]["trips"] == {"mean": 150.0, "sd": pytest.approx(math.sqrt(5000))}
    assert a["targets"]["0.5"]["steps"]["mean"] == 15
    assert a["targets"]["0.5"]["time"]["mean"] == 0.75
    assert a["targets"]["0.5"]["bytes"]["mean"] == 1.5e6
    assert a["targets"]["0.5"]["bytes_up"]["mean"] == 6e5
    assert a["targets"]["0.9"]["reached"] == 2
    costs = ("trips", "steps", "time", "bytes", "bytes_up")
    assert b["targets"]["0.9"] == {"reached": 1} | dict.fromkeys(costs)
    assert b["budget"]["trips"] == 400
    assert a["accuracy"]["mean"] == pytest.approx(0.925)
    assert a["staleness"]["mean"] == 0.5
    assert d == {"entry": "d", "failed": ["boom"]}
    (trips, time_) = table["sentences"]["0.5"]
    assert trips.startswith("a takes 0.41 times the client trips of b|c (95 % interval")
    assert "could be chance" in trips
    assert "virtual time" in time_
    assert table["sentences"]["0.9"] == []


def test_a_sentence_says_where_the_time_of_trips_went():
    own = [replace(one, split=TimeSplit(0.1, 0.3, 0.5, 0.1)) for one in OUTCOMES[:2]]
    table = COMPARISON.table([*own, *OUTCOMES[2:]])
    said = "a: 60 % of a trip is network (download 10 %, upload 50 %), 30 % is training, 10 % is waiting."
    assert said in markdown(table)
    again = json.loads(json.dumps(table))
    assert said in markdown(again), "also from comparison.json"
    assert "network" not in markdown(COMPARISON.table(OUTCOMES))


def test_all_forms_have_every_entry():
    table = COMPARISON.table(OUTCOMES)
    text = markdown(table)
    assert "| a | 150 ± 71 | 1.00 | 0.8 ± 0.4 | 1.00 | 15 | 0.6 | 0.9 | 92.5 ± 3.5 | 0.5 |" in text
    assert r"| b\|c | > 400 | 1 of 2 |" in text
    assert "- d failed: boom" in text
    rows = list(csv.DictReader(comma_separated(table).splitlines()))
    assert [(row["entry"], row["target"]) for row in rows[:2]] == [("a", "0.5"), ("a", "0.9")]
    assert float(rows[0]["trips_mean"]) == 150.0
    assert rows[-1]["error"] == "boom"
    assert r"150 $\pm$ 71" in latex(table)
    assert latex(table).count(r"\begin{tabular}") == 2


@pytest.mark.parametrize(
    ("width", "left_out"),
    [(120, []), (62, ["stale", "MB down", "MB up"]), (56, ["stale", "MB down", "MB up", "steps"])],
)
def test_in_a_narrow_terminal_columns_are_left_out_but_no_number_is_cut(width, left_out):
    table, said = COMPARISON.table(OUTCOMES), io.StringIO()
    show(table, Console(file=said, width=width))
    lines = said.getvalue().splitlines()
    assert "150 ± 71" in said.getvalue()
    assert "…" not in said.getvalue()
    head = next(line for line in lines if "entry" in line)
    assert [name for name in ("stale", "MB down", "MB up", "steps") if name not in head] == left_out
    assert max(map(len, lines)) <= width
    full = {"stale": "mean staleness", "MB down": "megabytes down", "MB up": "megabytes up", "steps": "steps"}
    said_so = f"in comparison.md also: {', '.join(full[name] for name in left_out)}"
    assert (said_so in " ".join(said.getvalue().split())) == bool(left_out)


def test_no_two_columns_have_the_same_heading():
    assert len(set(HEADINGS)) == len(HEADINGS)
    assert len(set(headings(0.9))) == len(headings(0.9))
    said = io.StringIO()
    show(COMPARISON.table(OUTCOMES), Console(file=said, width=120))
    assert "ratio: to the best entry" in said.getvalue()


def test_a_missed_target_is_shown_with_how_near_it_was_and_what_to_try():
    stuck = [outcome("stuck", seed, [0.1, 0.5, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6]) for seed in (0, 1)]
    rising = [
        outcome("rising", 0, [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.85]),
        outcome("rising", 1, [0.1, 0.95]),
    ]
    comparison = Comparison(seeds=(0, 1), targets=(0.9, 0.5), entries={"stuck": {}, "rising": {}})
    table = comparison.table([*stuck, *rising])
    assert table["missed"]["0.9"] == [
        "stuck missed 0.9 with every seed: the nearest came to 0.600, 0.300 short; it had stopped improving, "
        "so try another `local.lr` (`tardigrad tune` searches for it)",
        "rising missed 0.9 with 1 of 2 seeds: the nearest came to 0.850, 0.050 short; it was still "
        "improving, so try a larger budget (`stop`)",
    ]
    assert table["missed"]["0.5"] == []
    said = io.StringIO()
    show(table, Console(file=said, width=200))
    for text in (said.getvalue(), markdown(table)):
        assert "stuck missed 0.9" in text
        assert "rising missed 0.9" in text


def test_the_resolution_of_a_cost_is_the_distance_to_the_evaluation_before():
    one = outcome("a", 0, [0.1, 0.3, 0.5, 0.4, 0.9])
    assert one.resolution(0.5, "trips") == 100
    assert one.resolution(0.9, "time") == 0.5
    assert one.resolution(0.1, "trips") == 0, "reached at once"
    assert one.resolution(0.99, "trips") == 0, "missed"


def test_two_seeds_on_a_coarse_grid_are_too_few_to_tell():
    """Both entries reach the target at the same points of the grid: the difference seems to be exact."""
    fast = [outcome("fast", seed, [0.1, 0.2, 0.9]) for seed in (0, 1)]
    slow = [outcome("slow", seed, [0.1, 0.2, 0.3, 0.4, 0.9]) for seed in (0, 1)]
    comparison = Comparison(seeds=(0, 1), targets=(0.9,), entries={"fast": {}, "slow": {}})
    (sentence, _) = comparison.table([*fast, *slow])["sentences"]["0.9"]
    assert sentence == (
        "fast takes 0.50 times the client trips of slow (the same with every seed, p = 0.5, 2 seeds): "
        "could be chance; 2 seeds are too few to tell"
    )


@given(
    st.lists(st.tuples(st.integers(1, 20), st.integers(1, 20)), min_size=2, max_size=5),
    st.sampled_from([0.0, 0.01, 50.0]),
)
def test_the_interval_excludes_1_only_if_the_difference_is_hardly_chance(costs, step):
    first, second = ([50.0 * pair[side] for pair in costs] for side in (0, 1))
    found = paired(first, second, [step] * len(costs), [step] * len(costs))
    if found.low is None:
        assert found.p >= 0.05 or len(costs) > 5, "few seeds without a spread prove nothing"
    else:
        assert (found.p < 0.05) == (not found.low <= 1 <= found.high)


def test_an_interval_is_not_shown_as_a_point():
    fast = [outcome("fast", seed, [0.1, 0.9], every=every) for seed, every in ((0, 10000), (1, 10001))]
    slow = [outcome("slow", seed, [0.1, 0.9], every=20000) for seed in (0, 1)]
    fast = [replace(one, curve=[one.curve[0], *_just_before(one), one.curve[1]]) for one in fast]
    slow = [replace(one, curve=[one.curve[0], *_just_before(one), one.curve[1]]) for one in slow]
    comparison = Comparison(seeds=(0, 1), targets=(0.9,), entries={"fast": {}, "slow": {}})
    (sentence, _) = comparison.table([*fast, *slow])["sentences"]["0.9"]
    low, high = re.search(r"interval (\S+) to (\S+),", sentence).groups()
    assert float(low) < float(high)
    assert "2 seeds are too few to tell" in sentence


def _just_before(one):
    last = one.curve[-1]
    return [replace(last, trips=last.trips - 1, time=last.time - 0.001, value=0.2)]


def test_the_grid_adds_its_variance_to_that_of_the_seeds():
    first, second = [10.0, 13.0, 9.0, 20.0], [14.0, 15.0, 16.0, 21.0]
    logs = [math.log(a / b) for a, b in zip(first, second)]
    grid = sum((2 / a) ** 2 / 12 + (3 / b) ** 2 / 12 for a, b in zip(first, second)) / 4
    error = math.sqrt((stats.tvar(logs) + grid) / 4)
    mean = sum(logs) / 4
    found = paired(first, second, [2.0] * 4, [3.0] * 4)
    assert found.p == pytest.approx(2 * stats.t.sf(abs(mean) / error, 3))
    low, high = stats.t.interval(0.95, 3, mean, error)
    assert (found.low, found.high) == pytest.approx((math.exp(low), math.exp(high)))
    fine = paired(first, second)
    assert found.low < fine.low < fine.high < found.high
    assert found.p > fine.p


def test_the_paired_test_is_scipys_on_logarithms():
    first, second = [10.0, 13.0, 9.0, 20.0], [14.0, 15.0, 16.0, 21.0]
    found = paired(first, second)
    expected = stats.ttest_rel([math.log(x) for x in first], [math.log(x) for x in second])
    assert found.p == pytest.approx(expected.pvalue)
    low, high = expected.confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((math.exp(low), math.exp(high)))
    assert paired([1.0], [2.0]) is None
    assert paired([0.0, 1.0], [2.0, 1.0]) is None


@pytest.mark.parametrize("wrong", [0.0, -1.0, math.inf, math.nan])
def test_costs_that_have_no_ratio_are_not_compared(wrong):
    assert paired([wrong, 1.0, 2.0], [2.0, 1.0, 3.0]) is None
    assert paired([2.0, 1.0, 3.0], [1.0, 2.0, wrong]) is None


@pytest.mark.parametrize("seeds", [2, 3, 6])
def test_the_same_ratio_with_every_seed_is_judged_by_its_sign(seeds):
    """There is no spread to make a t-test or an interval of; rounding is none either."""
    costs = [0.1 * 3**n for n in range(seeds)]
    found = paired([2 * cost for cost in costs], costs)
    assert found.ratio == pytest.approx(2.0)
    assert (found.low, found.high) == (None, None)
    assert found.p == 2 * 0.5**seeds == stats.binomtest(seeds, seeds).pvalue
    assert paired(costs, costs).p == 1.0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("entries = {}", "entries: "),
        ("seeds = []\n[entries.a]", "seeds: "),
        ("seeds = [1, 1]\n[entries.a]", "the same seed twice"),
        ('[entries."a b"]\n[entries."a-b"]', "would share a folder"),
        ("target = 0.9\n[entries.a]", "did you mean 'targets'"),
    ],
)
def test_bad_files_are_named(tmp_path, text, said):
    (tmp_path / "c.toml").write_text(text)
    with pytest.raises(td.ConfigError, match=said):
        load_comparison(tmp_path / "c.toml")


def test_killed_in_the_middle_and_started_again_gives_the_same_table(commands, tmp_path):
    """With model, data and an algorithm of one's own, which the resumed runs must find again."""
    algorithm, gate = gated_algorithm(tmp_path, step=3)
    (tmp_path / "own.py").write_text(OWN)
    base = own_values("own.py") | {"algorithm": "fedbuff"}
    entries = {"FedBuff": {}, "gated": {"algorithm": algorithm}}
    file = {"seeds": [0, 1], "targets": [0.5], "base": base, "entries": entries}
    (tmp_path / "c.toml").write_text(tomli_w.dumps(file))
    words = "compare", tmp_path / "c.toml", "--json", "--out"
    process = commands.start(*words, tmp_path / "b")
    while process.poll() is None and not list((tmp_path / "b").glob("*/summary.json")):
        time.sleep(0.02)
    assert process.poll() is None, "it was through before it could be killed"
    process.send_signal(signal.SIGKILL)
    process.communicate()
    finished = {file: file.stat().st_mtime_ns for file in (tmp_path / "b").glob("*/summary.json")}
    assert 0 < len(finished) < 4
    gate.unlink()
    straight = json.loads(json.dumps(compare(tmp_path / "c.toml", tmp_path / "a", Console(quiet=True))))
    deadline = time.monotonic() + 300
    while True:  # the workers notice within a second or two that their parent is gone
        again = commands.start(*words, tmp_path / "b")
        said, errors = again.communicate()
        if again.returncode == 0 or time.monotonic() > deadline:
            break
        assert "somebody else is running it" in said + errors
        time.sleep(0.5)
    resumed = json.loads(said.strip().splitlines()[-1])
    del straight["folders"], resumed["folders"]
    assert resumed == straight
    assert {file: file.stat().st_mtime_ns for file in finished} == finished
    assert os.path.getsize(tmp_path / "b/comparison.png") > 1000  # noqa: PTH202


DIGITS = """
seeds = [0]
targets = [0.5]
[base]
data = { kind = "digits", partition = { kind = "iid", clients = 10 } }
model = { kind = "mlp", hidden = [8] }
stop = { trips = 20 }
evaluation = { every_trips = 10 }
pace = { kind = "asynchronous", concurrency = 2 }
buffer = { size = 2 }
[entries.A]
[entries."cost $5 \\\\beta_{ to $6"]
buffer = { size = 4 }
"""


def test_a_finished_run_whose_record_is_damaged_is_not_believed(tmp_path):
    file, out = tmp_path / "c.toml", tmp_path / "out"
    file.write_text(DIGITS)
    table = compare(file, out, Console(quiet=True))
    assert [row["failed"] for row in table["rows"]] == [[], []]
    assert (out / "comparison.png").exists()  # though a label looks like a formula
    assert "±" not in (out / "comparison.md").read_text()  # one seed has no spread
    [events] = out.glob("A-seed0-*/events.jsonl")
    whole = events.read_bytes()
    events.write_bytes(whole[: len(whole) // 3])
    for _ in range(2):
        rows = compare(file, out, Console(quiet=True))["rows"]
        assert "is damaged or gone" in rows[0]["failed"][0]
        assert rows[1]["failed"] == []
        events.unlink(missing_ok=True)


def test_one_comparison_at_a_time_in_a_folder(commands, tmp_path):
    file = tmp_path / "c.toml"
    file.write_text(DIGITS)
    with locked_folder(tmp_path):
        process = commands.start("compare", file, "--out", tmp_path)
        _, said = process.communicate()
    assert process.returncode == 2
    assert "is going on there right now" in said


def test_a_run_whose_process_dies_does_not_sink_the_others(tmp_path):
    (tmp_path / "deadly.py").write_text(
        "import os, signal, tardigrad as td\n"
        "class Deadly(td.SumOnly):\n"
        "    def step(self, state, buffer):\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    file = tmp_path / "c.toml"
    file.write_text(DIGITS + f'[entries.deadly]\nalgorithm = {{ kind = "{tmp_path}/deadly.py:Deadly" }}\n')
    rows = compare(file, tmp_path / "out", Console(quiet=True))["rows"]
    failed = {row["entry"]: row["failed"] for row in rows}
    assert failed.pop("deadly") == ["its process died (out of memory?); run it again to go on"]
    assert len(failed) == 2
    assert not any(failed.values())


def test_a_program_that_compares_is_not_run_again_by_the_workers(tmp_path):
    (tmp_path / "c.toml").write_text(DIGITS)
    program = """
from pathlib import Path
from rich.console import Console
from tardigrad.experiments.compare.compare import compare
print("once")
table = compare(Path("c.toml"), Path("out"), Console(stderr=True))
print([row["failed"] for row in table["rows"]])
"""
    (tmp_path / "unguarded.py").write_text(program)
    done = subprocess.run(
        [sys.executable, "unguarded.py"], capture_output=True, text=True, cwd=tmp_path, timeout=600
    )
    assert done.stdout.splitlines() == ["once", "[[], []]"], done.stderr
    assert "Traceback" not in done.stderr


def test_labels_must_not_be_empty_and_are_escaped_in_file_names_and_latex(tmp_path):
    file = tmp_path / "c.toml"
    file.write_text('[entries.""]')
    with pytest.raises(td.ConfigError, match="needs a name"):
        load_comparison(file)
    assert len(_file_name("日" * 90).encode()) <= 80
    assert latex_cell("a\\b_{$5}") == r"a\textbackslash{}b\_\{\$5\}"


def test_a_variant_of_another_kind_replaces_the_table_of_an_entry(tmp_path):
    (tmp_path / "c.toml").write_text(
        'targets = [0.9]\n[base]\nalgorithm = "fedbuff"\npace = { kind = "asynchronous", concurrency = 7 }\n'
        '[entries]\na = { algorithm = { lr = 5.0 }, pace = { kind = "queued", concurrency = 20 } }\n'
        '[variants]\nsame = {}\nother = { algorithm = { kind = "fedasync" }, pace = "asynchronous" }\n'
    )
    found = load_comparison(tmp_path / "c.toml")
    same, other = (found.config(label, 0, "c") for label in ("a, same", "a, other"))
    assert (same.algorithm.kind, same.algorithm.lr, same.pace.kind) == ("fedbuff", 5.0, "queued")
    assert (other.algorithm, other.pace) == (td.FedAsync(), td.Asynchronous())


def test_variants_without_a_name_or_with_one_that_another_has_are_refused(tmp_path):
    file = tmp_path / "c.toml"
    file.write_text('[entries]\nA = {}\n"A, B" = {}\n[variants]\nC = {}\n"B, C" = {}\n')
    with pytest.raises(td.ConfigError, match="'A, B, C' could be two entries in two variants"):
        load_comparison(file)
    file.write_text('[entries]\nA = {}\n[variants]\n"" = {}\n')
    with pytest.raises(td.ConfigError, match="variants: each of them needs a name"):
        load_comparison(file)


def test_every_entry_is_run_in_every_variant(tmp_path):
    (tmp_path / "c.toml").write_text(
        "targets = [0.9]\n[base]\nlocal = { lr = 0.1, batch_size = 4 }\n"
        '[entries]\na = { algorithm = "fedbuff" }\nb = { local = { lr = 0.3 } }\n'
        "[variants]\nslow = { local = { lr = 0.01 } }\nlong = { stop = { trips = 7 } }\n"
    )
    found = load_comparison(tmp_path / "c.toml")
    assert list(found.entries) == ["a, slow", "b, slow", "a, long", "b, long"]
    config = {label: found.config(label, 0, "c") for label in found.entries}
    assert [config[label].local.lr for label in config] == [0.01, 0.01, 0.1, 0.3]
    assert [config[label].local.batch_size for label in config] == [4] * 4
    assert [config[label].stop.trips for label in ("a, long", "b, long")] == [7, 7]


@pytest.mark.parametrize(
    ("old", "new", "both"),
    [
        ({"kind": "fedbuff", "lr": 0.5}, "fedbuff", {"kind": "fedbuff", "lr": 0.5}),
        ("fedbuff", {"kind": "fedbuff", "lr": 0.5}, {"kind": "fedbuff", "lr": 0.5}),
        ({"kind": "fedbuff", "lr": 0.5}, "fedasync", {"kind": "fedasync"}),
        ("fedbuff", "fedasync", "fedasync"),
    ],
)
def test_the_name_of_a_kind_is_short_for_a_table_of_that_kind_on_both_sides(old, new, both):
    assert merged({"algorithm": old}, {"algorithm": new}) == {"algorithm": both}
