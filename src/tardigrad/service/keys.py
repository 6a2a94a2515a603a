"""Clients' keys: an Ed25519 key for each, and the server's list of those it lets in."""

from __future__ import annotations

import base64
import os
import re
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from tardigrad.core.snapshot import write_text
from tardigrad.errors import ConfigError

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
LIST = "clients.txt"


def check_name(name: str) -> str:
    """A client's name that can be a file's name too, or a ConfigError."""
    if not NAME.fullmatch(name):
        raise ConfigError(
            f"client {name!r}: a name is up to 64 letters, digits, dots, dashes and underscores, "
            "and begins with a letter or digit"
        )
    return name


def make_key(file: Path) -> Ed25519PrivateKey:
    """A new key, in a file for its owner alone; an existing one is never overwritten."""
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
    """A new file that nobody else can read."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as opened:
            opened.write(content)
    except FileExistsError:
        raise ConfigError(f"{file}: exists already; give another name, or remove it first") from None
    except OSError as error:
        raise ConfigError(f"{file}: cannot be written ({error})") from None


def read_key(file: Path) -> Ed25519PrivateKey:
    """A client's own key."""
    try:
        key = serialization.load_pem_private_key(file.read_bytes(), password=None)
    except FileNotFoundError:
        raise ConfigError(f"{file}: there is no such key; `tardigrad enroll` makes one") from None
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise ConfigError(f"{file}: not a key that `tardigrad enroll` made ({error})") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise ConfigError(f"{file}: not an Ed25519 key; `tardigrad enroll` makes one")
    return key


def public_text(key: Ed25519PrivateKey | Ed25519PublicKey) -> str:
    """The public key as one word."""
    public = key.public_key() if isinstance(key, Ed25519PrivateKey) else key
    return base64.b64encode(public.public_bytes_raw()).decode()


def public_key(text: str, where: str) -> Ed25519PublicKey:
    """Back from one word, or a ConfigError that says where it stands."""
    try:
        return Ed25519PublicKey.from_public_bytes(base64.b64decode(text, validate=True))
    except ValueError as error:
        raise ConfigError(f"{where}: {text!r} is not an Ed25519 public key ({error})") from None


class Enrolled:
    """The list of clients: lines of a name and a public key. Read again whenever it has changed."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._keys: dict[str, Ed25519PublicKey] = {}
        self._seen: tuple[int, int, int] | None = None
        self.refresh()

    def __len__(self) -> int:
        return len(self._keys)

    def refresh(self) -> None:
        """Read the list if it changed since."""
        try:
            stat = self.file.stat()
            seen = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
            if seen == self._seen:
                return
            lines = self.file.read_text().splitlines()
        except OSError as error:
            raise ConfigError(
                f"{self.file}: cannot be read ({error}); `tardigrad enroll NAME` makes a list of clients"
            ) from None
        keys = {}
        for number, line in enumerate(lines, 1):
            words = line.split("#")[0].split()
            if not words:
                continue
            if len(words) != 2:
                raise ConfigError(f"{self.file}, line {number}: must be a name and a public key")
            keys[check_name(words[0])] = public_key(words[1], f"{self.file}, line {number}")
        self._keys, self._seen = keys, seen

    def knows(self, client: str) -> bool:
        """Whether this client is on the list."""
        return client in self._keys

    def signed(self, client: str, signature: bytes, content: bytes) -> bool:
        """Whether this client signed exactly this."""
        try:
            self._keys[client].verify(signature, content)
        except (InvalidSignature, KeyError):
            return False
        return True


def enter(file: Path, client: str, public: str) -> None:
    """Add a client to the list; a name is given once."""
    check_name(client)
    public_key(public, f"client {client}")
    text = file.read_text() if file.exists() else "# name and public key of everybody who is let in\n"
    if file.exists() and Enrolled(file).knows(client):
        raise ConfigError(f"{file}: {client} is enrolled already; remove its line first to give it a new key")
    file.parent.mkdir(parents=True, exist_ok=True)
    write_text(file, text + f"{client} {public}\n")
