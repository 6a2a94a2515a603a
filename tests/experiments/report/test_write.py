"""The report: what it reads, what it computes, what it says of folders that it cannot read."""

import json
import re
import shutil
import sys

import numpy as np
import pytest
import torch

import tardigrad as td
from tardigrad.cli import main
from tardigrad.core.momentum_approximation import momentum_matrix
from tardigrad.experiments.compare.compare import load_comparison
from tardigrad.experiments.compare.outcome import read_outcome
from tardigrad.experiments.report import population
from tardigrad.experiments.report.chart import MARK, Chart, panel, spread
from tardigrad.experiments.report.momentum_chart import rebuild
from tardigrad.experiments.report.population import CACHE, find_out
from tardigrad.experiments.report.privacy_section import as_html
from tardigrad.experiments.report.run_record import read_record
from tardigrad.experiments.report.sources import RunSource, Series, read_sources
from tardigrad.experiments.report.staleness_chart import staleness_charts
from tardigrad.experiments.report.traffic_chart import at_work
from tardigrad.experiments.report.write import _lead, report

NASTY = '<b>"bold"</b> & $x$'
COMPARISON = f"""
title = 'Small </title><script>boom()</script>'
seeds = [0, 1]
targets = [0.3, 0.5]
[base]
data = {{ kind = "digits", partition = {{ kind = "dirichlet", clients = 30, alpha = 0.3 }} }}
model = {{ kind = "mlp", hidden = [16] }}
delay = {{ kind = "half_normal", device_spread = 0.8, give_up = 0.05 }}
local = {{ batch_size = 8, lr = 0.2 }}
stop = {{ trips = 150 }}
evaluation = {{ every_trips = 30 }}
[entries.'{NASTY}']
algorithm = {{ kind = "fedbuff", momentum = "approximation" }}
pace = {{ kind = "asynchronous", concurrency = 15 }}
buffer = {{ size = 5, staleness_bound = 3 }}
[entries.light]
algorithm = {{ kind = "fedbuff", momentum = "light_approximation" }}
pace = {{ kind = "asynchronous", concurrency = 15 }}
buffer = {{ size = 5 }}
[entries.rounds]
algorithm = {{ kind = "fedavg" }}
pace = {{ kind = "synchronous", cohort = 8, selected = 12 }}
[entries.diverges]
algorithm = {{ kind = "fedbuff", lr = 1e30 }}
pace = {{ kind = "asynchronous", concurrency = 15 }}
"""


def make_comparison(folder):
    """What `tardigrad compare` makes, in this process."""
    (folder / "small.toml").write_text(COMPARISON)
    comparison = load_comparison(folder / "small.toml")
    outcomes = []
    for label in comparison.entries:
        for seed in comparison.seeds:
            place = folder / "small" / f"{re.sub(r'[^a-z]+', '-', label)}-seed{seed}-0"
            error = None
            try:
                td.run(comparison.config(label, seed, "small.toml"), out=place)
            except td.RunError as found:
                error = str(found)
            outcomes.append(read_outcome(label, seed, place, error))
    (folder / "small" / "comparison.json").write_text(json.dumps(comparison.table(outcomes)))
    return folder / "small"


@pytest.fixture(scope="session")
def compared(tmp_path_factory):
    """A folder with a comparison in it. Do not change it: copy it."""
    return make_comparison(tmp_path_factory.mktemp("report"))


@pytest.fixture
def own(compared, tmp_path):
    """A copy of it: moved, so that the paths in comparison.json lead elsewhere."""
    return shutil.copytree(compared, tmp_path / "moved")


def run_of(folder, label):
    return next(path for path in sorted(folder.iterdir()) if re.search(f"{label}.*-seed0-", path.name))


# -- reading ---------------------------------------------------------------------------------------


def write_events(file, *events):
    start = {"event": "start", "schema": 1, "seed": 0, "oracle": False}
    file.write_text("".join(json.dumps(event) + "\n" for event in (start, *events)))
    return file


