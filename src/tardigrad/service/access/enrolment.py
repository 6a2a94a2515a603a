"""Client keys (Ed25519) and the list of clients that a server admits."""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from tardigrad.errors import ConfigError

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
LIST = "clients.txt"
ADMINS = "admins.txt"
"""The list of operators, beside that of the clients."""


def check_name(name: str) -> str:
    """Return the client's name if it can also be a file name; raise a ConfigError otherwise."""
    if not NAME.fullmatch(name):
        raise ConfigError(
            f"client {name!r}: a name is up to 64 letters, digits, dots, dashes and underscores, "
            "and begins with a letter or digit"
        )
    return name


def make_key(file: Path) -> Ed25519PrivateKey:
    """Make a key and write it to a new file that only its owner can read; never overwrite a file."""
    key = Ed25519PrivateKey.generate()
    write_secret(
        file,
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ),
    )
    return key


def write_secret(file: Path, content: bytes) -> None:
    """Write a new file that only its owner can read."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        opened = os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")
        with all_or_nothing() as made, opened:
            made.append(file)
            opened.write(content)
    except FileExistsError:
        raise ConfigError(f"{file}: exists already; give another name, or remove it first") from None
    except OSError as error:
        raise ConfigError(
            f"{file}: cannot be written ({error.strerror}); make room, or use a folder of your own"
        ) from None


@contextmanager
def all_or_nothing() -> Iterator[list[Path]]:
    """Yield a list of files; if the block raises, remove the files that were appended to it."""
    made: list[Path] = []
    try:
        yield made
    except BaseException:
        for file in made:
            file.unlink(missing_ok=True)
        raise


def read_key(file: Path) -> Ed25519PrivateKey:
    """Return the client's private key from a file."""
    try:
        key = serialization.load_pem_private_key(file.read_bytes(), password=None)
    except FileNotFoundError:
        raise ConfigError(f"{file}: there is no such key; `tardigrad enroll` makes one") from None
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read ({error.strerror}); give the client's key file") from None
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise ConfigError(
            f"{file}: is not a private key in PEM without a password; `tardigrad enroll` makes one"
        ) from None
    if not isinstance(key, Ed25519PrivateKey):
        raise ConfigError(f"{file}: not an Ed25519 key; `tardigrad enroll` makes one")
    return key


def public_text(key: Ed25519PrivateKey | Ed25519PublicKey) -> str:
    """Return the public key in base64."""
    public = key.public_key() if isinstance(key, Ed25519PrivateKey) else key
    return base64.b64encode(public.public_bytes_raw()).decode()


def public_key(text: str, where: str) -> Ed25519PublicKey:
    """Return the public key that this base64 text is; `where` is named in the ConfigError if it is none."""
    try:
        return Ed25519PublicKey.from_public_bytes(base64.b64decode(text, validate=True))
    except ValueError as error:
        raise ConfigError(f"{where}: {text!r} is not an Ed25519 public key ({error})") from None


class Enrolled:
    """The clients that a server admits: a file with a name and a public key on each line."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._keys: dict[str, Ed25519PublicKey] = {}
        self._owners: dict[str, str] = {}
        self._seen: tuple[int, int, int] | None = None
        self.refresh()

    def __len__(self) -> int:
        return len(self._keys)

    def refresh(self) -> None:
        """Read the file again if it has changed since it was read."""
        try:
            stat = self.file.stat()
            seen = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
            if seen == self._seen:
                return
            lines = self.file.read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            raise ConfigError(
                f"{self.file}: cannot be read because there is no such file; it lists the clients that may "
                f"join, and `tardigrad enroll NAME --keys {self.file.parent}` makes it"
            ) from None
        except OSError as error:
            raise ConfigError(
                f"{self.file}: cannot be read ({error.strerror}); it must be a text file that lists the "
                "clients, as `tardigrad enroll` makes it, and readable for this user"
            ) from None
        except UnicodeDecodeError as error:
            raise ConfigError(f"{self.file}: must be text in UTF-8 ({error})") from None
        keys: dict[str, Ed25519PublicKey] = {}
        owners: dict[str, str] = {}  # by public key
        for number, line in enumerate(lines, 1):
            words = line.split("#")[0].split()
            if not words:
                continue
            if len(words) != 2:
                raise ConfigError(f"{self.file}, line {number}: must be a name and a public key")
            where = f"{self.file}, line {number}"
            name, key = check_name(words[0]), public_key(words[1], where)
            if name in keys:
                raise ConfigError(f"{where}: {name} is in an earlier line already; each client has one")
            owner = owners.setdefault(public_text(key), name)
            if owner != name:
                raise ConfigError(
                    f"{where}: {name} has the public key of {owner}; each client needs a key of its own"
                )
            keys[name] = key
        self._keys, self._owners, self._seen = keys, owners, seen

    @property
    def public_keys(self) -> Mapping[str, Ed25519PublicKey]:
        """The public keys by name."""
        return self._keys

    def knows(self, client: str) -> bool:
        """Return whether this client is on the list."""
        return client in self._keys

    def owner(self, key: Ed25519PublicKey) -> str | None:
        """Return the client that is enrolled with this key, or None."""
        return self._owners.get(public_text(key))

    def signed(self, client: str, signature: bytes, content: bytes) -> bool:
        """Return whether this is the client's signature of exactly this content."""
        try:
            self._keys[client].verify(signature, content)
        except (InvalidSignature, KeyError):
            return False
        return True
