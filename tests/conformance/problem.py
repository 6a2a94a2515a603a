"""The common ground of the conformance tests: quadratic clients, one script of trips, and the package's run.

Client i minimises f_i(x) = 1/2 |A_i x - b_i|^2 with its exact gradient A_i' (A_i x - b_i). The script has
fresh, stale and very stale uploads, one beyond the staleness bound, and clients that are twice in a buffer.
Nothing here is used by the package, and the naive computations use nothing of the package.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

import tardigrad as td
from event_records import records
from tardigrad.experiments.runs.simulation_assembly import build
from tardigrad.learning.heads import Head

CLIENTS, ROWS, SIZE = 7, 5, 6
LOCAL_STEPS, LOCAL_LR = 3, 0.05
BUFFER, BOUND = 3, 6
TOLERANCE = {torch.float32: 2e-5, torch.float64: 1e-9}
"""Relative, of the largest parameter."""


class Quadratic(nn.Module):
    """Outputs A x for the rows of A that it is given."""

    def __init__(self, x: Tensor) -> None:
        super().__init__()
        self.x = nn.Parameter(x.clone())

    def forward(self, rows: Tensor) -> Tensor:
        return rows @ self.x


class SquaredError(Head):
    """1/2 |A x - b|^2, summed over the rows."""

    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return 0.5 * ((outputs - labels) ** 2).sum()

    def metrics(self, outputs) -> dict[str, float]:
        return {"loss": sum(float(self.loss(x, y)) for x, y in outputs)}


_random = np.random.default_rng(20)
A = [_random.normal(size=(ROWS, SIZE)) for _ in range(CLIENTS)]
B = [_random.normal(size=ROWS) + 0.5 * i for i in range(CLIENTS)]
X0 = _random.normal(size=SIZE)


def gradient(client: int, x: np.ndarray) -> np.ndarray:
    """Of f_i at x."""
    return A[client].T @ (A[client] @ x - B[client])


def make_script() -> list[tuple[float, float, int]]:
    """[start, duration, client]: 60 trips. Client 0 is quick and comes twice in one buffer; client 6 is so
    slow that its first upload is beyond the bound."""
    random = np.random.default_rng(5)
    script: list[tuple[float, float, int]] = []
    free = [0.0] * CLIENTS
    slow = [0.3, 1.0, 1.3, 1.7, 2.2, 3.1, 11.0]
    while len(script) < 60:
        client = int(np.argmin(free))
        duration = slow[client] * float(random.uniform(0.7, 1.3))
        script.append((free[client], duration, client))
        free[client] += duration + 0.01
    return sorted(script)


SCRIPT = make_script()


@dataclass(frozen=True)
class Arrival:
    """One upload, as the naive computation sees it."""

    client: int
    start_version: int
    version: int
    accepted: bool

    @property
    def staleness(self) -> int:
        return self.version - self.start_version


def schedule(size: int = BUFFER, bound: int | None = BOUND, script=None) -> list[Arrival]:
    """Who arrives when, from which version: worked out the slow way, from the script alone."""
    script = SCRIPT if script is None else script
    moments = [(start + duration, 0, n) for n, (start, duration, _) in enumerate(script)]
    moments += [(start, 1, n) for n, (start, _, _) in enumerate(script)]
    version, in_buffer, started, arrivals = 0, 0, {}, []
    for _, is_start, n in sorted(moments):
        if is_start:
            started[n] = version
            continue
        accepted = bound is None or version - started[n] <= bound
        arrivals.append(Arrival(script[n][2], started[n], version, accepted))
        if accepted:
            in_buffer += 1
            if in_buffer == size:
                version, in_buffer = version + 1, 0
    return arrivals


def naive_models(move, size: int = BUFFER, bound: int | None = BOUND, ahead=lambda x: x) -> list[np.ndarray]:
    """Every version of the model: `move(x, buffer)` makes the next one, from a list of arrival, start and
    delta. Clients start from `ahead(x)`, and make plain steps along their gradients."""
    models, starts, buffer = [X0], [ahead(X0)], []
    for arrival in schedule(size, bound):
        if not arrival.accepted:
            continue
        start = y = starts[arrival.start_version]
        for _ in range(LOCAL_STEPS):
            y = y - LOCAL_LR * gradient(arrival.client, y)
        buffer.append((arrival, start, start - y))
        if len(buffer) == size:
            models.append(move(models[-1], buffer))
            starts.append(ahead(models[-1]))
            buffer = []
    return models


def run_package(
    algorithm, dtype: torch.dtype, size: int | None = BUFFER, bound: int | None = BOUND, module=Quadratic,
    **settings,
):  # fmt: skip
    """Every version of the model that the package makes, and the simulation itself."""
    options = {
        "pace": td.Scripted(trips=tuple(SCRIPT)),
        "buffer": td.Buffer(size=size, staleness_bound=bound),
        "local": td.Local(steps=LOCAL_STEPS, batch_size=ROWS, lr=LOCAL_LR),
        "stop": td.Stop(trips=len(SCRIPT)),
        "evaluation": td.Evaluation(every_steps=10**6),
    } | settings
    config = td.Config(algorithm=algorithm, **options)
    clients = {i: (A[i], B[i]) for i in range(CLIENTS)}
    simulation = build(
        config, model=module(torch.tensor(X0, dtype=dtype)), clients=clients, head=SquaredError()
    )
    models = [simulation.aggregator.state["model"].double().numpy()]
    for events in records(simulation.engine.run()):
        for event in events:
            if event["event"] == "step":
                models.append(simulation.aggregator.state["model"].double().numpy())
    return models, simulation


def assert_same(models: list[np.ndarray], naive: list[np.ndarray], dtype: torch.dtype) -> None:
    """Every version agrees, and there are enough of them to mean something."""
    assert len(models) == len(naive)
    assert len(models) > 10
    for version, (ours, theirs) in enumerate(zip(models, naive)):
        scale = max(1.0, float(np.abs(theirs).max()))
        difference = float(np.abs(ours - theirs).max()) / scale
        assert difference < TOLERANCE[dtype], f"version {version}: off by {difference:.2e}"
