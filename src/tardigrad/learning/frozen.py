"""The frozen part of a module: what is neither trained nor sent, so that everybody must have the same."""

from __future__ import annotations

import hashlib

import torch
from torch import nn

from tardigrad.learning.flat import saved_tensors
from tardigrad.learning.normalisation import trained_statistics


def frozen_digest(module: nn.Module) -> bytes:
    """Return a digest of the frozen parameters of a module, and of its buffers that are saved.

    The running statistics of layers that are trained are left out, because no two clients have the same.

    >>> module = nn.Linear(2, 1)
    >>> before = frozen_digest(module)
    >>> with torch.no_grad():
    ...     _ = module.weight.fill_(1.0)  # a parameter that is trained
    >>> frozen_digest(module) == before
    True
    """
    trained = {name for name, p in module.named_parameters(remove_duplicate=False) if p.requires_grad}
    for prefix, layer in trained_statistics(module).items():
        trained |= {f"{prefix}.{name}" if prefix else name for name, _ in layer.named_buffers(recurse=False)}
    sha = hashlib.sha256()
    for name, value in saved_tensors(module).items():
        if name not in trained:
            sha.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
            sha.update(value.cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return sha.digest()
