"""One history of a run: the receipts of server and helper, and the helper's own folder, must be of one."""

from __future__ import annotations

import numpy as np
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tardigrad.errors import ConfigError
from tardigrad.privacy.releases import NEW_RUN, ReleaseLog
from tardigrad.secure.begun_run import PUT_BACK, BegunRun, resumed_run
from tardigrad.secure.helper_database import DecidedBatch, HelperDatabase
from tardigrad.secure.helper_refusals import RefusalKind, refuse
from tardigrad.secure.masks import Codes


def check_greeting(own: BegunRun | None, run: str, receipt: bytes, version: int) -> None:
    """Refuse a server whose history is not the helper's. `run`, `receipt`, `version`: the server's run, the
    hash of its newest receipt (b"" for none), and the version of that."""
    if own is None:
        if receipt:
            refuse(
                RefusalKind.HISTORY,
                f"the server has receipts of the run {run} up to version {version}, but this helper "
                f"knows of no run: its folder was lost or replaced; {NEW_RUN}",
            )
        return
    if run and run != own.policy.run:
        refuse(
            RefusalKind.HISTORY,
            f"this helper takes part in the run {own.policy.run}, not in {run}; give it a new "
            "folder (--out) for each run",
        )
    newest = own.receipt.receipt
    same = (version, receipt) == (newest.version, bytes.fromhex(newest.hash))
    behind = (version, receipt) == (newest.version - 1, bytes.fromhex(newest.previous))
    new = not receipt and newest.version == 0  # the server was stopped before it stored the first
    if not (same or behind or new):
        who = "the helper" if version > newest.version else "the server"
        refuse(
            RefusalKind.HISTORY,
            f"the last receipt of the server is of version {version}, that of the helper of version "
            f"{newest.version}, and they are not of one history: {who} was put back from a backup; "
            + NEW_RUN,
        )


def record_release(log: ReleaseLog, batch: int, release: Codes | None) -> None:
    """Record a batch before what was released for it is given away; None if it was abandoned."""
    log.release(batch, {} if release is None else {"release": torch.from_numpy(release.view(np.uint8))})


def resumed_history(
    database: HelperDatabase, log: ReleaseLog, identity: Ed25519PrivateKey, server: str
) -> BegunRun | None:
    """Return the run in a helper's folder; None if none has begun.

    Raise a ConfigError unless log and database are of one history. Complete the log if the process was killed
    between the two.
    """
    last = database.last_decided() or DecidedBatch(0, b"", False)
    missing = last.number - log.last
    if missing not in (0, 1):
        raise ConfigError(
            f"the log knows of {log.last} batches and the database of {last.number}: {PUT_BACK}"
        )
    run = resumed_run(database, identity, server)
    if missing and last.abandoned:
        record_release(log, last.number, None)
    elif missing:
        if run is None or run.release is None:
            raise ConfigError(f"the log does not know of batch {last.number}: {PUT_BACK}")
        record_release(log, last.number, run.release)
    return run
