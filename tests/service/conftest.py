"""Fixtures for the tests of the service."""

import shutil
import subprocess

import pytest
from service_harness import PATIENCE

from tardigrad.service.access import tls_probe
from tardigrad.service.client import connection, participant
from tardigrad.service.monitor import metrics


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """Clients wait longer for an answer than they do in earnest, because a busy machine may be slow."""
    for module, name in (
        (connection, "SHORT_SECONDS"), (connection, "POLL_SECONDS"), (connection, "IDLE_SECONDS"),
        (participant, "GIVE_BACK_SECONDS"), (tls_probe, "SECONDS"), (metrics, "PATIENCE"),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, PATIENCE)


@pytest.fixture
def small_disk(tmp_path):
    """A file system of one megabyte."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounting = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(mounting, capture_output=True).returncode:
        pytest.skip("a small file system can be mounted by root only")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.fixture
def in_files(monkeypatch):
    """Uploads and old versions are kept as those of large models, whatever their size."""
    for name in (
        "server.upload_body.IN_MEMORY", "server.upload_body.UNDER_WAY", "server.model_state.LARGE",
        "server.upload_reception.TOGETHER",
        "server.rpc.LARGEST_KEPT", "store.upload_files.IN_MEMORY", "store.upload_files.LARGEST_SPARE",
    ):  # fmt: skip
        monkeypatch.setattr(f"tardigrad.service.{name}", 64)


@pytest.fixture(params=["together", "in memory", "in files"])
def where_large(request, monkeypatch):
    """How uploads and old versions are kept: as those of small models, larger ones, or large ones."""
    if request.param == "in files":
        request.getfixturevalue("in_files")
    elif request.param == "in memory":
        monkeypatch.setattr("tardigrad.service.server.upload_reception.SMALL", 0)
    return request.param
