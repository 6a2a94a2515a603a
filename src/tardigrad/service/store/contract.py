"""The contract between a server and the place where it stores what clients did.

A store holds the journal (entries in the order in which they count, each with a position), the answers that
were given to uploads, a few facts about the run, and the payloads of uploads. Bookkeeping and aggregator are
deterministic, so a snapshot and the entries after it are enough to recover a run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, TypedDict, get_args

import numpy as np

from tardigrad.errors import RunError

if TYPE_CHECKING:
    from tardigrad.service.store.payload_file import PayloadFile

ANSWERS = 16
"""Answers that are kept for each client. A client delivers one trip at a time and repeats only its last
delivery, so older answers are never requested."""


class StoreError(RunError):
    """The store cannot be opened, read or written: a full disk, a damaged record, a second process. The call
    that raised it has changed nothing."""


Act = Literal["pause", "resume", "stop", "eject", "admit", "limits", "export"]
"""The actions of an operator on a run."""
ACTS: frozenset[str] = frozenset(get_args(Act))
EntryKind = (
    Literal["check_in", "deliver", "give_up", "end"]
    | Literal["offer", "withdraw", "release", "receipt"]
    | Act
)
"""The second four are of secure runs: an upload that waits for the helpers, and one that must be sealed
again; what the helpers released for a batch; their receipts of a version. The last are acts of operators."""


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """One thing that happened in a run."""

    kind: EntryKind
    time: float
    client: str = ""
    trip: int = -1
    file: str = ""
    """Name of the payload, as `Store.write` returned it: of the upload, or of what the helpers released."""
    examples: int = 0
    steps: int = 0
    loss: float = 0.0
    digest: bytes = b""
    evaluated: int = 0
    metrics: str = "{}"
    """Metrics of the client's own evaluation, as JSON."""
    reason: str = ""
    """Why the run ends, what a helper said when it refused the upload, or why an operator acts."""
    norm: float = 0.0
    """Norm of the upload; 0 in private runs."""
    refusal: str = ""
    """Why the upload does not count, if that was decided by its values."""
    epoch: int = 0
    """Random number of the server process that granted the ticket; 0 for tickets without one."""
    version: int = 0
    """The version that a batch makes: the one that an upload was admitted to, or that was released, or whose
    receipts these are; or the version that was exported."""
    signed: bytes = b""
    """The delivery as the client has signed it; in the receipts of version 0, the helpers' signatures of the
    policy."""
    receipts: str = ""
    """The receipts of all helpers, as JSON."""
    admin: str = ""
    """The operator whose act this is."""
    wall: float = 0.0
    """When the operator asked for it, in seconds since 1970."""
    limits: str = ""
    """New values of limits by their names, as JSON; "" for none."""


class AnswerFields(TypedDict):
    """The fields of an answer to an upload."""

    accepted: bool
    reason: str
    version: int
    staleness: int | None
    weight: float


@dataclass(frozen=True, slots=True)
class RecordedAnswer:
    """The answer that was given to an upload, for a client that delivers it again."""

    trip: int
    client: str
    digest: bytes
    answer: AnswerFields
    epoch: int = 0
    """Epoch of the ticket."""


class Store(Protocol):
    """Where a server stores its run. All methods may be called from any thread, and each either succeeds as a
    whole or raises a `StoreError` and changes nothing."""

    # -- journal -----------------------------------------------------------------------------------

    def append(self, entries: Iterable[JournalEntry]) -> int:
        """Append all of these entries (at least one) or none, and return the position of the last.

        Entries survive a kill of the process as soon as this returns, and a power failure too unless all of
        them are check-ins. Check-ins alone may be lost in a power failure until the next entry of another
        kind is appended; nothing was acknowledged for them.
        """

    def entries(self, after: int) -> list[tuple[int, JournalEntry]]:
        """Return all entries with a position above `after`, in order, with their positions."""

    @property
    def last(self) -> int:
        """Position of the last entry that was ever appended; 0 if there was none."""

    @property
    def forgotten(self) -> int:
        """Position of the last entry that was deleted because a snapshot contains it."""

    def forget(self, last: int) -> None:
        """Delete all entries up to this position, because a snapshot contains them."""

    def restart_after(self, position: int) -> None:
        """Delete all entries; the next one gets the position after `position`."""

    # -- answers and facts -------------------------------------------------------------------------

    def remember(self, answers: Iterable[RecordedAnswer]) -> None:
        """Keep the answers of entries that will be forgotten: the last `ANSWERS` of each client."""

    def answer(self, trip: int) -> RecordedAnswer | None:
        """Return the answer that was given to the upload of this trip, or None if none is kept."""

    def fact(self, name: str, default: str) -> str:
        """Return the value stored under this name, after storing `default` if there was none."""

    def adopt(self, run: str) -> None:
        """Set the fact "run": this store becomes the store of that run, whose own was lost."""

    # -- payloads of uploads -----------------------------------------------------------------------

    @property
    def durable(self) -> bool:
        """Whether what is stored outlives the process. A store that is not durable keeps no payloads, and its
        methods never wait for a disk."""

    def write(self, trip: int, payload: np.ndarray) -> str:
        """Store the bytes of an upload and return the name of the payload, or "" if none are kept."""

    def write_together(self, payloads: Sequence[np.ndarray]) -> list[str]:
        """Store the bytes of several small uploads, which is faster than one after the other; return their
        names, in order, as `write` does. A payload that is discarded may be there until all of them are."""

    def receive(self, trip: int) -> PayloadFile:
        """Return a payload to be filled piece by piece, for uploads that are too large to be in memory. It is
        stored once its `sync` has returned, under the name that it then has; `discard` deletes it before."""

    def temporary(self) -> PayloadFile:
        """Return an empty file without a name: it is gone when it is closed, or the process ends."""

    def sync(self) -> None:
        """Make the names of all payloads written so far survive a power failure. Called before the entries
        that contain these names are appended."""

    def read(self, name: str, size: int, digest: bytes) -> np.ndarray:
        """Return a payload as an array of the caller's own, or raise a `StoreError` if it does not have this
        size and digest. A large one is read from its file when it is used."""

    def recycle(self, names: Iterable[str]) -> None:
        """Release payloads that a snapshot contains; their space may be used for new ones."""

    def discard(self, name: str) -> None:
        """Delete a payload, if it is still there."""

    def keep_only(self, names: set[str]) -> None:
        """Delete all other payloads: they were never acknowledged, or a snapshot contains them."""

    # -- life --------------------------------------------------------------------------------------

    def checkpoint(self) -> None:
        """Write everything to where it stays for good, so that the loss of a log file cannot take the run's
        identity with it."""

    def close(self) -> None:
        """Release all resources. A second call does nothing."""
