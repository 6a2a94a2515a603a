"""The plan of a secure run for its server: the server's own identity, the helpers, and the policy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tardigrad.errors import ConfigError
from tardigrad.secure.policy import Policy
from tardigrad.secure.secure_settings import HelperAddress
from tardigrad.service.access.enrolment import public_text
from tardigrad.service.server.endpoint import is_loopback
from tardigrad.service.server.helper_connection import HelperConnection
from tardigrad.service.server.helper_group import HelperGroup

MakePolicy = Callable[[str, str, tuple[str, ...], str], Policy]
"""Arguments: the run, the settings of its tasks, and the identities of the helpers and the server."""


@dataclass(frozen=True)
class SecurePlan:
    """The secure part of a run to serve."""

    helpers: tuple[HelperAddress, ...]
    identity: Ed25519PrivateKey
    """The server's."""
    policy: MakePolicy

    def group(self, run: str, settings: str) -> HelperGroup:
        """Return the helpers of a run, whose tasks have these settings. For the event loop's thread."""
        helpers = tuple(helper.identity for helper in self.helpers)
        policy = self.policy(run, settings, helpers, public_text(self.identity))
        connections = [
            HelperConnection(helper.address, self.identity, authority_of(helper)) for helper in self.helpers
        ]
        return HelperGroup(policy, connections)


def authority_of(helper: HelperAddress) -> bytes | None:
    """Return the certificate of the authority that a helper's own is checked with, or None without TLS."""
    if helper.ca is None:
        host = helper.address.rpartition(":")[0].removeprefix("[").removesuffix("]")
        if not is_loopback(host):
            raise ConfigError(
                f"secure.helpers: {helper.address} is another machine; give the certificate of its authority "
                "(ca), because without TLS a helper must be on this one"
            )
        return None
    try:
        return helper.ca.read_bytes()
    except OSError as error:
        raise ConfigError(f"secure.helpers.ca: {helper.ca} cannot be read ({error})") from None