def upload(trip, client, start, end, step=None, reason=None, staleness=0, start_version=0):
    accepted = reason is None
    return {
        "event": "upload", "trip": trip, "client": client, "start_time": start, "time": end,
        "start_version": start_version, "version": start_version + staleness, "staleness": staleness,
        "weight": 0.5 if accepted else 0.0, "accepted": accepted, "reason": reason, "step": step,
    }  # fmt: skip


def step(version, **told):
    return {
        "event": "step", "version": version, "trips": version, "time": float(version), "bytes": 9,
        "training_loss": 0.1,
    } | told  # fmt: skip


def test_a_record_has_the_columns_worked_out_by_hand(tmp_path):
    gone = {
        "event": "give_up", "trip": 2, "client": "b", "start_time": 0.0, "time": 3.0, "start_version": 0
    }  # fmt: skip
    record = read_record(
        write_events(
            tmp_path / "events.jsonl",
            {"event": "evaluation", "version": 0, "trips": 0, "time": 0.0, "bytes": 0, "accuracy": 0.1},
            upload(0, "a", 0.0, 1.0, step=1),
            step(1),
            upload(1, "b", 0.0, 2.0, reason="too stale", staleness=1),
            gone,
            upload(3, "a", 1.0, 4.0, step=2, start_version=1),
            step(2, epsilon=0.5),
            {"event": "turned_away", "client": "c", "reason": "full"},
            {"event": "evaluation", "version": 2, "trips": 3, "time": 4.0, "bytes": 30, "accuracy": 0.4},
            {"event": "end", "reason": "steps", "version": 2, "trips": 3, "time": 4.0},
        )
    )
    assert record.trips.start.tolist() == [0, 0, 0, 1]
    assert record.trips.accepted.tolist() == [True, False, False, True]
    assert record.trips.gave_up.tolist() == [False, False, True, False]
    assert record.contributions() == {"a": 2, "b": 0}
    assert record.refused == {"too stale": 1}
    assert record.turned_away == {"full": 1}
    assert record.curve("bytes", "accuracy").tolist() == [[0, 0.1], [30, 0.4]]
    assert np.isnan(record.steps["epsilon"][0])
    assert record.steps["epsilon"][1] == 0.5
    assert (record.ended, record.time) == ("steps", 4.0)


def test_clients_at_work_are_those_counted_by_hand(tmp_path):
    trips = read_record(
        write_events(
            tmp_path / "events.jsonl",
            upload(0, 0, 0.0, 1.0, step=1),
            upload(1, 1, 0.0, 2.0, step=2),
            upload(2, 2, 1.5, 4.0, step=3),
        )
    ).trips
    found = at_work(trips, begin=0.0, end=4.0, bins=4)
    assert found.begin.tolist() == [0, 1, 2, 3]
    assert found.fewest.tolist() == [2, 1, 1, 1]
    assert found.most.tolist() == [2, 2, 1, 1]
    assert found.mean.tolist() == [2, 1.5, 1, 1]
    later = at_work(trips, begin=1.0, end=4.0, bins=3)
    assert later.begin.tolist() == [1, 2, 3]
    assert later.most.tolist() == [2, 1, 1]
    assert later.mean.tolist() == [1.5, 1, 1]


@pytest.mark.parametrize(
    ("events", "said"),
    [
        ([{"event": "upload", "trip": 0}], r"events\.jsonl: the event .* is damaged"),
        ([{"event": "start", "schema": 99}], "schema 99"),
    ],
)
def test_damaged_events_are_named(tmp_path, events, said):
    with pytest.raises(td.RunError, match=said):
        read_record(write_events(tmp_path / "events.jsonl", *events))


# -- computing -------------------------------------------------------------------------------------


