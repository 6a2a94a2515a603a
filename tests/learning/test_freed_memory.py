"""Freed memory stays in the process: the next minibatch finds it there, without page faults."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

FAULTS = """
import ctypes, resource

import torch

from tardigrad.learning.freed_memory import MMAP_THRESHOLD, TRIM_THRESHOLD, freed_memory_kept

def count():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(50):
        ones = [torch.ones(8 * 2**18) for _ in range(3)]  # 8 MB each
        del ones
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

for name in TRIM_THRESHOLD, MMAP_THRESHOLD:  # otherwise it is chance what glibc keeps
    ctypes.CDLL(None).mallopt(name, 2**17)
print(count())
with freed_memory_kept():
    count()
    print(count())
"""

glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other allocators are left alone")


def faults(**environment: str) -> list[int]:
    """Return how many page faults 50 steps took that allocate 24 MB each and free it, in a new process: by
    default, and while freed memory is kept."""
    command = [sys.executable, "-c", FAULTS]
    env = {"OMP_NUM_THREADS": "1", **environment}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    return [int(line) for line in done.stdout.split()]


@glibc
def test_what_a_step_frees_is_there_for_the_next() -> None:
    usual, kept = faults()
    assert usual > 50 * 1000
    assert kept < 50


@glibc
def test_settings_of_the_user_come_first() -> None:
    _, kept = faults(MALLOC_TRIM_THRESHOLD_="131072")
    assert kept > 50 * 1000
