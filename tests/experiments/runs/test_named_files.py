"""Files of data that a config names are part of what identifies a run."""

import os

import tardigrad as td
from tardigrad.experiments.compare.pool import fingerprint
from tardigrad.experiments.runs.fingerprints import named_files


def test_changed_table_start_and_preparation_are_noticed(tmp_path):
    files = {name: tmp_path / name for name in ("a.csv", "w.safetensors", "preparation.json")}
    for file in files.values():
        file.write_text("1")
    config = td.Config(
        data={
            "kind": "files", "path": str(files["a.csv"]),
            "prepare": {"kind": "standard", "constants": str(files["preparation.json"])},
        },
        model={"kind": "mlp", "start": str(files["w.safetensors"])},
    )  # fmt: skip
    seen = {fingerprint(config)}
    for number, file in enumerate(files.values(), start=2):
        file.write_text("2")
        os.utime(file, ns=(number, number))  # also where the clock of the disk is coarse
        seen.add(fingerprint(config))
        assert len(seen) == number
    assert set(named_files(config)) == {
        "what data.path holds", "what data.prepare.constants holds", "what model.start holds",
    }  # fmt: skip
