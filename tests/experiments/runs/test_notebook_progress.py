"""The progress bar of td.run, in a real notebook kernel and elsewhere."""

import io
import sys

import nbclient
import nbformat
import rich.console

import tardigrad as td
from tardigrad.experiments.runs.notebook_progress import progress_bars
from tardigrad.experiments.runs.progress import Bar

CELL = """
import tardigrad as td
data = {"kind": "digits", "partition": {"kind": "iid", "clients": 5}}
result = td.run(data=data, stop={"trips": 10}, evaluation={"every_trips": 5})
result
"""


def test_a_notebook_shows_a_bar_and_then_the_result(tmp_path):
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(CELL)])
    nbclient.NotebookClient(notebook, timeout=600, startup_timeout=600, kernel_name="python3").execute(
        cwd=str(tmp_path)
    )
    bar, shown = notebook.cells[0].outputs
    assert bar.output_type == "display_data"
    assert '<progress value="1.000" max="1"' in bar.data["text/html"]
    assert "10 trips" in bar.data["text/plain"]
    assert "client trips" in shown.data["text/html"]


def test_a_program_shows_a_bar_on_a_terminal_or_if_it_is_wanted(monkeypatch):
    assert progress_bars(None) == ()
    assert [type(bar) for bar in progress_bars(True)] == [Bar]
    monkeypatch.setattr(rich.console.Console, "is_terminal", True)
    assert [type(bar) for bar in progress_bars(None)] == [Bar]
    assert progress_bars(False) == ()


def test_a_bar_does_not_change_the_bits(monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    settings = {
        "data": {"kind": "digits", "partition": {"kind": "iid", "clients": 5}},
        "stop": {"trips": 10},
        "evaluation": {"every_trips": 5},
    }
    shown, hidden = (td.run(**settings, progress=progress) for progress in (True, False))
    assert shown.model_sha256 == hidden.model_sha256
    assert shown.history == hidden.history
