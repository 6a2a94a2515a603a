"""Read idx files, the format of MNIST: an array of unsigned bytes, plain or compressed with gzip.

A compressed file is decompressed once, into the same folder if that folder is writable, and memory-mapped
from then on.
"""

from __future__ import annotations

import gzip
import math
import os
import shutil
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from tardigrad.data.clients import TensorExamples
from tardigrad.data.folder import require, whole
from tardigrad.errors import ConfigError

SIDE = 28
"""Height and width of the images."""
UNSIGNED_BYTES = 0x08
"""The idx type code of unsigned bytes."""
IMAGES, LABELS = "images-idx3-ubyte", "labels-idx1-ubyte"


def read_idx(file: Path, dimensions: int) -> np.ndarray:
    """Return the byte array in an idx file, which must have this many dimensions.

    The array is memory-mapped if the file is plain or can be decompressed into its own folder. A file that is
    truncated, damaged or of another format raises a ConfigError that names it.
    """
    start = 4 + 4 * dimensions
    if file.suffix != ".gz":
        with file.open("rb") as content:
            shape = _shape(content.read(start), file.stat().st_size, file, dimensions)
        return np.memmap(file, dtype=np.uint8, mode="c", offset=start, shape=shape)
    plain = file.with_suffix("")
    try:
        if os.access(file.parent, os.W_OK):
            with whole(plain) as partial, gzip.open(file) as packed, partial.open("wb") as out:
                header = packed.read(start)
                out.write(header)
                shutil.copyfileobj(packed, out, 1 << 20)
                _shape(header, out.tell(), file, dimensions)
            return read_idx(plain, dimensions)
        with gzip.open(file) as packed:
            content_bytes = bytearray(packed.read())
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ConfigError(f"{file}: truncated or not gzip ({error}); delete it and get it again") from None
    except OSError as error:
        raise ConfigError(f"{file}: could not be unpacked ({error})") from None
    shape = _shape(bytes(content_bytes[:start]), len(content_bytes), file, dimensions)
    return np.frombuffer(content_bytes, dtype=np.uint8, offset=start).reshape(shape)


def read_images_and_labels(
    stems: Sequence[str], publisher: str, get: str
) -> tuple[np.ndarray, np.ndarray, Path]:
    """Return matching arrays of images and labels, and the path of the label file.

    Each of `stems` is a path below the data folder without its ending; the first that exists is read.
    """
    found = [
        require(
            *(f"{stem}-{ending}{packed}" for stem in stems for packed in ("", ".gz")),
            publisher=publisher,
            get=get,
        )
        for ending in (IMAGES, LABELS)
    ]
    images, labels = read_idx(found[0], 3), read_idx(found[1], 1)
    if images.shape[1:] != (SIDE, SIDE):
        raise ConfigError(f"{found[0]}: images of {images.shape[1]} x {images.shape[2]}, not {SIDE} x {SIDE}")
    if len(images) != len(labels):
        raise ConfigError(f"{found[0]}: {len(images)} images, but {len(labels)} labels in {found[1].name}")
    return images, labels, found[1]


def as_examples(images: np.ndarray, labels: np.ndarray) -> TensorExamples:
    """Return images with a channel dimension and labels as int64, both as tensors."""
    return torch.from_numpy(images)[:, None], torch.from_numpy(labels.astype(np.int64))


def _shape(header: bytes, size: int, file: Path, dimensions: int) -> tuple[int, ...]:
    """Return the shape in an idx header; raise a ConfigError if the header or the file's size is wrong."""
    magic = struct.pack(">HBB", 0, UNSIGNED_BYTES, dimensions)
    if header[:4] != magic or len(header) != 4 + 4 * dimensions:
        raise ConfigError(
            f"{file}: not an idx file of unsigned bytes in {dimensions} dimension(s): it begins with "
            f"{header[:4].hex() or 'nothing'}, and {magic.hex()} would be right"
        )
    shape = struct.unpack(f">{dimensions}I", header[4:])
    if size != len(header) + math.prod(shape):
        raise ConfigError(
            f"{file}: truncated or damaged: it announces {' x '.join(map(str, shape))} bytes and has "
            f"{size - len(header)}; delete it and get it again"
        )
    return shape
