"""The operators that a server obeys: a list of names and public keys, as that of the clients."""

from __future__ import annotations

from tardigrad.errors import ConfigError
from tardigrad.service.access.enrolment import ADMINS, Enrolled


def check_disjoint(admins: Enrolled, clients: Enrolled) -> None:
    """Raise a ConfigError if a name or a public key is in both lists."""
    for name, key in admins.public_keys.items():
        owner = clients.owner(key)
        if clients.knows(name) or owner is not None:
            raise ConfigError(
                f"{admins.file}: {name} is a client too ({clients.file.name}, {owner or name}); an operator "
                "needs a name and a key of its own"
            )


class Admins:
    """The operators of a server, none while there is no list. The clients' list is read too: neither a name
    nor a key may be in both."""

    def __init__(self, clients: Enrolled) -> None:
        self._clients = clients
        self._file = clients.file.with_name(ADMINS)
        self._enrolled: Enrolled | None = None

    def __len__(self) -> int:
        return 0 if self._enrolled is None else len(self._enrolled)

    @property
    def advice(self) -> str:
        """How an operator is enrolled."""
        return f"`tardigrad enroll --admin NAME --keys {self._file.parent.name}` on the server's machine"

    def refresh(self) -> None:
        """Read the list again; raise a ConfigError if it is damaged, or not disjoint from the clients'."""
        if not self._file.exists():
            self._enrolled = None
            return
        enrolled = Enrolled(self._file)
        check_disjoint(enrolled, self._clients)
        self._enrolled = enrolled

    def knows(self, client: str) -> bool:
        """Return whether this operator is on the list."""
        return self._enrolled is not None and self._enrolled.knows(client)

    def signed(self, client: str, signature: bytes, content: bytes) -> bool:
        """Return whether this is the operator's signature of exactly this content."""
        return self._enrolled is not None and self._enrolled.signed(client, signature, content)
