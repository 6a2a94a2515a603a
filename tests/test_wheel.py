"""The wheel: what an install without the repository has, and that it works in an empty folder."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Build the wheel from a copy, so that nothing is written into the repository."""
    copy = tmp_path_factory.mktemp("project")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "src", copy / "src", ignore=ignored)
    build = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        "dist",
        ".",
    ]
    subprocess.run(build, cwd=copy, check=True, capture_output=True)
    (file,) = (copy / "dist").glob("tardigrad-*.whl")
    return file


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """Install the wheel into a folder of its own; return a function that runs commands in an empty folder."""
    target, empty = tmp_path_factory.mktemp("installed"), tmp_path_factory.mktemp("empty")
    zipfile.ZipFile(wheel).extractall(target)
    environment = os.environ | {"PYTHONPATH": str(target)}

    def run(code, *arguments):
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments],
            cwd=empty,
            env=environment,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    where = run("import tardigrad; print(tardigrad.__file__)").strip()
    assert Path(where).is_relative_to(target)
    return run


MAIN = "from tardigrad.cli import main; main()"


def test_the_wheel_has_every_file_of_the_package(wheel):
    there = set(zipfile.ZipFile(wheel).namelist())
    files = (file for file in (ROOT / "src" / "tardigrad").rglob("*") if file.is_file())
    wanted = {str(file.relative_to(ROOT / "src")) for file in files if file.suffix not in (".pyc", ".so")}
    assert "tardigrad/experiments/library/fedbuff/table1.toml" in wanted
    assert "tardigrad/py.typed" in wanted
    assert wanted - there == set()


def test_demo_works_from_the_wheel_in_an_empty_folder(installed):
    found = json.loads(installed(MAIN, "demo", "--short", "--json", "-q"))
    assert [row["entry"] for row in found["rows"]] == ["FedBuff", "FedAsync", "FedAvgM", "FedAvg"]
    assert not any(row["failed"] for row in found["rows"])
    assert found["report"] == "runs/demo/report.html"


def test_reproduce_and_init_work_from_the_wheel_in_an_empty_folder(installed):
    listed = {one["name"] for one in json.loads(installed(MAIN, "reproduce", "--json"))}
    assert {"fedbuff/table1", "fedasync/figures1-6", "masfl/figure1"} <= listed
    assert "Digits, 100 clients" in installed(MAIN, "init", "mine.toml", "--example", "demo") + installed(
        "import pathlib; print(pathlib.Path('mine.toml').read_text())"
    )


def test_documents_list_the_extras_of_the_package():
    extras = set(PROJECT["optional-dependencies"])
    contributing = (ROOT / "CONTRIBUTING.md").read_text()
    listed = set(re.findall(r"^\| (?:extra )?([a-z-]+)(?::| \|)", contributing, re.MULTILINE))
    assert extras <= listed, "CONTRIBUTING.md has a line for each extra"
    named = {
        name
        for page in [*ROOT.glob("docs/*.md"), ROOT / "README.md"]
        for group in re.findall(r"(?:tardigrad|\.)\[([a-z,-]+)\]", page.read_text())
        for name in group.split(",")
    }
    assert named
    assert named <= extras, "a document names an extra that does not exist"
