"""Snapshots: tensors and a JSON document in one safetensors file, written atomically and checked.

>>> import tempfile
>>> file = Path(tempfile.mkdtemp()) / "example.safetensors"
>>> write_snapshot(file, {"model": torch.zeros(3)}, {"version": 7})
>>> read_snapshot(file)
({'model': tensor([0., 0., 0.])}, {'version': 7})
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from io import FileIO
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from tardigrad.core.files import partial_of, replace, write_over
from tardigrad.errors import RunError

FORMAT = "tardigrad-snapshot-1"
PIECE = 1 << 20
"""Bytes that are read at a time."""
BEGIN_AGAIN = "delete it, and --resume begins the run again"
DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


def digest(tensors: dict[str, Tensor]) -> str:
    """Return a SHA-256 of the names, types, shapes and bits."""
    sha = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().contiguous().cpu()
        sha.update(_described(name, tensor))
        sha.update(_bytes(tensor))
    return sha.hexdigest()


def _digest_of_file(path: Path, tensors: dict[str, Tensor]) -> str:
    """Return the `digest` of the tensors of a safetensors file. They are mapped; to read them here would load
    them into memory, and so the file is read."""
    sha = hashlib.sha256()
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
        for name in sorted(tensors):
            begin, end = header[name]["data_offsets"]
            sha.update(_described(name, tensors[name]))
            file.seek(8 + length + begin)
            for offset in range(begin, end, PIECE):
                sha.update(file.read(min(PIECE, end - offset)))
    return sha.hexdigest()


def _described(name: str, tensor: Tensor) -> bytes:
    return f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode()


def write_snapshot(path: Path, tensors: dict[str, Tensor], document: Mapping[str, object]) -> None:
    """Write a snapshot atomically: a reader finds the old file or the new one, complete."""
    stored: dict[str, Tensor] = {}
    aliases: dict[str, str] = {}  # one tensor under several names is stored once
    seen: dict[tuple[int, torch.Size, torch.dtype], str] = {}
    for name, tensor in tensors.items():
        tensor = tensor.detach().contiguous().cpu()
        key = (tensor.data_ptr(), tensor.shape, tensor.dtype)
        if tensor.numel() and key in seen:
            aliases[name] = seen[key]
        else:
            seen[key] = name
            stored[name] = tensor
    text = json.dumps({"aliases": aliases, "document": document})
    metadata = {
        "format": FORMAT,
        "sha256": digest(stored),
        "text": text,
        "text_sha256": hashlib.sha256(text.encode()).hexdigest(),
    }
    partial = partial_of(path)
    # readable only by the owner: it may contain what privacy hides
    with FileIO(os.open(partial, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
        write_over(file, *safetensors_parts(stored, metadata))
    replace(partial, path)


def recycle_snapshot(path: Path, spare: Path) -> None:
    """Make a snapshot that is not needed any more a spare file, without the names and the document in it. A
    process that is killed in between has left a whole snapshot, or none."""
    path.replace(spare)
    with spare.open("r+b") as file:
        length = int.from_bytes(file.read(8), "little")
        file.seek(0)
        file.write(bytes(8 + length))


def safetensors_parts(
    tensors: Mapping[str, Tensor], metadata: Mapping[str, str]
) -> Iterator[bytes | memoryview]:
    """Yield what a file in the safetensors format consists of, directly from memory. The library would first
    copy all tensors, and these may be most of the memory of a run."""
    header: dict[str, object] = {"__metadata__": dict(metadata)}
    offset = 0
    for name, tensor in tensors.items():
        end = offset + tensor.numel() * tensor.element_size()
        shape = list(tensor.shape)
        header[name] = {"dtype": DTYPES[tensor.dtype], "shape": shape, "data_offsets": [offset, end]}
        offset = end
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % 8)
    yield len(encoded).to_bytes(8, "little") + encoded
    for tensor in tensors.values():
        yield _bytes(tensor)


def _bytes(tensor: Tensor) -> memoryview:
    return tensor.view(-1).view(torch.uint8).numpy().data


def read_snapshot(path: Path, advice: str = BEGIN_AGAIN) -> tuple[dict[str, Tensor], dict[str, object]]:
    """Return the tensors and the document, or raise a RunError that says what is wrong with the file.

    `advice` ends its message and says what the user can do.
    """
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        sha256 = _digest_of_file(path, tensors)
    except FileNotFoundError:
        raise RunError(f"{path}: no such snapshot") from None
    except (SafetensorError, OSError, ValueError) as error:
        raise RunError(f"{path} is damaged ({error}); {advice}") from None
    if metadata.get("format") != FORMAT:
        raise RunError(f"{path} is not a {FORMAT} file (format {metadata.get('format')!r}); {advice}")
    text = metadata.get("text", "")
    if (
        metadata.get("sha256") != sha256
        or metadata.get("text_sha256") != hashlib.sha256(text.encode()).hexdigest()
    ):
        raise RunError(f"{path} is damaged (its checksum does not match); {advice}")
    content = json.loads(text)
    tensors |= {name: tensors[of] for name, of in content["aliases"].items()}
    return tensors, content["document"]
