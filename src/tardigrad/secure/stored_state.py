"""Tensors and a JSON document as the parts of a file.

>>> import torch
>>> tensors, document = from_bytes(b"".join(to_parts({"model": torch.zeros(2)}, {"version": 7})))
>>> tensors["model"], document
(tensor([0., 0.]), {'version': 7})
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from safetensors.torch import load
from torch import Tensor

from tardigrad.core.snapshot import safetensors_parts


def to_parts(tensors: Mapping[str, Tensor], document: Mapping[str, object]) -> Iterator[bytes | memoryview]:
    """Return the parts of a safetensors file with tensors and document. They are not copied, so that the
    tensors must not change before the parts are written."""
    plain = {name: value.detach().contiguous() for name, value in tensors.items()}
    return safetensors_parts(plain, {"document": json.dumps(document)})


def from_bytes(content: bytes) -> tuple[dict[str, Tensor], dict[str, object]]:
    """Return tensors and document from the parts together."""
    length = int.from_bytes(content[:8], "little")
    document = json.loads(content[8 : 8 + length])["__metadata__"]["document"]
    return load(content), json.loads(document)
