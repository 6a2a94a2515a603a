"""The precision of sums: short floats (bfloat16, float16) are too coarse for them."""

from __future__ import annotations

import torch
from torch import Tensor


def is_short(dtype: torch.dtype) -> bool:
    """Return whether this is a floating-point type of fewer bits than float32.

    >>> is_short(torch.bfloat16), is_short(torch.float32)
    (True, False)
    """
    return dtype.is_floating_point and dtype.itemsize < 4


def at_least_float32(vector: Tensor) -> Tensor:
    """Return a short float vector as float32; any other vector is returned as it is."""
    return vector.float() if is_short(vector.dtype) else vector
