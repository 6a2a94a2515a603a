"""The result of a run: pictures, data frames, and what a terminal and a notebook show."""

import io
import sys
from dataclasses import replace

import pytest
import rich.console

import tardigrad as td
from tardigrad.experiments.runs.run_tables import summary_rows


@pytest.fixture(scope="module")
def result():
    data = {"kind": "digits", "partition": {"kind": "iid", "clients": 5}}
    return td.run(data=data, stop={"trips": 10}, evaluation={"every_trips": 5, "held_out": 0.2})


def test_to_pandas_has_a_row_for_each_evaluation(result):
    frame = result.to_pandas()
    assert list(frame["trips"]) == [one.trips for one in result.history]
    assert frame["accuracy"].iloc[-1] == result.accuracy
    assert frame["loss"].tolist() == [one.metric("loss") for one in result.history]
    assert not frame["federated"].any()


def test_to_pandas_without_pandas_says_what_to_install(result, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(td.ConfigError, match="pip install pandas"):
        result.to_pandas()


def test_plot_draws_each_metric_over_trips_and_writes_a_file(result, tmp_path):
    figure = result.plot(tmp_path / "all.svg")
    assert [axis.get_title(loc="left") for axis in figure.axes][:2] == ["accuracy", "loss"]
    line, _ = figure.axes[0].lines
    assert line.get_xdata().tolist() == [one.trips for one in result.history]
    assert line.get_ydata().tolist() == [one.metric("accuracy") for one in result.history]
    assert (tmp_path / "all.svg").read_text().startswith("<?xml")
    assert len(result.plot(metrics=["loss"]).axes) == 1
    assert figure._repr_png_().startswith(b"\x89PNG")
    assert "matplotlib.pyplot" not in sys.modules or not sys.modules["matplotlib.pyplot"].get_fignums()


def test_plot_names_what_it_cannot_draw(result, tmp_path):
    with pytest.raises(td.ConfigError, match=r"no metric 'auc'; the metrics are: .*accuracy"):
        result.plot(metrics=["auc"])
    with pytest.raises(td.ConfigError, match="a picture's name ends in"):
        result.plot(tmp_path / "curves.doc")


def test_terminal_and_notebook_show_the_same_rows(result):
    shown = io.StringIO()
    rich.console.Console(file=shown, width=200).print(result)
    html = result._repr_html_()
    for text in ("client trips", "10", "model sha256", result.model_sha256, "stopped by"):
        assert text in shown.getvalue()
        assert text in html
    assert html.count("<tr>") == shown.getvalue().count("\n") - 2


def test_plot_begins_with_the_main_metric_and_draws_the_baseline(result):
    figure = replace(result, main="loss").plot()
    assert [axis.get_title(loc="left") for axis in figure.axes][:2] == ["loss", "accuracy"]
    curve, line = figure.axes[1].lines
    assert curve.get_label() == "test set"
    assert set(line.get_ydata()) == {result.baseline["metrics"]["accuracy"]}
    assert line.get_label() == "always the commonest class"


def test_shares_are_in_percent_as_their_baseline_is(result):
    rows = dict(summary_rows(result.summary()))
    assert rows["accuracy"] == f"{100 * result.accuracy:.1f} %"
    assert rows["client accuracy"] == f"{100 * result.metrics['client_accuracy']:.1f} %"
    assert rows["baseline"].startswith("accuracy ")
    assert "%" not in rows["loss"]
