"""An algorithm of one's own: FedBuff that moves by the sign of the mean.

tardigrad run config.toml --set algorithm.kind=examples/own_algorithm.py:SignBuff --set algorithm.lr=0.002
"""

from pydantic import PositiveFloat

import tardigrad as td


class SignBuff(td.SumOnly):
    """Every coordinate moves by lr, whichever way the buffer's mean points."""

    lr: PositiveFloat = 0.002
    """How far each coordinate moves."""

    def step(self, state, buffer):
        state["model"] = state["model"] - self.lr * buffer.mean().sign()
        return {}
