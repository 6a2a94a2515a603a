"""The processor time of a process, which distinguishes a slow worker from one that hangs."""

from __future__ import annotations

import math
import os
from pathlib import Path


def processor_seconds(pid: int) -> float:
    """Return the user and system time of a process of this machine, or infinity if it cannot be read.

    >>> processor_seconds(os.getpid()) > 0
    True
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return math.inf
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