@pytest.mark.parametrize("label", ["bold", "light"])
def test_the_matrices_are_those_that_the_run_used(own, label):
    run = read_sources([run_of(own, label)]).entries[0].first
    found = rebuild(run)
    steps = len(found.M)
    assert steps > 20
    assert np.array_equal(found.M, momentum_matrix(steps, 0.9))
    errors = np.sum((found.AW - found.M) ** 2, axis=1) / np.sum(found.M**2, axis=1)
    assert errors == pytest.approx(run.record.steps["least_squares_error"][:steps], abs=1e-9)
    assert found.error(found.AW) < found.error(found.MW)
    assert np.all(np.triu(found.W, 1) == 0)


def test_the_matrices_of_clients_that_weigh_by_their_examples(tmp_path):
    out = tmp_path / "run"
    generator = torch.Generator().manual_seed(0)
    clients = {
        n: (torch.randn(3 + n, 4, generator=generator), torch.arange(3 + n) % 2) for n in range(12)
    }  # fmt: skip
    td.run(
        algorithm=td.FedBuff(momentum="approximation"), model=torch.nn.Linear(4, 2), clients=clients,
        buffer=td.Buffer(size=3, weights="examples"), pace=td.Asynchronous(concurrency=8),
        stop=td.Stop(trips=60), out=out,
    )  # fmt: skip
    run = read_sources([out]).entries[0].first
    found = rebuild(run)
    errors = np.sum((found.AW - found.M) ** 2, axis=1) / np.sum(found.M**2, axis=1)
    assert errors == pytest.approx(run.record.steps["least_squares_error"], abs=1e-9)


def test_a_run_without_momentum_approximation_has_no_matrices(own):
    assert rebuild(read_sources([run_of(own, "rounds")]).entries[0].first) is None


def test_accuracies_of_clients_are_those_of_the_final_model(own):
    entry = read_sources([run_of(own, "rounds")]).entries[0]
    found = find_out([entry]).populations[entry.first.folder]
    assert len(found.names) == 30
    assert min(found.slowness) < 0.5 < 1.5 < max(found.slowness)
    # weighed by examples, they must come to the model's accuracy on all training examples
    data = td.Digits(partition=td.Dirichlet(clients=30, alpha=0.3))
    federation = data.federation(population.key(0, "data"))
    features, labels = (torch.cat(part) for part in zip(*map(federation.clients.load, range(30))))
    module = td.MLP(hidden=(16,)).build_with(None, federation.shape, 10)
    module.load_state_dict(population.RunFolder(entry.first.folder).model())
    right = (module(federation.transform.evaluate(features)).argmax(dim=1) == labels).double().mean()
    assert np.average(found.values, weights=found.examples) == pytest.approx(float(right))


def test_what_was_found_of_clients_is_kept_until_the_model_changes(own):
    entry = read_sources([run_of(own, "rounds")]).entries[0]
    file = entry.first.folder / CACHE
    find_out([entry])
    kept = json.loads(file.read_text())
    file.write_text(json.dumps(kept | {"values": [0.125] * 30}))
    assert find_out([entry]).populations[entry.first.folder].values == [0.125] * 30
    file.write_text(json.dumps(kept | {"accuracy": [0.125] * 30, "model_sha256": "another"}))
    assert find_out([entry]).populations[entry.first.folder].values == kept["values"]


def test_clients_of_changed_data_are_not_made_up(own):
    folder = run_of(own, "rounds")
    (folder / "inputs.json").write_text('{"the data": "other"}')
    found = find_out(read_sources([folder]).entries)
    assert found.populations == {}
    assert "its data changed" in found.unknown[0]


# -- the page --------------------------------------------------------------------------------------


