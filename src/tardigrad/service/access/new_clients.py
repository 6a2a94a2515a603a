"""Enroll clients: make their keys, add them to the server's list, and make the first certificates."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from tardigrad.core.files import write_text
from tardigrad.errors import ConfigError
from tardigrad.service.access.certificates import FILES, check_hosts, make_certificates, needs_certificates
from tardigrad.service.access.enrolment import (
    ADMINS,
    LIST,
    Enrolled,
    all_or_nothing,
    check_name,
    make_key,
    public_key,
    public_text,
)

HEADINGS = {
    LIST: "# the name and the public key of each client that may join\n",
    ADMINS: "# the name and the public key of each operator that may steer runs\n",
}
"""The first line of each list."""
TAKEN = ("ca", "server", "identity")
"""Names that no client can have, because ca.key, server.key and identity.key are other files."""


@dataclass(frozen=True)
class NewClients:
    """The outcome of an enrolment."""

    public_keys: dict[str, str]
    """Public keys by the clients' names."""
    files: list[Path]
    """The files that were written."""
    certificates: bool
    """Whether the certificates of an authority and of the server were made."""


def make_client_keys(folder: Path, names: Sequence[str]) -> NewClients:
    """Make a key for each of these clients and nothing else: on the machine of a client."""
    _check_new_keys(folder, names)
    with all_or_nothing() as made:
        return NewClients(_make_keys(folder, names, made), made, False)


def enroll_clients(
    folder: Path,
    names: Sequence[str],
    hosts: Sequence[str] = (),
    public: str | None = None,
    list_name: str = LIST,
) -> NewClients:
    """Enroll clients on the machine of the server: all of them, or none and a ConfigError. With the list
    `ADMINS` they are operators.

    A client that made its own key is enrolled with its `public` key; for others keys are made. In a folder
    without certificates these are made too, and the server's is valid for these hosts.
    """
    if public is not None and len(names) != 1:
        raise ConfigError("--public: is the key of one client; give one name")
    check_hosts(hosts)
    _check_new_clients(folder, names, public, list_name)
    first = needs_certificates(folder)
    with all_or_nothing() as made:
        clients = _make_keys(folder, names, made) if public is None else {names[0]: public}
        if first:
            make_certificates(folder, hosts)
            made += [folder / file for file in FILES]
        add_clients(folder / list_name, clients)
    return NewClients(clients, [*made, folder / list_name], first)


def _make_keys(folder: Path, names: Sequence[str], made: list[Path]) -> dict[str, str]:
    """Make key files, append them to `made`, and return the public keys by name."""
    clients = {}
    for name in names:
        clients[name] = public_text(make_key(folder / f"{name}.key"))
        made.append(folder / f"{name}.key")
    return clients


def _check_new_keys(folder: Path, names: Sequence[str]) -> None:
    """Raise a ConfigError unless a key file can be made in this folder for each of these clients."""
    _check_names(names)
    for name in names:
        if os.path.lexists(folder / f"{name}.key"):
            raise ConfigError(f"{folder / name}.key: exists already; give another name, or remove it first")


def _check_new_clients(folder: Path, names: Sequence[str], public: str | None, list_name: str) -> None:
    """Raise a ConfigError unless all of these clients can be enrolled.

    Without the public key of a client that made its own key, key files will be made for them.
    """
    if public is None:
        _check_new_keys(folder, names)
    else:
        _check_names(names)
    _check_unknown(folder / list_name, names, [] if public is None else [public_key(public, "--public")])


def _check_names(names: Sequence[str]) -> None:
    for name in names:
        check_name(name)
        if name.lower() in TAKEN:
            raise ConfigError(f"client {name!r}: {name}.key is not a client's key; give another name")
        if names.count(name) > 1:
            raise ConfigError(f"client {name!r}: is given more than once; give each name once")


def add_clients(file: Path, clients: Mapping[str, str]) -> None:
    """Add clients (public keys by name) to the list: all of them, or none and a ConfigError."""
    keys = []
    for client, public in clients.items():
        check_name(client)
        keys.append(public_key(public, f"client {client}"))
    if len({public_text(key) for key in keys}) < len(keys):
        raise ConfigError("the same public key is given for two clients; each needs a key of its own")
    _check_unknown(file, list(clients), keys)
    text = HEADINGS[file.name] if file.name in HEADINGS else HEADINGS[LIST]
    try:
        if file.exists():
            text = file.read_text(encoding="utf-8")
        if text and not text.endswith("\n"):  # edited by hand
            text += "\n"
        file.parent.mkdir(parents=True, exist_ok=True)
        write_text(file, text + "".join(f"{client} {public}\n" for client, public in clients.items()))
    except OSError as error:
        raise ConfigError(
            f"{file}: cannot be written ({error.strerror}); make room, or use a folder of your own"
        ) from None


def _check_unknown(file: Path, clients: Sequence[str], keys: Sequence[Ed25519PublicKey]) -> None:
    """Raise a ConfigError if a list is damaged, or has one of these names or keys. Clients and operators are
    disjoint, so both lists are read."""
    for one in {file, *(file.with_name(name) for name in HEADINGS)}:
        if os.path.lexists(one):
            _check_list(one, clients, keys)


def _check_list(file: Path, clients: Sequence[str], keys: Sequence[Ed25519PublicKey]) -> None:
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
