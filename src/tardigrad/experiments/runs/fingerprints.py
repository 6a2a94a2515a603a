"""Fingerprints of what a config only names: data, model, traces, an algorithm's own file.

They are stored when a run begins and compared when it is resumed, because a run that is resumed with other
data or another model would silently become a mixture of two.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from tardigrad.algorithms.registry import BUILT_IN
from tardigrad.core.own_code import class_source, is_place
from tardigrad.data.clients import Federation
from tardigrad.data.sets.own_files import Files
from tardigrad.experiments.config.schema import Config
from tardigrad.learning.examples import Features, mapped, take, tensors
from tardigrad.learning.flat import FlatModule
from tardigrad.learning.frozen import frozen_digest
from tardigrad.learning.start import start_file

Inputs = dict[str, str]

SOME_CLIENTS = 1000
SOME_EXAMPLES = 64


def fingerprints(config: Config, federation: Federation | None, flat: FlatModule) -> Inputs:
    """Return fingerprints by name: of the initial model, the data, and each file that the config mentions; of
    the model alone on a server without data."""
    own = own_code(config)
    if federation is None:
        return {"the model": _model_without_data(flat)} | own
    inputs = {"the model": _model(flat), "the data": _data(federation)} | named_files(config)
    for name, classes in (
        ("the model's code", model_classes(flat)),
        ("the head's code", {type(federation.head)}),
    ):
        if source := class_source(classes):
            inputs[name] = _digest(source.encode())
    return inputs | own


def model_classes(flat: FlatModule) -> set[type]:
    """Return the classes of a module and of all its parts."""
    return {type(part) for part in flat.module.modules()}


def own_code(config: Config) -> Inputs:
    """Return digests of the user's own code in a config: of the class of an algorithm, and of each file that
    another table names as "path/to/file.py:name"."""
    found = {}
    if not isinstance(config.algorithm, BUILT_IN):
        found["the algorithm's own file"] = _digest(class_source([type(config.algorithm)]).encode())
    for table, values in config.model_dump(mode="json", exclude={"algorithm"}).items():
        kind = values.get("kind") if isinstance(values, dict) else values
        if is_place(kind):
            file = Path(str(kind).rpartition(":")[0])
            found[f"the {table}'s own file"] = _digest(file.read_bytes()) if file.is_file() else ""
    return found


def named_files(config: Config) -> Inputs:
    """Return digests of the files of data that a config names: traces, tables, constants of a preparation and
    initial values of the model. A file that is not there has an empty one."""
    named: dict[str, Iterable[Path]] = {}
    network = config.network
    for key, table in (
        ("pace.file", config.pace),
        ("delay.file", config.delay),
        ("availability.file", config.availability),
        ("network.download.file", None if network is None else network.download),
        ("network.upload.file", None if network is None else network.upload),
    ):
        if (file := getattr(table, "file", None)) is not None:
            named[key] = [Path(file)]
    if isinstance(config.data, Files):
        named |= config.data.named_files()
    if config.model is not None and config.model.start is not None:
        named["model.start"] = [start_file(config.model.start)]
    return {f"what {key} holds": _digest_of(list(files)) for key, files in named.items()}


def _digest_of(files: Sequence[Path]) -> str:
    if len(files) == 1:
        return _digest_of_file(files[0])
    return _digest("".join(f"{file.name} {_digest_of_file(file)}\n" for file in files).encode())


def _digest_of_file(file: Path) -> str:
    if not file.is_file():
        return ""
    status = file.stat()
    return _digest_at(file, status.st_size, status.st_mtime_ns)


@functools.lru_cache(maxsize=10_000)
def _digest_at(file: Path, size: int, changed: int) -> str:
    """Return the digest of a file of this size and time of change; a comparison asks for it many times."""
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _model(flat: FlatModule) -> str:
    sha = hashlib.sha256(str(flat.module).encode())
    _add(sha, flat.vector)
    _add_frozen(sha, flat)
    return sha.hexdigest()


def _model_without_data(flat: FlatModule) -> str:
    sha = hashlib.sha256(str(flat.module).encode())
    sha.update(flat.vector.detach().cpu().numpy().data)
    _add_frozen(sha, flat)
    return sha.hexdigest()


def _add_frozen(sha: hashlib._Hash, flat: FlatModule) -> None:
    if len(list(flat.module.parameters())) > len(flat.names):  # runs of other models keep their fingerprints
        sha.update(frozen_digest(flat.module))


def _data(federation: Federation) -> str:
    """Return a digest of the clients' numbers of examples and of some examples; all would take too long."""
    clients = federation.clients
    every = range(0, len(clients), -(-len(clients) // SOME_CLIENTS))
    sha = hashlib.sha256(f"{len(clients)} {[clients.examples(client) for client in every]}".encode())
    for client in sorted({0, len(clients) // 2, len(clients) - 1}):
        features, labels, index = clients.indexed(client)
        some = torch.arange(min(len(labels), SOME_EXAMPLES)) if index is None else index[:SOME_EXAMPLES]
        _add_features(sha, take(features, some))
        _add(sha, labels[some])
    if federation.test is not None:
        _add_features(sha, mapped(federation.test[0], lambda tensor: tensor[:SOME_EXAMPLES]))
        _add(sha, federation.test[1])
    return sha.hexdigest()


def _add_features(sha: hashlib._Hash, features: Features) -> None:
    for name, tensor in tensors(features):
        sha.update(name.encode())
        _add(sha, tensor)


def _add(sha: hashlib._Hash, tensor: Tensor) -> None:
    sha.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
    sha.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