def test_the_report_of_a_comparison(own):
    tuning = {"trials": 9, "per_entry": {"light": {"trials": 9, "trips": 12345}}}
    (own / "tuning.json").write_text(json.dumps(tuning))
    (own / "report").mkdir()
    (own / "report" / "mine.svg").write_text("<svg></svg>")
    (own / "report" / "old.svg").write_text(f"<svg>{MARK}</svg>")
    (own / "report" / "old.png").touch()
    page, pictures = report([own])
    assert (page, pictures) == (own / "report.html", own / "report")
    text = page.read_text()
    assert "<script>boom" not in text
    assert "<b>" not in text
    assert "&lt;b&gt;&quot;bold&quot;&lt;/b&gt; &amp; $x$" in text
    for said in (
        "client trips to 0.3", "client trips to 0.5", "diverges failed", "refused: too stale", "gave up",
        "refused: round closed", "12,345", "algorithm.momentum.kind", "AW is what the approximation comes to",
        "Every upload that counted was fresh in: rounds", "fastest fifth", "seed 0, 1",
    ):  # fmt: skip
        assert said in text, said
    names = re.findall(r'<figure id="([^"]+)"', text)
    assert len(names) == len(set(names)) > 20
    assert {file.name for file in pictures.iterdir()} - {"mine.svg"} == {
        f"{n}.{kind}" for n in names for kind in ("png", "svg")
    }
    assert all((pictures / f"{name}.png").read_bytes().startswith(b"\x89PNG") for name in names)
    assert "var(--" not in (pictures / "accuracy-time.svg").read_text()
    assert "diverges" not in " ".join(names)
    identifiers = re.findall(r'\bid="([^"]+)"', text)
    assert len(identifiers) == len(set(identifiers))


def test_the_report_of_mixed_folders(own, tmp_path):
    table = json.loads((own / "comparison.json").read_text())
    folders = {name: place for name, place in table["folders"].items() if name == "light (seed 0)"}
    (own / "comparison.json").write_text(json.dumps(table | {"folders": folders}))
    first = run_of(own, "rounds")
    page, pictures = report([first, own], tmp_path / "new" / "all.html", tmp_path / "drawn")
    assert page == tmp_path / "new" / "all.html"
    text = page.read_text()
    assert first.name in text
    assert "stopped by" in text
    assert (tmp_path / "drawn" / "accuracy-trips.png").exists()
    assert pictures == tmp_path / "drawn"


def test_a_comparison_may_be_moved(own):
    folders = {run.folder.parent for entry in read_sources([own]).entries for run in entry.runs}
    assert folders == {own}


def test_runs_that_differ_in_their_seeds_alone_are_one_entry(own):
    folders = [path for path in sorted(own.iterdir()) if re.search(r"(light|rounds).*-seed", path.name)]
    sources = read_sources(folders)
    assert [(entry.label, len(entry.runs)) for entry in sources.entries] == [("light", 2), ("rounds", 2)]
    twice = read_sources([folders[0], shutil.copytree(folders[0], own / "copy" / folders[0].name)])
    assert [entry.label for entry in twice.entries] == [folders[0].name, f"copy/{folders[0].name}"]


