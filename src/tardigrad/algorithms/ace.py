"""ACE: "Mitigating Participation Imbalance Bias in Asynchronous Federated Learning" (Chang et al.)."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import PositiveFloat

from tardigrad.algorithms.algorithm import Metrics
from tardigrad.algorithms.ca2fl import CA2FL
from tardigrad.core.state import State
from tardigrad.core.upload import WeightedSum


class ACE(CA2FL):
    """Every upload replaces the last one of its client, and the model moves by the mean of the last uploads
    of *all* clients, so that fast clients count no more than slow ones.

    The paper's server keeps the last upload u_i of every client. It only ever uses their mean u, which an
    upload changes by (new u_i - old u_i) / N. So each client keeps its own u_i and uploads the difference, as
    with CA2FL: the numbers are the same, and the sum over the buffer is enough.
    """

    kind: Literal["ace"] = "ace"  # type: ignore[assignment]
    default_buffer: ClassVar[int] = 1
    tuning_space: ClassVar[dict[str, dict[str, object]]] = {
        "algorithm.lr": {"low": 0.01, "high": 1.0, "log": True},
    }
    lr: PositiveFloat = 0.05
    """The server's learning rate (eta). Every step moves by the mean of all clients, so that a good value is
    well below that of an algorithm whose buffer has several uploads."""
    first_pass: bool = False
    """Whether the first step waits for one upload of every client, so that u is a mean of all from the
    beginning. Otherwise clients that have not come yet count as 0."""

    @property
    def opening(self) -> bool:
        return self.first_pass

    def step(self, state: State, buffer: WeightedSum) -> Metrics:
        change = buffer.change_of_mean("difference", float(state["mass"]))  # (new u_i - old u_i) / N
        state["cache"] = state["cache"] + change  # u, the mean of all u_i
        state["model"] = state["model"] - self.lr * state["cache"]
        return {}
