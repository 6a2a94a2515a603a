"""The arenas of the memory allocator, counted in a process of their own, because the limit stays."""

import platform
import subprocess
import sys

import pytest

COUNT = """
import ctypes, sys, threading
from tardigrad.service.server.malloc_arenas import limit_arenas

if sys.argv[1] == "limited":
    limit_arenas()
together = threading.Barrier(9)

def allocate():
    bytearray(100_000)
    together.wait()
    together.wait()

threads = [threading.Thread(target=allocate) for _ in range(8)]
for thread in threads:
    thread.start()
together.wait()
libc = ctypes.CDLL(None)
libc.fopen.restype = ctypes.c_void_p
file = ctypes.c_void_p(libc.fopen(sys.argv[2].encode(), b"w"))
libc.malloc_info(0, file)
libc.fclose(file)
together.wait()
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the allocator is not glibc's")
def test_threads_of_a_server_share_a_few_arenas(tmp_path):
    found = {}
    for how in ("limited", "not limited"):
        subprocess.run([sys.executable, "-c", COUNT, how, str(tmp_path / how)], check=True)
        found[how] = (tmp_path / how).read_text().count("<heap nr=")
    assert found["limited"] <= 2 < found["not limited"]
