"""Helpers for the tests of data sets: write small data files, and list what clients have."""

import gzip
import hashlib
import io
import json
import lzma
import struct
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

# -- writing files -------------------------------------------------------------------------------------


def write(file: Path, text: str) -> Path:
    """Write a text file, compressed if its name ends in .xz."""
    file.parent.mkdir(parents=True, exist_ok=True)
    if file.suffix == ".xz":
        file.write_bytes(lzma.compress(text.encode()))
    else:
        file.write_text(text, encoding="utf-8")
    return file


def write_leaf(file: Path, given: dict[str, tuple[list, list]], **changes) -> Path:
    """Write a JSON file of LEAF with these users' lists x and y."""
    document = {
        "users": list(given),
        "num_samples": [len(y) for _, y in given.values()],
        "hierarchies": [],
        "user_data": {user: {"x": x, "y": y} for user, (x, y) in given.items()},
    }
    return write(file, json.dumps(document | changes))


def idx_bytes(array):
    """The content of an idx file with this array."""
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


def write_idx_pair(folder, stem, labels, packed=True, seed=0):
    """Write the idx files of random images and these labels; return the images."""
    pixels = np.random.default_rng(seed).integers(256, size=(len(labels), 28, 28), dtype=np.uint8)
    folder.mkdir(parents=True, exist_ok=True)
    for ending, array in (("images-idx3-ubyte", pixels), ("labels-idx1-ubyte", np.asarray(labels, np.uint8))):
        content = idx_bytes(array)
        if packed:
            (folder / f"{stem}-{ending}.gz").write_bytes(gzip.compress(content))
        else:
            (folder / f"{stem}-{ending}").write_bytes(content)
    return pixels


def tar(members):
    """The content of a .tar.gz archive."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return out.getvalue()


def zipped(members):
    """The content of a .zip archive."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return out.getvalue()


def truncate(file: Path, share: float = 0.6) -> None:
    """Keep only the first part of a file."""
    content = file.read_bytes()
    file.write_bytes(content[: int(len(content) * share)])


def md5(content):
    return hashlib.md5(content).hexdigest()


def files_in(folder):
    """The path of every file below a folder, sorted."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def need(file: Path) -> None:
    """Skip the test if a file of the real data is missing."""
    if not file.exists():
        pytest.skip(f"the real data is not here: {file} is missing")


# -- what clients have ---------------------------------------------------------------------------------


def examples_by_client(federation):
    """Features and labels of each client, by its name."""
    clients = federation.clients
    return {clients.name(c): clients.load(c) for c in range(len(clients))}


def sizes(federation):
    """Number of examples of each client, by its name."""
    return {name: len(labels) for name, (_, labels) in examples_by_client(federation).items()}


def all_examples(federation):
    """Features and labels of all examples, those of the test set included, sorted."""
    pairs = [*examples_by_client(federation).values(), federation.test]
    return sorted((x.tolist(), y.tolist()) for features, labels in pairs for x, y in zip(features, labels))


def training_set(federation):
    """Features and labels of all clients, concatenated."""
    loaded = [federation.clients.load(client) for client in range(len(federation.clients))]
    return torch.cat([features for features, _ in loaded]), torch.cat([labels for _, labels in loaded])


def assert_normalised(features, source):
    """The constants of the source are the mean and standard deviation of each channel."""
    for channel, mean, deviation in zip(features.unbind(1), source.MEAN, source.DEVIATION, strict=True):
        weights = torch.bincount(channel.flatten(), minlength=256).double() / channel.numel()
        values = torch.arange(256) / 255
        assert (weights * values).sum().item() == pytest.approx(mean, abs=1e-4)
        assert (weights * (values - mean) ** 2).sum().sqrt().item() == pytest.approx(deviation, abs=1e-4)
