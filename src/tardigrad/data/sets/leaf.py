"""Read the JSON files of the LEAF benchmark: users, and for each user the lists x and y."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tardigrad.data.folder import require
from tardigrad.data.lines import open_bytes, parse_json
from tardigrad.errors import ConfigError

PUBLISHER = "https://github.com/TalwalkarLab/leaf"


@dataclass(frozen=True)
class LeafUser:
    """The examples of one user in one file."""

    file: Path
    name: str
    x: list[object]
    y: list[object]
    test: bool
    """Whether these examples are in LEAF's own test set."""


def leaf_folders(name: str, otherwise: str = "") -> tuple[Path, Path | None]:
    """Return the train and test folders of a data set, or its folder all_data and None.

    If neither exists, the error message ends with `otherwise`.
    """
    found = require(
        *(f"{name}/{where}" for where in ("data/train", "train", "data/all_data", "all_data")),
        publisher=f"{PUBLISHER} (data/{name}/preprocess.sh writes it){otherwise}",
    )
    if found.name == "all_data":
        return found, None
    test = found.with_name("test")
    if not test.is_dir():
        raise ConfigError(f"{test}: missing; LEAF's split has a folder test beside {found}")
    return found, test


def read_leaf(name: str, otherwise: str = "") -> Iterator[LeafUser]:
    """Yield every user of a data set, file by file; LEAF's own test set comes after its training set.

    If the files are missing, the error message ends with `otherwise`.
    """
    train, test = leaf_folders(name, otherwise)
    for folder in (train, test):
        if folder is None:
            continue
        files = sorted(folder.glob("*.json"))
        if not files:
            raise ConfigError(f"{folder}: has no .json file; put LEAF's there")
        for file in files:
            yield from _read_users(file, test=folder is test)


def _read_users(file: Path, test: bool) -> Iterator[LeafUser]:
    with open_bytes(file) as content:
        document = parse_json(content.read(), str(file))
    try:
        users, counts, data = document["users"], document["num_samples"], document["user_data"]
        examples = [(user, data[user]["x"], data[user]["y"]) for user in users]
    except (TypeError, KeyError) as error:
        raise ConfigError(
            f"{file}: not one of LEAF's files ({error} is missing); it must have users, num_samples and "
            "user_data with x and y for each user"
        ) from None
    if len(counts) != len(users):
        raise ConfigError(f"{file}: {len(users)} users, but num_samples for {len(counts)}")
    for (user, x, y), count in zip(examples, counts):
        if not len(x) == len(y) == count:
            raise ConfigError(
                f"{file}, user {user}: {len(x)} x and {len(y)} y, but num_samples says {count}; "
                "the file is damaged"
            )
        yield LeafUser(file, str(user), x, y, test)
