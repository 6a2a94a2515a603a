"""CelebA: faces of celebrities, smiling or not, from LEAF's JSON files and the publisher's aligned images.

The images are decoded and resized once, into one file in the same folder, and memory-mapped from then on.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import torch
from pydantic import PositiveInt

from tardigrad.core.extras import pip_install
from tardigrad.data.dataset import DataSet, ImageSource
from tardigrad.data.folder import require, whole
from tardigrad.data.partition import Natural, Partition
from tardigrad.data.sets.leaf import LeafUser, read_leaf
from tardigrad.data.split import Aside, SetAside
from tardigrad.errors import ConfigError

PUBLISHER = "https://mmlab.ie.cuhk.edu.hk/projects/CelebA.html"
FOLDERS = tuple(f"celeba/{where}img_align_celeba" for where in ("data/raw/", "raw/", ""))


class CelebA(ImageSource):
    """CelebA: faces that are smiling or not; each of LEAF's 9,343 celebrities is a client."""

    kind: Literal["celeba"] = "celeba"
    partition: Partition = Natural()
    """How the examples are divided among clients; natural: each celebrity is a client.
    `tardigrad list partitions`"""
    test: SetAside = Aside(share=0.1, by="client")
    """The share that becomes the test set if the files have none of their own (LEAF's all_data)."""
    side: PositiveInt = 32
    """Height and width of the images: the shorter side is resized to this, the longer one cropped."""

    MEAN: ClassVar[tuple[float, ...]] = (0.5, 0.5, 0.5)
    DEVIATION: ClassVar[tuple[float, ...]] = (0.5, 0.5, 0.5)

    def asides(self, data: DataSet) -> tuple[Aside | None, ...]:
        return (self.test if data.test is None else None, self.validation)

    def fetch(self) -> Path:
        raise ConfigError(f"data: CelebA must be asked for at {PUBLISHER}; it cannot be fetched")

    def load(self) -> DataSet:
        users = sorted(read_leaf("celeba"), key=lambda user: user.test)  # training set first
        labels = torch.tensor([label for user in users for label in _check_labels(user)])
        train = sum(len(user.x) for user in users if not user.test)
        owners = np.array([user.name for user in users if not user.test for _ in user.x])
        folder = require(*FOLDERS, publisher=PUBLISHER)
        names = [str(name) for user in users for name in user.x]
        faces = torch.from_numpy(_load_faces(folder, names, self.side))
        test = (faces[train:], labels[train:]) if train < len(labels) else None
        return DataSet(faces[:train], labels[:train], test, (3, self.side, self.side), 2, owners)


def _check_labels(user: LeafUser) -> list[int]:
    """Return a user's labels; raise a ConfigError if one is neither 0 nor 1."""
    labels = [int(label == 1) for label in user.y if label in (0, 1)]
    if len(labels) != len(user.y):
        raise ConfigError(f"{user.file}, user {user.name}: a label y is neither 0 nor 1")
    return labels


def _load_faces(folder: Path, names: Sequence[str], side: int) -> np.ndarray:
    """Return all these images, memory-mapped from a file that is written the first time."""
    shape = (len(names), 3, side, side)
    key = hashlib.sha256("\n".join(names).encode()).hexdigest()[:16]
    file = folder.parent / f"{folder.name}-{side}-{key}.npy"
    if not file.exists():
        if not os.access(file.parent, os.W_OK):
            return np.stack(list(_decode(folder, names, side)))
        with whole(file) as partial:
            out = np.lib.format.open_memmap(partial, mode="w+", dtype=np.uint8, shape=shape)
            for number, face in enumerate(_decode(folder, names, side)):
                out[number] = face
            out.flush()
    try:
        faces = np.load(file, mmap_mode="c", allow_pickle=False)
    except (OSError, ValueError, EOFError):
        faces = np.empty(0)
    if faces.dtype != np.uint8 or faces.shape != shape:
        raise ConfigError(f"{file}: damaged; delete it, and it is made again")
    return faces


def _decode(folder: Path, names: Sequence[str], side: int) -> Iterator[np.ndarray]:
    """Yield each image as 3 x side x side bytes."""
    try:
        from PIL import Image
    except ImportError:
        raise ConfigError(f"data.kind 'celeba' needs Pillow: {pip_install('data')}") from None
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    quiet = not console.is_terminal
    for name in track(names, "decoding faces", console=console, transient=True, disable=quiet):
        file = folder / name
        if Path(name).name != name:
            raise ConfigError(f"celeba: {name!r} is not the name of an image in {folder}")
        try:
            with Image.open(file) as opened:
                image = opened.convert("RGB")
        except FileNotFoundError:
            raise ConfigError(f"{file}: missing; LEAF's files name it, so get it from {PUBLISHER}") from None
        except (OSError, SyntaxError, ValueError) as error:
            raise ConfigError(f"{file}: truncated or not an image ({error}); get it again") from None
        scale = side / min(image.size)
        width, height = (max(side, int(scale * length)) for length in image.size)
        left, top = round((width - side) / 2), round((height - side) / 2)
        small = image.resize((width, height), Image.Resampling.BILINEAR)
        yield np.asarray(small.crop((left, top, left + side, top + side))).transpose(2, 0, 1)
