"""Tensors and a JSON document as bytes, for a database.

>>> import torch
>>> tensors, document = from_bytes(to_bytes({"model": torch.zeros(2)}, {"version": 7}))
>>> tensors["model"], document
(tensor([0., 0.]), {'version': 7})
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from safetensors.torch import load, save
from torch import Tensor


def to_bytes(tensors: Mapping[str, Tensor], document: Mapping[str, object]) -> bytes:
    """Return tensors and document as one safetensors file."""
    stored: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, value in tensors.items():  # one tensor may be there under several names
        value = value.detach().contiguous()
        stored[name] = value.clone() if value.data_ptr() in seen else value
        seen.add(value.data_ptr())
    return save(stored, {"document": json.dumps(document)})


def from_bytes(content: bytes) -> tuple[dict[str, Tensor], dict[str, object]]:
    """Return tensors and document from `to_bytes`."""
    length = int.from_bytes(content[:8], "little")
    document = json.loads(content[8 : 8 + length])["__metadata__"]["document"]
    return load(content), json.loads(document)
