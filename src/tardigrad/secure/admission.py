"""Which uploads a helper admits to a batch."""

from __future__ import annotations

from typing import NamedTuple

from tardigrad.core.outcomes import Reason
from tardigrad.secure.begun_run import BegunRun
from tardigrad.secure.envelopes import EnvelopeError, Purpose
from tardigrad.secure.helper_database import HelperDatabase, TripRecord
from tardigrad.secure.helper_refusals import RESEAL

LARGEST_NUMBER = 2**63 - 1
"""The largest number of a trip or a version that the database can store."""
NO_TRIP = 2**64 - 1
"""The trip of bytes that are not an upload."""


class OfferedUpload(NamedTuple):
    """The part of a client's signed header that a helper uses."""

    client: str
    run: str
    trip: int
    version: int
    """The version that its trip started from."""
    digest: bytes
    """The digest of the masked bytes."""
    envelopes: tuple[tuple[bytes, bytes], ...]
    """Key identifier and sealed seed, for each helper."""
    fault: str = ""
    """Why its signature is not that of a client on the helper's own list; "" if it is."""


def decide(
    run: BegunRun, database: HelperDatabase, offer: OfferedUpload, check_only: bool = False
) -> TripRecord:
    """Decide about an upload, and store the decision, which is final.

    The same upload gets the same decision when it is offered again. One that was sealed to an old key is
    decided when it comes again. With `check_only` it is not admitted, and only refused if it would be refused
    whatever else is in the batch. Until the next receipt, an upload that was found good is not checked again,
    so that it is admitted when all other helpers have found it good, although its client is not on the list
    of clients any more.
    """
    trip, client, version, digest = offer.trip, offer.client, offer.version, offer.digest
    undecided = TripRecord(trip, client, version, digest, 0, 0, 0, "")
    if max(trip, version) > LARGEST_NUMBER:
        return undecided._replace(refusal=offer.fault or Reason.UNKNOWN.value)
    known = database.trip(trip)
    if known is not None:
        same = (known.client, known.version, known.digest) == (client, version, digest)
        return known if same else undecided._replace(refusal="delivered before with other bytes")
    seed, refusal = database.checked_seed(trip, client, version, digest), ""
    if seed is None:
        seed, refusal = _opened(run, offer)
        if check_only and not refusal:
            database.add_checked(trip, client, version, digest, seed)
    if refusal == RESEAL or (check_only and not refusal):
        return undecided._replace(refusal=refusal)
    record = undecided._replace(refusal=refusal)
    if not refusal:
        found = run.book.admit(trip, client, version)
        if isinstance(found, Reason):
            record = undecided._replace(refusal=found.value)
        else:
            record = undecided._replace(batch=found.batch, place=found.place, weight=found.weight)
    database.add_trip(record, seed if record.batch else None)
    return record


def _opened(run: BegunRun, offer: OfferedUpload) -> tuple[bytes, str]:
    """Return the seed in the envelope to this helper and "", or b"" and why the upload is refused."""
    policy = run.policy
    if offer.fault:
        return b"", offer.fault
    if offer.run != policy.run:
        return b"", "the upload is of another run"
    if offer.version > run.version:  # nobody can have started from it
        return b"", Reason.UNKNOWN.value
    if len(offer.envelopes) != len(policy.helpers):
        return b"", "the upload must have one envelope for each helper"
    key_id, sealed = offer.envelopes[run.position]
    key = run.keys.get(key_id)
    if key is None:
        return b"", RESEAL
    helper = policy.helpers[run.position]
    purpose = Purpose(run.digest, helper, key_id, offer.trip, offer.version, offer.client, offer.digest)
    try:
        return key.open(sealed, purpose.info()), ""
    except EnvelopeError:
        return b"", "the envelope was not sealed for this upload"
