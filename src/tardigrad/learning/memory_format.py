"""Choosing between channels last and contiguous tensors: the first is faster, the second always works."""

from __future__ import annotations

import torch
from torch import Tensor

from tardigrad.learning.examples import Features
from tardigrad.learning.flat import FlatModule
from tardigrad.learning.gradient import Gradient
from tardigrad.learning.heads import Head


def choose_memory_format(flat: FlatModule, head: Head, features: Features, labels: Tensor) -> None:
    """Give the module contiguous tensors if it does not work with channels last, as a module with `.view`
    after a convolution does not.

    Both are tried on these examples, forward and backward. Channels last is kept if it gives the same loss
    and gradient to rounding. It is also kept if neither works, so that the caller sees the error.
    """
    if not flat.channels_last:
        return
    start = flat.shared.clone()
    with torch.random.fork_rng(devices=[]):
        fast = _tried(flat, head, features, labels)
        flat.use_contiguous(True)
        plain = _tried(flat, head, features, labels)
    if plain is None or (fast is not None and _close(fast, plain)):
        flat.use_contiguous(False)
    with torch.no_grad():
        flat.load(start, {})
        flat.gradient.zero_()


def _tried(flat: FlatModule, head: Head, features: Features, labels: Tensor) -> Tensor | None:
    """Return the loss and the gradient for these examples, or None if the module does not work with them."""
    gradient, prepared = Gradient(flat, head, trace=False), flat.prepared(features)
    try:
        flat.train()
        gradient(prepared, labels)  # only for errors: what dropout draws depends on the format
        with torch.no_grad():
            flat.load(flat.shared, {})
        flat.module.eval()
        loss = float(gradient(prepared, labels))
    except Exception:  # a user's module may fail in any way
        return None
    return torch.cat([torch.tensor([loss]), flat.gradient.cpu().double()])


def _close(one: Tensor, other: Tensor) -> bool:
    """Whether two losses and gradients agree to rounding. One comparison for all coordinates, because
    rounding can change the way through a maximum and with it some of them entirely."""
    return bool(torch.linalg.vector_norm(one - other) <= 0.01 * torch.linalg.vector_norm(other) + 1e-6)
