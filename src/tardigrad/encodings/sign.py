"""A thirty-second of the bytes: one bit for each number."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from tardigrad.encodings.blocks import BlockEncoding


class Sign(BlockEncoding):
    """One bit for each number, its sign, times the mean magnitude of its block.

    It is not right on average, so clients keep what it loses and add it to their next upload ("Error Feedback
    Fixes SignSGD and other Gradient Compression Schemes").
    """

    kind: Literal["sign"] = "sign"
    codes_per_item: ClassVar[int] = 8
    error_feedback: bool = True
    """Whether each client keeps what an encoding loses, and adds it to its next upload."""

    def _scales(self, rows: Tensor) -> Tensor:
        # numpy's sums do not depend on the number of threads
        means = np.abs(rows.numpy()).mean(axis=1, dtype=np.float64)
        return torch.from_numpy(means).float()

    def _codes(self, rows: Tensor, scales: Tensor, random: np.random.Generator) -> Tensor:
        return torch.from_numpy(np.packbits((rows >= 0).numpy(), bitorder="little"))

    def _values(self, codes: Tensor) -> Tensor:
        bits = torch.from_numpy(np.unpackbits(codes.numpy(), bitorder="little"))
        return bits.float().mul_(2).sub_(1)
