"""A run whose guarantee is void says so wherever it shows an epsilon."""

import json
import re

import pytest
from rich.console import Console

import tardigrad as td
from tardigrad.core.events import ModelMoved
from tardigrad.experiments.report.write import report
from tardigrad.experiments.runs.progress import ProgressText
from tardigrad.experiments.runs.result import result_of
from tardigrad.experiments.runs.run_folder import RunFolder
from tardigrad.experiments.runs.run_tables import show_run
from tardigrad.experiments.runs.server_assembly import build_server
from tardigrad.experiments.runs.simulation_assembly import build
from tardigrad.privacy.settings import LocalPrivacy, Participation, PoissonSampling
from tardigrad.service.server.run_server import ServedRun

PARTICIPATION = {"kind": "participation", "participations": 6, "separation": 1, "epsilon": 8.0}
LOCAL = {"kind": "local", "participations": 6, "epsilon": 8.0}
POISSON = {"kind": "poisson", "epsilon": 8.0}
SAMPLED = {"pace": {"kind": "poisson", "probability": 0.2}, "buffer": {}}
FIXED = {"buffer": {"size": 5, "once_per_client": True}}
VOID = {
    "seed": (PARTICIPATION | {"noise_from": "seed"}, {}, "noise_from = 'seed'"),
    "no noise": (PARTICIPATION | {"epsilon": None, "noise_multiplier": 0.0}, {}, "no noise was added"),
    "local seed": (LOCAL | {"noise_from": "seed"}, {}, "noise_from = 'seed'"),
    "sampled by the seed": (POISSON | {"noise_from": "seed"}, SAMPLED, "who joined was drawn from the seed"),
    "emulated": (POISSON | {"emulated_cohort": 5000}, SAMPLED, "cohort of 5,000"),
    "assumed": (POISSON | {"sampling_rate": 0.1}, FIXED, "assumed and not made"),
    "another rate": (POISSON | {"sampling_rate": 0.1}, SAMPLED, "assumed and not made"),
}
KEPT = {
    "participation": (PARTICIPATION, {}),
    "local": (LOCAL, {}),
    "poisson": (POISSON, SAMPLED),
}
each_void = pytest.mark.parametrize("name", VOID)
each_kept = pytest.mark.parametrize("name", KEPT)


def config(privacy, settings):
    values = {
        "data": {"kind": "synthetic", "clients": 30, "examples": 6},
        "model": {"kind": "mlp", "hidden": [4]},
        "pace": {"kind": "asynchronous", "concurrency": 10},
        "buffer": {"size": 5},
        "stop": {"steps": 6},
        "privacy": {key: value for key, value in privacy.items() if value is not None},
    }
    return td.Config.model_validate(values | settings)


def shown(folder):
    console = Console(record=True, width=200)
    show_run(folder, console)
    return console.export_text()


@each_void
def test_a_void_guarantee_is_marked_everywhere(name, tmp_path):
    privacy, settings, reason = VOID[name]
    settled = config(privacy, settings)
    result = td.run(settled, out=tmp_path / "run")
    assert reason in result.privacy_void
    assert json.loads((tmp_path / "run/summary.json").read_text())["privacy_void"] == result.privacy_void
    assert result_of(RunFolder(tmp_path / "run")).privacy_void == result.privacy_void
    statement = (tmp_path / "run/privacy.md").read_text()
    (promise,) = [line for line in statement.splitlines() if "can hardly tell" in line]
    assert promise.startswith(f"**This run promises nothing, because {result.privacy_void}.**")
    (epsilon,) = [line for line in statement.splitlines() if line.startswith("| epsilon |")]
    assert "VOID" in epsilon
    lines = shown(tmp_path / "run").splitlines()
    assert any("privacy void" in line and reason in line for line in lines)
    if result.epsilon is not None:
        assert any("epsilon" in line and "VOID" in line for line in lines)
    page = report([tmp_path / "run"])[0].read_text()
    assert f"epsilon is void, because {result.privacy_void}".replace("'", "&#x27;") in page
    assert (f"{result.epsilon:.3g} (void)" if result.epsilon is not None else ">void<") in page


