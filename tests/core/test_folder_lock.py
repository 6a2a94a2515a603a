"""The lock of a run's folder."""

import subprocess
import sys

import pytest

from tardigrad.core.folder_lock import FolderLock
from tardigrad.errors import ConfigError

HOLD = """
import os, sys
from pathlib import Path
from tardigrad.core.folder_lock import FolderLock
lock = FolderLock(Path(sys.argv[1]))
lock.acquire()
if os.fork() == 0:  # a worker, which lives until our end of the pipe is closed
    print("locked", flush=True)
    sys.stdin.read()
    os._exit(0)
if sys.argv[2] == "die":
    os.kill(os.getpid(), 9)
os.wait()
"""


def holder(folder, what):
    """Start a process that locks the folder, and wait until its worker runs."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, folder, what], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "locked\n"
    return process


def test_folder_that_another_process_has_locked_is_refused(tmp_path):
    with holder(tmp_path, "live"), pytest.raises(ConfigError, match="somebody else is running it right now"):
        FolderLock(tmp_path).acquire()


def test_workers_of_a_killed_run_do_not_keep_the_folder_locked(tmp_path):
    with holder(tmp_path, "die") as process:
        assert process.wait() == -9
        lock = FolderLock(tmp_path)
        lock.acquire()  # although the worker lives
        lock.release()
        process.stdin.close()
        assert process.stdout.read() == "", "the worker has ended"


def test_second_lock_in_the_same_process_is_refused_and_the_first_is_kept(tmp_path):
    first = FolderLock(tmp_path)
    first.acquire()
    with pytest.raises(ConfigError, match="somebody else is running it right now"):
        FolderLock(tmp_path).acquire()
    code = "import sys; from pathlib import Path; from tardigrad.core.folder_lock import *\n"
    code += "FolderLock(Path(sys.argv[1])).acquire()"
    other = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True)
    assert "somebody else is running it right now" in other.stderr
    first.release()
    FolderLock(tmp_path).acquire()
    FolderLock(tmp_path).release()  # releases nothing: it holds nothing


def test_folder_that_cannot_be_written_to_is_named(tmp_path):
    with pytest.raises(ConfigError, match="nowhere: cannot be written to"):
        FolderLock(tmp_path / "nowhere").acquire()
