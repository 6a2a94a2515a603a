"""A run's folder: who may go on with it."""

import pytest

import tardigrad as td
from tardigrad.errors import ConfigError
from tardigrad.experiments.runs.run_folder import SERVER_FILES, RunFolder
from tardigrad.experiments.runs.server_assembly import assemble_server
from tardigrad.service.access.enrolment import LIST
from tardigrad.service.monitor.status import FILE
from tardigrad.service.store.sqlite import JOURNAL, SqliteStore

CONFIG = td.Config(
    data=td.Synthetic(clients=6, examples=5), model=td.MLP(hidden=(4,)), stop=td.Stop(trips=12),
    pace=td.Asynchronous(concurrency=4), buffer=td.Buffer(size=3, most_per_client=3),
)  # fmt: skip


def contents(folder):
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}


def test_simulation_does_not_go_on_with_the_run_of_a_server(tmp_path):
    assembly = assemble_server(CONFIG)
    folder = RunFolder(tmp_path / "run", live=True)
    folder.create(assembly.config, assembly.inputs())
    folder.close()
    SqliteStore(tmp_path / "run").close()
    before = contents(tmp_path / "run")
    with pytest.raises(ConfigError, match="holds the run of a server; `tardigrad serve`"):
        td.run(CONFIG, out=tmp_path / "run", resume=True)
    assert contents(tmp_path / "run") == before


def test_server_does_not_go_on_with_a_finished_simulation(tmp_path):
    td.run(CONFIG, out=tmp_path / "run", snapshot_seconds=0)
    (tmp_path / LIST).touch()
    before = contents(tmp_path / "run")
    assert "snapshot.safetensors" in before
    endpoint = td.Endpoint(port=0, keys=tmp_path, insecure=True)
    with pytest.raises(ConfigError, match="holds a simulated run; give another folder"):
        td.serve(CONFIG, out=tmp_path / "run", endpoint=endpoint)
    assert contents(tmp_path / "run") == before


def test_files_of_a_server_have_the_names_that_it_gives_them():
    assert SERVER_FILES == (JOURNAL, FILE)
