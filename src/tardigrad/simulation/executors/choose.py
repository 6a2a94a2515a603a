"""Choosing an executor."""

from __future__ import annotations

from tardigrad.data.clients import Clients
from tardigrad.learning.local import Trainer
from tardigrad.simulation.device import Device
from tardigrad.simulation.executors.inline import Inline
from tardigrad.simulation.executors.processes import process_executor
from tardigrad.simulation.executors.protocol import Executor
from tardigrad.simulation.executors.ray.workers import ray_executor
from tardigrad.simulation.executors.vectorised import Vectorised


def make_executor(workers: int | str, device: Device, trainer: Trainer, clients: Clients) -> Executor:
    """Return the executor for a number of workers (0 or 1: this process), or for a text such as "ray:4".

    Raises a ConfigError if the text is malformed, or if Ray is not installed or cannot be started.
    """
    if isinstance(workers, str):
        return ray_executor(workers, trainer, clients)
    if workers > 1:
        return process_executor(trainer, clients, workers)
    if device.clients_at_once > 1:
        return Vectorised(trainer, clients, device.clients_at_once)
    return Inline(trainer, clients)
