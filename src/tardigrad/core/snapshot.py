"""Snapshots: tensors and a JSON document in one safetensors file, written atomically and checked."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any, BinaryIO

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from tardigrad.errors import RunError

FORMAT = "tardigrad-snapshot-1"
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
    """A fingerprint of names, shapes and bits."""
    sha = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().contiguous().cpu()
        sha.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        sha.update(_bytes(tensor))
    return sha.hexdigest()


def write_snapshot(path: Path, tensors: dict[str, Tensor], document: dict[str, Any]) -> None:
    """Write all or nothing: a reader finds the old file or the new one, whole."""
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
    partial = path.with_name(path.name + ".partial")
    # for the owner alone: it may hold what privacy hides
    with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        _write_safetensors(file, stored, metadata)
    replace(partial, path)


def _write_safetensors(file: BinaryIO, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    """The safetensors format, straight from memory: the library would first copy everything, and a
    snapshot may be as large as all that a run holds."""
    header: dict[str, Any] = {"__metadata__": metadata}
    place = 0
    for name, tensor in tensors.items():
        end = place + tensor.numel() * tensor.element_size()
        shape = list(tensor.shape)
        header[name] = {"dtype": DTYPES[tensor.dtype], "shape": shape, "data_offsets": [place, end]}
        place = end
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % 8)
    file.write(len(encoded).to_bytes(8, "little") + encoded)
    for tensor in tensors.values():
        file.write(_bytes(tensor))


def _bytes(tensor: Tensor) -> memoryview:
    return tensor.view(-1).view(torch.uint8).numpy().data


def read_snapshot(path: Path, advice: str = BEGIN_AGAIN) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and the document, or a RunError that says what is wrong with the file, and what to do."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError:
        raise RunError(f"{path}: no such snapshot") from None
    except (SafetensorError, OSError, ValueError) as error:
        raise RunError(f"{path} is damaged ({error}); {advice}") from None
    if metadata.get("format") != FORMAT:
        raise RunError(f"{path} is not a {FORMAT} file (format {metadata.get('format')!r}); {advice}")
    text = metadata.get("text", "")
    if (
        metadata.get("sha256") != digest(tensors)
        or metadata.get("text_sha256") != hashlib.sha256(text.encode()).hexdigest()
    ):
        raise RunError(f"{path} is damaged (its checksum does not match); {advice}")
    content = json.loads(text)
    tensors |= {name: tensors[of] for name, of in content["aliases"].items()}
    return tensors, content["document"]


def write_text(path: Path, text: str) -> None:
    """Write all or nothing."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text, encoding="utf-8")
    replace(partial, path)


def replace(partial: Path, path: Path) -> None:
    """Put a finished file in its place, so that it survives a crash."""
    with partial.open("rb") as file:
        os.fsync(file.fileno())
    partial.replace(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make the names of new files in a folder survive a power failure."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
