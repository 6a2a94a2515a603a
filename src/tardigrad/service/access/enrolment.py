"""Clients' keys: an Ed25519 key for each, and the server's list of those it lets in."""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from tardigrad.core.files import write_text
from tardigrad.errors import ConfigError

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
LIST = "clients.txt"
TAKEN = ("ca", "server")
"""No client's names: the keys of the authority and of the server are called so."""


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
        opened = os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")
        with all_or_nothing() as made, opened:
            made.append(file)
            opened.write(content)
    except FileExistsError:
        raise ConfigError(f"{file}: exists already; give another name, or remove it first") from None
    except OSError as error:
        raise ConfigError(f"{file}: cannot be written ({error})") from None


@contextmanager
def all_or_nothing() -> Iterator[list[Path]]:
    """Whatever files are put on this list are removed again if it goes wrong."""
    made: list[Path] = []
    try:
        yield made
    except BaseException:
        for file in made:
            file.unlink(missing_ok=True)
        raise


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
        self._owners: dict[str, str] = {}
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
            lines = self.file.read_text(encoding="utf-8").splitlines()
        except OSError as error:
            raise ConfigError(
                f"{self.file}: cannot be read ({error}); `tardigrad enroll NAME` makes a list of clients"
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

    def knows(self, client: str) -> bool:
        """Whether this client is on the list."""
        return client in self._keys

    def owner(self, key: Ed25519PublicKey) -> str | None:
        """Return the client that is enrolled with this key, if there is one."""
        return self._owners.get(public_text(key))

    def signed(self, client: str, signature: bytes, content: bytes) -> bool:
        """Whether this client signed exactly this."""
        try:
            self._keys[client].verify(signature, content)
        except (InvalidSignature, KeyError):
            return False
        return True


def check_new(folder: Path, names: Sequence[str], public: str | None = None) -> None:
    """A ConfigError unless all of these can be enrolled; without a public key, keys will be made for them."""
    for name in names:
        check_name(name)
        if name.lower() in TAKEN:
            raise ConfigError(f"client {name!r}: {name}.key is not a client's key; give another name")
        if names.count(name) > 1:
            raise ConfigError(f"client {name!r}: is given more than once; give each name once")
        if public is None and os.path.lexists(folder / f"{name}.key"):
            raise ConfigError(f"{folder / name}.key: exists already; give another name, or remove it first")
    _check_unknown(folder / LIST, names, [] if public is None else [public_key(public, "--public")])


def enter(file: Path, client: str, public: str) -> None:
    """Add a client to the list; a name is given once."""
    enter_all(file, {client: public})


def enter_all(file: Path, clients: Mapping[str, str]) -> None:
    """Add clients, by name with their public keys, to the list: all of them or none."""
    keys = []
    for client, public in clients.items():
        check_name(client)
        keys.append(public_key(public, f"client {client}"))
    if len({public_text(key) for key in keys}) < len(keys):
        raise ConfigError("the same public key is given for two clients; each needs a key of its own")
    _check_unknown(file, list(clients), keys)
    text = "# name and public key of everybody who is let in\n"
    try:
        if file.exists():
            text = file.read_text(encoding="utf-8")
        if text and not text.endswith("\n"):  # somebody has edited it
            text += "\n"
        file.parent.mkdir(parents=True, exist_ok=True)
        write_text(file, text + "".join(f"{client} {public}\n" for client, public in clients.items()))
    except OSError as error:
        raise ConfigError(f"{file}: cannot be written ({error})") from None


def _check_unknown(file: Path, clients: Sequence[str], keys: Sequence[Ed25519PublicKey]) -> None:
    """A ConfigError if the list is damaged, or has one of these names or keys."""
    if not os.path.lexists(file):
        return
    enrolled = Enrolled(file)
    for client in clients:
        if enrolled.knows(client):
            raise ConfigError(
                f"{file}: {client} is enrolled already; remove its line first to give it a new key"
            )
    for key in keys:
        owner = enrolled.owner(key)
        if owner is not None:
            raise ConfigError(
                f"{file}: {owner} is enrolled with this public key; each client needs a key of its own"
            )
