"""The data that a run sends to its Ray workers: named vectors, and the kit with which a worker trains."""

from __future__ import annotations

import contextlib
import copy
import io
import pickle
import warnings
from collections.abc import Iterator
from types import ModuleType

import numpy as np
import torch
from torch import Tensor

from tardigrad.core.own_code import own_modules
from tardigrad.core.upload import Vectors
from tardigrad.data.clients import Clients
from tardigrad.errors import ConfigError
from tardigrad.learning.flat import FlatModule
from tardigrad.learning.local import Trainer

SHARED_BYTES = 4096
"""The size from which a tensor is worth sharing between the workers of a node."""

PackedVectors = dict[str, tuple[torch.dtype, tuple[int, ...], np.ndarray]]
"""Named vectors for sending: dtype, shape and bytes of each."""
Kit = tuple[bytes, list[np.ndarray]]
"""A trainer and clients, pickled, and the contents of their large tensors."""


def pack(vectors: Vectors) -> PackedVectors:
    """Return vectors as arrays, which Ray transfers without copying them."""
    return {name: (v.dtype, tuple(v.shape), _content(v)) for name, v in vectors.items()}


def unpack(packed: PackedVectors) -> Vectors:
    """Return packed vectors as tensors, without a copy. They may be in the object store, so the caller must
    not write to them."""
    with _read_only():
        return {name: _tensor(*one) for name, one in packed.items()}


def pack_kit(cloudpickle: ModuleType, trainer: Trainer, clients: Clients) -> Kit:
    """Return the kit of a worker. Tensors are kept apart from the pickle, so that the workers of a node share
    them; a tensor that is mapped from a file is read here and sent with the others."""
    with torch.no_grad():  # so that the workers' modules begin in the state that ours began in
        trainer.flat.load(trainer.flat.shared, {})
    parts = (
        trainer.flat.module, trainer.flat.contiguous, trainer.head, trainer.algorithm, trainer.local,
        trainer.transform, trainer.accept_divergence,
    )  # fmt: skip
    own = own_modules()  # Ray sends __main__ in any case
    for module in own:  # their code is sent; other modules must be installed on every node
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
    """Return a new trainer, and the clients, whose data remains in the memory that the workers share."""
    # The pickle was made by the user's own process and came through the user's own Ray
    with _read_only():
        parts, clients = pickle.loads(kit[0], buffers=kit[1])
    # copied, because a module may write to its buffers
    module, contiguous, head, algorithm, local, *rest = copy.deepcopy(parts)
    flat = FlatModule(module, local.personal, local.batch_norm)
    flat.use_contiguous(contiguous)
    return Trainer(flat, head, algorithm, local, *rest), clients


def kit_size(kit: Kit) -> int:
    """Return the size of a kit in bytes."""
    return len(kit[0]) + sum(content.nbytes for content in kit[1])


def _pickled(cloudpickle: ModuleType, things: object) -> Kit:
    contents: list[np.ndarray] = []

    def in_band(buffer: pickle.PickleBuffer) -> bool:
        content = np.frombuffer(buffer.raw(), dtype=np.uint8)
        if content.nbytes < SHARED_BYTES:
            return True
        contents.append(content)
        return False

    class Pickler(cloudpickle.CloudPickler):  # type: ignore[misc, name-defined]
        def reducer_override(self, value: object) -> object:
            if type(value) is Tensor and value.device.type == "cpu" and value.layout == torch.strided:
                content = pickle.PickleBuffer(_content(value))  # type: ignore[arg-type]
                return _tensor, (value.dtype, tuple(value.shape), content)
            return super().reducer_override(value)

    out = io.BytesIO()
    Pickler(out, protocol=5, buffer_callback=in_band).dump(things)
    return out.getvalue(), contents


def _content(tensor: Tensor) -> np.ndarray:
    # as bytes, because torch has dtypes that numpy does not have
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy()


def _tensor(dtype: torch.dtype, shape: tuple[int, ...], content: np.ndarray | pickle.PickleBuffer) -> Tensor:
    if 0 in shape:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(content, dtype=torch.uint8).view(dtype).view(shape)


@contextlib.contextmanager
def _read_only() -> Iterator[None]:
    """Suppress torch's warning about memory that must not be written to. Nothing here writes to it."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given (NumPy array|buffer) is not writable")
        yield