def test_a_run_that_is_not_finished_is_reported_as_far_as_it_came(own):
    folder = run_of(own, "light")
    (folder / "summary.json").unlink()
    lines = (folder / "events.jsonl").read_text().splitlines(keepends=True)
    (folder / "events.jsonl").write_text("".join(lines[: len(lines) // 2]) + '{"event": "upl')
    text = report([folder])[0].read_text()
    assert "not finished" in text
    assert 'id="accuracy-trips"' in text
    assert 'id="client-accuracy"' not in text


def test_clients_that_came_from_python_are_left_out_with_a_sentence(tmp_path):
    clients = {f"c{n}": (torch.randn(8, 3), [0, 1] * 4) for n in range(6)}
    td.run(
        model=torch.nn.Linear(3, 2), clients=clients, test=clients["c0"], pace=td.Asynchronous(concurrency=3),
        buffer=td.Buffer(size=2), stop=td.Stop(trips=20), out=tmp_path / "mine",
    )  # fmt: skip
    text = report([tmp_path / "mine"])[0].read_text()
    assert "its data came from Python" in text
    assert 'id="accuracy-trips"' in text


@pytest.mark.parametrize("served", [False, True])
def test_the_clients_of_a_served_run_are_not_made_up_from_its_config(tmp_path, served):
    td.run(
        data={"kind": "digits", "partition": {"kind": "iid", "clients": 8}}, out=tmp_path / "live",
        pace=td.Asynchronous(concurrency=3), buffer=td.Buffer(size=2), stop=td.Stop(trips=20),
    )  # fmt: skip
    if served:
        (tmp_path / "live/status.json").write_text("{}")
    text = report([tmp_path / "live"])[0].read_text()
    assert ("it was served, and the server does not know what its clients hold" in text) is served
    assert ("All devices are about equally fast" in text) is not served
    assert ('id="client-accuracy"' in text) is not served
    assert ("virtual time" in text) is not served
    assert ("computed in" in text) is not served


def test_few_clients_are_not_said_to_be_equal(tmp_path):
    clients = {"kind": "digits", "partition": {"kind": "iid", "clients": 4}}
    td.run(
        data=clients, delay={"kind": "half_normal", "device_spread": 1.0}, out=tmp_path / "few",
        pace=td.Asynchronous(concurrency=3), buffer=td.Buffer(size=2), stop=td.Stop(trips=20),
    )  # fmt: skip
    text = report([tmp_path / "few"])[0].read_text()
    assert "There are fewer than five clients" in text
    (said,) = re.findall(r"Accepted uploads of each client with \w+, by name: ([\d:, ]+)\.", text)
    counts = dict(pair.split(": ") for pair in said.split(", "))
    events = [json.loads(line) for line in (tmp_path / "few/events.jsonl").read_text().splitlines()]
    for name in "0123":
        own = [one for one in events if one["event"] == "upload" and one["client"] == int(name)]
        assert int(counts[name]) == sum(one["accepted"] for one in own)
    assert "equally" not in text


@pytest.mark.parametrize(
    ("staleness", "said"),
    [
        ([0] * 19 + [3], "95% are fresh, and 95 % are at most 0 versions old."),
        ([0] * 9 + [1], "90% are fresh, and 95 % are at most 1 version old."),
        ([0, 1, 2, 7], "25% are fresh, half are at most 1 version old, and 95 % are at most 7 versions old."),
    ],
)
def test_what_is_said_of_staleness_is_true_of_the_counts(tmp_path, staleness, said):
    uploads = [upload(n, n, 0.0, n + 1.0, step=1, staleness=stale) for n, stale in enumerate(staleness)]
    record = read_record(write_events(tmp_path / "events.jsonl", *uploads, step(1)))
    (chart,) = staleness_charts([Series("a", [RunSource(tmp_path, record, {}, None, "")])])
    assert chart.says == f"Of the accepted uploads {said}"


def test_the_report_of_a_private_run(tmp_path):
    config = td.Config.model_validate(
        {
            "data": {"kind": "synthetic", "clients": 400, "examples": 5},
            "pace": {"kind": "asynchronous", "concurrency": 20},
            "buffer": {"size": 10},
            "stop": {"steps": 12},
            "privacy": {"kind": "participation", "epsilon": 8, "delta": 1e-4, "clip": 0.5},
        }
    )
    td.run(config, out=tmp_path / "private")
    text = report([tmp_path / "private"])[0].read_text()
    assert 'id="step-epsilon"' in text
    assert "What is not protected" in text
    assert "keep it where the events are kept" in text


def test_numbers_and_nouns_agree(tmp_path):
    uploads = [upload(n, n, 0.0, n + 1.0, step=2, staleness=1, start_version=1) for n in range(3)]
    record = read_record(write_events(tmp_path / "events.jsonl", *uploads, step(1), step(2)))
    entry = Series("a", [RunSource(tmp_path, record, {}, None, "")])
    (chart,) = staleness_charts([entry])
    assert "at most 1 version old" in chart.says
    assert _lead([entry]) == "1 run, 3 client trips in all, computed in 0 seconds."
    assert _lead([entry, entry]).startswith("2 runs of 2 entries, 6 client trips")


def test_statements_are_escaped():
    text = as_html(
        "# A <b>\n\n> **Void**\n> still\n\n| what | value |\n| --- | --- |\n| `x` | a \\| b |\n\ntext\n"
    )
    assert re.sub(r"\s*\n\s*", "", text) == (
        "<h4>A &lt;b&gt;</h4><blockquote><p><strong>Void</strong>still</p></blockquote><div class='wide'>"
        '<table class="words"><thead><tr><th>what</th><th>value</th></tr></thead>'
        "<tbody><tr><td><code>x</code></td><td>a | b</td></tr></tbody></table></div><p>text</p>"
    )


@pytest.mark.parametrize(
    "nasty",
    [
        "<script>boom()</script>",
        "text <img src=x onerror=boom()> text",
        "[click](javascript:boom())",
        "[click](https://example.org)",
        "![picture](https://example.org/a.png)",
        "<https://example.org>",
        "</table><iframe src=https://example.org></iframe>",
        "[name]: https://example.org\n\n[name]",
        "| a |\n| --- |\n| <b onclick=boom()>x</b> |",
    ],
)
def test_a_statement_cannot_bring_html_links_or_images_into_the_page(nasty):
    tags = set(re.findall(r"<\s*/?\s*([a-zA-Z0-9]+)([^>]*)>", as_html(nasty)))
    assert {name for name, _ in tags} <= {"p", "div", "table", "thead", "tbody", "tr", "th", "td"}
    assert {attributes for _, attributes in tags} <= {"", " class='wide'", ' class="words"'}


def test_labels_do_not_lie_on_each_other():
    places = spread([0.0, 0.01, 0.5, 0.99, 1.0, 1.0], 0.1)
    assert places == sorted(places)
    assert np.diff(places).min() >= 0.1 - 1e-9
    assert 0 <= places[0] <= places[-1] <= 1 + 1e-9
    assert places[2] == 0.5


def test_colours_of_a_chart_follow_the_page():
    with panel() as (figure, axis):
        axis.plot([0, 1], [0, 1], color="#0072B2", label="a")
    svg = Chart("name", "title", "says <this>", figure).drawn().inline()
    assert "stroke: var(--c0)" in svg
    assert "#0072b2" not in svg
    assert "#000000" not in svg
    assert "<title>title. says &lt;this&gt;</title>" in svg


# -- what goes wrong -------------------------------------------------------------------------------


@pytest.fixture
def cli(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "300")

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["tardigrad", "report", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        return ended.value.code or 0, said.out, said.err

    return call


def test_the_command_prints_where_page_and_pictures_are(cli, own):
    code, out, _ = cli(run_of(own, "rounds"), "--out", "page.html")
    assert code == 0
    assert out.splitlines() == ["report: page.html", "pictures: page"]


def damaged(own, name, text):
    (own / name).write_text(text)
    return own


@pytest.mark.parametrize(
    ("spoil", "code", "said"),
    [
        (lambda own: own / "nowhere", 2, "there is no such folder"),
        (lambda own: own.parent, 2, "holds neither a run (events.jsonl) nor a comparison (comparison.json)"),
        (lambda own: damaged(own, "comparison.json", "{"), 3, "comparison.json is damaged"),
        (lambda own: damaged(own, "comparison.json", '{"title": "t"}'), 3, "it has no 'targets'"),
        (lambda own: damaged(own, "tuning.json", "[]"), 3, "tuning.json is damaged"),
        (lambda own: damaged(run_of(own, "light"), "events.jsonl", "nonsense\n"), 3, "line 1: not an event"),
        (lambda own: damaged(run_of(own, "light"), "config.toml", "a = ["), 2, "config.toml: not valid TOML"),
        (lambda own: damaged(run_of(own, "light"), "summary.json", "{}"), 3, "summary.json is damaged"),
    ],
)
def test_folders_that_cannot_be_reported_on(cli, own, spoil, code, said):
    found, out, error = cli(spoil(own), "--out", "new/page.html")
    assert (found, out) == (code, "")
    assert said in error
    assert len(error.splitlines()) == 1
    assert not (own.parent / "new").exists()


def test_a_page_must_be_called_html(cli, own):
    code, _, error = cli(own, "--out", "page.pdf")
    assert code == 2
    assert "a report's name ends in .html" in error
