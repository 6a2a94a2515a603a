"""The board and the alerts use metrics that a server has, with labels that it gives them."""

import asyncio
import json
import re
import shutil
import subprocess

import pytest
from deploy_files import DEPLOY, ROOT, documents
from prometheus_client import CollectorRegistry, ProcessCollector
from service_harness import serving

import tardigrad as td
from tardigrad.core.outcomes import Reason
from tardigrad.service.monitor.metrics import EVALUATED, MetricsCollector
from tardigrad.service.protocol.refusals import Cause

MONITORING = DEPLOY / "monitoring"
BOARD = json.loads((MONITORING / "grafana" / "tardigrad.json").read_text())
RULES = documents(MONITORING / "alerts.yml")[0]["groups"][0]["rules"]
TEST = documents(MONITORING / "alerts-test.yml")[0]["tests"]
EXPRESSIONS = [target["expr"] for panel in BOARD["panels"] for target in panel["targets"]]
EXPRESSIONS += [rule["expr"] for rule in RULES]
CONFIG = td.Config(
    data=td.Digits(partition=td.IID(clients=2)), model=td.MLP(hidden=(4,)), algorithm=td.FedBuff(),
    pace=td.Asynchronous(concurrency=2), buffer=td.Buffer(size=1), stop=td.Stop(trips=9),
)  # fmt: skip


@pytest.fixture(scope="module")
def samples(tmp_path_factory):
    """The samples of a server before its first client: names, with the values of their labels."""

    async def collected():
        folder = tmp_path_factory.mktemp("metrics")
        async with serving(CONFIG, folder) as running:
            collector = MetricsCollector(
                running.coordinator, running.server.servicer, folder, {"ca.pem": 1.0}
            )
            found = await asyncio.to_thread(lambda: list(collector.collect()))
        return [*found, *ProcessCollector(registry=CollectorRegistry()).collect()]

    found = {}
    for family in asyncio.run(collected()):
        for sample in family.samples:
            found.setdefault(sample.name, []).append(sample.labels)
    for name in EVALUATED:  # these come with the first evaluation (test_compose_walk.py sees them)
        found[f"tardigrad_evaluation_{name}"] = [{}]
    found["tardigrad_helper_away_seconds"] = [{}]  # in a secure run
    return found


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_names_of_metrics_exist(samples, expression):
    names = set(re.findall(r"\b(?:tardigrad|process)_\w+", expression))
    assert names or expression.startswith("up{")
    assert names <= set(samples)


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_values_of_labels_exist(samples, expression):
    for name, selector in re.findall(r"(tardigrad_\w+)\{([^}]*)\}", expression):
        for label, operator, wanted in re.findall(r'(\w+)(=~?)"([^"]*)"', selector):
            known = {labels[label] for labels in samples[name]}
            for value in wanted.split("|") if operator == "=~" else [wanted]:
                assert any(re.fullmatch(value, one) for one in known), (label, value)


def test_every_metric_is_on_the_board(samples):
    shown = set(re.findall(r"\btardigrad_\w+", "\n".join(EXPRESSIONS)))
    families = {
        re.sub(r"_(bucket|sum|count)$", "", name) for name in samples if name.startswith("tardigrad_")
    }
    missing = families - {re.sub(r"_(bucket|sum|count)$", "", name) for name in shown}
    assert missing == set()


def test_legends_name_labels_that_exist(samples):
    """The label `run` is there if a server has several; Grafana shows nothing for a label that is missing."""
    for panel in BOARD["panels"]:
        for target in panel["targets"]:
            wanted = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) - {"run"}
            for name in re.findall(r"\b(?:tardigrad|process)_\w+", target["expr"]):
                assert all(wanted <= set(labels) for labels in samples[name])


def test_counters_of_refusals_begin_with_zero(samples):
    """Otherwise Prometheus would see no increase in the first refusal."""
    assert {labels["why"] for labels in samples["tardigrad_requests_refused_total"]} == {*Cause}
    outcomes = {labels["outcome"] for labels in samples["tardigrad_uploads_total"]}
    assert outcomes >= {"accepted", Reason.STALE, Reason.NORM, Reason.OUTLIER}


def test_every_alert_has_a_test_a_remedy_and_says_what_is_wrong():
    names = [rule["alert"] for rule in RULES]
    tested = {
        sample["labels"].split('"')[1]
        for sample in TEST[-1]["promql_expr_test"][0]["exp_samples"]
    }  # fmt: skip
    assert tested == set(names)
    assert len(names) == len(set(names))
    table = (ROOT / "docs" / "operations.md").read_text().split("## When an alert fires")[1].split("\n## ")[0]
    assert [name for name in names if not re.search(rf"^\| .*\b{name}\b.* \|", table, re.M)] == []
    for rule in RULES:
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["annotations"]["summary"].endswith(".")


def test_panels_of_the_board_do_not_overlap():
    places = [tuple(panel["gridPos"][key] for key in "xywh") for panel in BOARD["panels"]]
    covered = [(x + i, y + j) for x, y, w, h in places for i in range(w) for j in range(h)]
    assert len(covered) == len(set(covered))
    assert max(x for x, _ in covered) < 24
    assert len({panel["id"] for panel in BOARD["panels"]}) == len(places)
    (source,) = documents(MONITORING / "grafana" / "datasource.yml")[0]["datasources"]
    assert {panel["datasource"]["uid"] for panel in BOARD["panels"]} == {source["uid"]}


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool (the Debian package prometheus)")
@pytest.mark.parametrize(
    "words", [("check", "config", "prometheus.yml"), ("test", "rules", "alerts-test.yml")], ids=" ".join
)
def test_promtool_accepts(words):
    done = subprocess.run(["promtool", *words], cwd=MONITORING, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
