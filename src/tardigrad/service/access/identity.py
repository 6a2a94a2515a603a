"""The identity of a server or a helper of a secure run: an Ed25519 key in its folder of keys."""

from __future__ import annotations

import os
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tardigrad.service.access.enrolment import make_key, read_key

IDENTITY = "identity.key"


def own_identity(keys: Path) -> Ed25519PrivateKey:
    """Return the identity in this folder of keys; it is made if there is none yet.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> own_identity(folder).private_bytes_raw() == own_identity(folder).private_bytes_raw()
    True
    """
    file = keys / IDENTITY
    return read_key(file) if os.path.lexists(file) else make_key(file)