@each_kept
def test_valid_guarantee_is_not_marked_void(name, tmp_path):
    result = td.run(config(*KEPT[name]), out=tmp_path / "run")
    assert result.privacy_void is None
    assert json.loads((tmp_path / "run/summary.json").read_text())["privacy_void"] is None
    page = report([tmp_path / "run"])[0].read_text()
    page = re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)  # void is a word of JavaScript
    for text in ((tmp_path / "run/privacy.md").read_text(), shown(tmp_path / "run"), page):
        assert "void" not in text.lower().replace("avoid", "")


def test_a_run_without_privacy_has_no_void_guarantee():
    assert td.run(config(PARTICIPATION, {}).model_copy(update={"privacy": None})).privacy_void is None


def test_progress_bar_marks_a_void_guarantee():
    step = ModelMoved(version=3, trips=30, time=1.0, metrics={"epsilon": 1.234})
    for cases, mark in ((VOID, " (VOID)"), (KEPT, "")):
        for privacy, settings, *_ in cases.values():
            text = ProgressText(config(privacy, settings).resolved(30), [])
            text.counts.see([step])
            assert text.fields()["epsilon"] == f"epsilon 1.23{mark}"


def test_a_summary_of_an_earlier_version_can_still_be_read(tmp_path):
    td.run(config(PARTICIPATION, {}), out=tmp_path / "run")
    file = tmp_path / "run/summary.json"
    summary = json.loads(file.read_text())
    del summary["privacy_void"]
    file.write_text(json.dumps(summary))
    assert result_of(RunFolder(tmp_path / "run")).privacy_void is None
    assert "epsilon" in shown(tmp_path / "run")


def test_command_says_that_the_guarantee_is_void(cli, tmp_path):
    (tmp_path / "void.toml").write_text(config(*VOID["seed"][:2]).to_toml())
    code, out, _ = cli("run", "void.toml")
    assert code == 0
    assert "VOID: this run is not private" in out
    code, out, _ = cli("run", "void.toml", "--json")
    assert "noise_from = 'seed'" in json.loads(out.splitlines()[-1])["privacy_void"]


def test_served_run_says_that_the_guarantee_is_void(tmp_path):
    from tardigrad.experiments.runs.hosted_run import finish

    settled = config(*VOID["seed"][:2])
    run = build_server(settled)
    directory = RunFolder(tmp_path / "run", live=True)
    directory.create(run.assembly.config, run.assembly.inputs())
    model = run.plan.aggregator.evaluated_model
    served = ServedRun(reason="steps", model=model, trips=30, version=6, time=1.0)
    finish(run.assembly, directory, served, 1.0)
    directory.close()
    assert "noise_from = 'seed'" in directory.summary["privacy_void"]
    assert "This run promises nothing" in (tmp_path / "run/privacy.md").read_text()


@pytest.mark.parametrize(
    "privacy", [POISSON | {"sampling_rate": 0.1}, POISSON | {"sampling_rate": 0.1, "emulated_cohort": 500}]
)
def test_server_does_not_claim_that_clients_are_sampled(privacy):
    with pytest.raises(td.ConfigError, match=r"privacy\.kind: 'poisson' rests on .* use 'participation'"):
        build_server(config(privacy, FIXED))


def test_every_kind_of_privacy_knows_whether_it_is_void():
    for privacy in (
        Participation(epsilon=1.0), LocalPrivacy(epsilon=1.0), PoissonSampling(epsilon=1.0, sampling_rate=0.1)
    ):  # fmt: skip
        reason = privacy.void(None, td.Buffer())
        assert (reason is None) == (privacy.kind != "poisson")
    assert build(config(*KEPT["poisson"])).guarantee.void is None
