"""What passes between a run and its Ray workers: named vectors, and the kit that a worker trains with."""

from __future__ import annotations

import contextlib
import copy
import io
import pickle
import sys
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import tardigrad
from tardigrad.core.upload import Vectors
from tardigrad.data.clients import Clients
from tardigrad.errors import ConfigError
from tardigrad.learning.flat import FlatModule
from tardigrad.learning.local import Trainer

APART = 4096
"""Bytes of a tensor that is worth sharing between the workers of a node."""

Packed = dict[str, tuple[torch.dtype, tuple[int, ...], np.ndarray]]
"""Named vectors on their way: dtype, shape and bytes of each."""
Kit = tuple[bytes, list[np.ndarray]]
"""A trainer and clients, pickled, and the contents of their tensors."""


def pack(vectors: Vectors) -> Packed:
    """Vectors as arrays, which Ray passes without a copy."""
    return {name: (v.dtype, tuple(v.shape), _content(v)) for name, v in vectors.items()}


def unpack(packed: Packed) -> Vectors:
    """The vectors again, without a copy. They may lie in the object store: nobody writes to them."""
    with _read_only():
        return {name: _tensor(*one) for name, one in packed.items()}


def pack_kit(cloudpickle: Any, trainer: Trainer, clients: Clients) -> Kit:
    """What a worker needs. The tensors are apart, so that the workers of a node share them; a tensor that is
    mapped from a file is read here and sent with the others."""
    trainer.flat.reset_buffers()  # theirs begin as ours did
    parts = (
        trainer.flat.module, trainer.head, trainer.algorithm, trainer.local, trainer.transform,
        trainer.accept_divergence,
    )  # fmt: skip
    own = _own_modules()
    for module in own:  # their code goes along; others are taken to be installed on every node
        cloudpickle.register_pickle_by_value(module)
    try:
        return _pickled(cloudpickle, (parts, clients))
    except (TypeError, AttributeError, ValueError, pickle.PicklingError) as error:
        raise ConfigError(
            f"--workers ray: the model, the data or the algorithm cannot be sent to workers ({error}); "
            "run with --workers auto"
        ) from None
    finally:
        for module in own:
            cloudpickle.unregister_pickle_by_value(module)


def unpack_kit(kit: Kit) -> tuple[Trainer, Clients]:
    """A trainer of one's own, and the clients, whose data stays where all share it."""
    # This was pickled by the user's own process, and came through that user's own Ray, nobody else's
    with _read_only():
        parts, clients = pickle.loads(kit[0], buffers=kit[1])
    module, *rest = copy.deepcopy(parts)  # a module may write to its buffers
    return Trainer(FlatModule(module), *rest), clients


def kit_size(kit: Kit) -> int:
    """In bytes."""
    return len(kit[0]) + sum(content.nbytes for content in kit[1])


def _pickled(cloudpickle: Any, things: Any) -> Kit:
    contents: list[np.ndarray] = []

    def goes_along(buffer: pickle.PickleBuffer) -> bool:
        content = np.frombuffer(buffer.raw(), dtype=np.uint8)
        if content.nbytes < APART:
            return True
        contents.append(content)
        return False

    class Pickler(cloudpickle.CloudPickler):  # type: ignore[misc]
        def reducer_override(self, value: Any) -> Any:
            if type(value) is Tensor and value.device.type == "cpu" and value.layout == torch.strided:
                content = pickle.PickleBuffer(_content(value))  # type: ignore[arg-type]
                return _tensor, (value.dtype, tuple(value.shape), content)
            return super().reducer_override(value)

    out = io.BytesIO()
    Pickler(out, protocol=5, buffer_callback=goes_along).dump(things)
    return out.getvalue(), contents


def _own_modules() -> list[Any]:
    """The user's own files: imported, and not installed."""
    paths = sysconfig.get_paths()
    installed = {Path(paths[name]).resolve() for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    installed.add(Path(tardigrad.__file__).resolve().parent)
    own = []
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if name in ("__main__", "__mp_main__") or not file or getattr(module, "__name__", "") != name:
            continue  # Ray sends __main__ in any case
        if installed.isdisjoint(Path(file).resolve().parents):
            own.append(module)
    return own


def _content(tensor: Tensor) -> np.ndarray:
    # as bytes, for torch has dtypes that numpy has not
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy()


def _tensor(dtype: torch.dtype, shape: tuple[int, ...], content: Any) -> Tensor:
    if 0 in shape:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(content, dtype=torch.uint8).view(dtype).view(shape)


@contextlib.contextmanager
def _read_only() -> Iterator[None]:
    """torch warns of memory that must not be written to. Here nobody does."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given (NumPy array|buffer) is not writable")
        yield
