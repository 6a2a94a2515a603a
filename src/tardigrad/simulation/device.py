"""The device that models are trained on: the CPU or a GPU."""

from __future__ import annotations

import re

import torch
from pydantic import PositiveInt, field_validator

from tardigrad.core.setting import Setting
from tardigrad.errors import ConfigError


class Device(Setting):
    """The device that holds models and examples.

    It is part of a run's config, because the numbers of devices differ by rounding.

    >>> Device().torch_device()
    device(type='cpu')
    """

    kind: str = "cpu"
    """cpu, or cuda for the first GPU, cuda:1 for the second."""
    clients_at_once: PositiveInt = 1
    """How many trips are trained together, if their minibatches have the same sizes. More than 1 is meant for
    GPUs: the numbers agree with those of 1 to rounding, and it is not faster on a CPU."""

    @field_validator("kind")
    @classmethod
    def _known(cls, kind: str) -> str:
        if not re.fullmatch(r"cpu|cuda(:\d+)?", kind):
            raise ValueError("must be cpu, cuda, or cuda:1 and so on")
        return kind

    def torch_device(self) -> torch.device:
        """Return the device of torch, or raise a ConfigError that lists the available ones."""
        if self.kind == "cpu":  # without initialising CUDA, because workers are forked
            return torch.device("cpu")
        there = [f"cuda:{number}" for number in range(torch.cuda.device_count())]
        if self.kind not in (*there, *(["cuda"] if there else [])):
            raise ConfigError(
                f"device.kind: there is no {self.kind} here that torch {torch.__version__} can use; "
                f"there is {', '.join(['cpu', *there])}"
            )
        return torch.device(self.kind)

    def check_workers(self, workers: int | str) -> None:
        """Raise a ConfigError if workers, which train one trip at a time on CPUs, cannot use this device."""
        if workers and self != Device():
            raise ConfigError(
                f"workers: they train on CPUs, one trip at a time each, which does not go with device.kind "
                f"{self.kind!r} and device.clients_at_once {self.clients_at_once}; "
                f"give 0 or 'auto', not {workers!r}"
            )
