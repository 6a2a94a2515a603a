"""One thread a process, for two are many times slower on small batches; and the command, for tests."""

import logging
import os
import signal
import sys

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import pytest
from hypothesis import settings

from forked_command import Commands

settings.register_profile("suite", deadline=None, derandomize=True, database=None)
settings.load_profile("suite")

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # of a shell that runs the tests in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)  # commands that tests start would inherit it

LONG = {
    "test_reproduce.py", "test_contract.py", "test_ray.py", "test_kills.py", "test_tune.py", "test_run.py",
    "test_compare.py", "test_write.py", "test_quickstart.py", "test_network_partition.py", "test_trace.py",
    "test_sites_with_tables.py", "test_service_commands.py", "test_norm_limits.py", "test_page.py",
    "test_tutorials.py", "test_site.py",
}  # fmt: skip
"""Files that take half a minute or more. They come first, so that no worker ends alone with one of them."""


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: item.path.name not in LONG)  # a stable order


@pytest.fixture(autouse=True)
def own_logging():
    """Put logging back as it was: `serve` and `join` in this process log to the standard error that pytest
    closes at the end of the test."""
    root, ours = logging.getLogger(), logging.getLogger("tardigrad")
    handlers, level, our_level = root.handlers[:], root.level, ours.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    ours.setLevel(our_level)


@pytest.fixture
def cli(monkeypatch, capsys, tmp_path):
    """Run the command in an empty folder; exit code, standard output, standard error."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")

    from tardigrad.cli import main

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["tardigrad", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        return ended.value.code or 0, said.out, said.err

    return call


@pytest.fixture(scope="session")
def commands():
    """Starts the command in a process of its own, without the seconds that imports take."""
    with Commands() as started:
        yield started
