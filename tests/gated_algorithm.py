"""An algorithm that waits in the midst of a run, so that a test can stop the run before it is through."""

GATED = """
import itertools, time
from pathlib import Path
import tardigrad as td

steps = itertools.count(1)

class Gated(td.FedBuff):
    def step(self, state, buffer):
        number = next(steps)
        while number >= {step} and Path({gate!r}).exists():
            time.sleep(0.01)
        return super().step(state, buffer)
"""


def gated_algorithm(folder, step):
    """Write the file of the algorithm; return how a config names it, and the gate: while this file exists,
    each process waits in its step of that number, of all its runs together."""
    gate = folder / "gate"
    gate.touch()
    (folder / "gated.py").write_text(GATED.format(step=step, gate=str(gate)))
    return f"{folder}/gated.py:Gated", gate
