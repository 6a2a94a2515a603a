"""The queue of entries that wait for the journal, which writes them in batches."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from tardigrad.core.upload import Upload
from tardigrad.service.monitor.counters import Counters
from tardigrad.service.protocol.refusals import Cause, Refused, log
from tardigrad.service.server.clock import RunTime
from tardigrad.service.server.run_state import Effects
from tardigrad.service.server.worker_threads import Threads
from tardigrad.service.store.contract import JournalEntry, Store, StoreError

LARGEST_BATCH = 256
"""Entries of one transaction, at most, unless more of them belong together."""


@dataclass(slots=True)
class PendingEntry:
    """An entry that is not journaled yet."""

    entry: JournalEntry
    upload: Callable[[], Upload] | None
    """Returns the upload, when it is applied to the model."""
    effects: asyncio.Future[Effects]
    """Its result once it is journaled and applied, or the reason why it was not."""
    release: Callable[[], None] | None
    """Called when the memory of the upload is free again."""
    offered: bool = False
    """Whether the payload belongs to an offer, so that it stays if the entry cannot be journaled."""
    joined: bool = False
    """Whether the next entry is journaled in the same transaction."""
    payload: np.ndarray | None = None
    """The bytes of a small upload, which are stored together with those of the others that wait."""


class JournalQueue:
    """Takes entries in the event loop, and journals all that wait together. The caller applies them."""

    def __init__(self, store: Store, threads: Threads, counters: Counters, run_time: RunTime) -> None:
        self._store, self._threads, self._counters, self._run_time = store, threads, counters, run_time
        self._pending: deque[PendingEntry] = deque()
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._failure: Exception | None = None

    def __len__(self) -> int:
        return len(self._pending)

    def put(
        self,
        entry: JournalEntry,
        upload: Callable[[], Upload] | None = None,
        release: Callable[[], None] | None = None,
        offered: bool = False,
        joined: bool = False,
        payload: np.ndarray | None = None,
    ) -> asyncio.Future[Effects]:
        """Append an entry. The caller of `write_batch` gives the future its result. `offered`, `joined` and
        `payload`: as in `PendingEntry`."""
        effects: asyncio.Future[Effects] = asyncio.get_running_loop().create_future()
        if self._failure is not None:  # nobody journals any more
            effects.set_exception(self._failure)
            return effects
        self._pending.append(PendingEntry(entry, upload, effects, release, offered, joined, payload))
        self._idle.clear()
        self._wake.set()
        return effects

    def wake(self) -> None:
        """Make `wait` return although no entry waits."""
        self._wake.set()

    async def wait(self) -> None:
        """Wait for entries, or for a call of `wake`."""
        await self._wake.wait()
        self._wake.clear()

    def set_idle(self) -> None:
        """Note that all entries were applied, unless new ones have come."""
        if not self._pending:
            self._idle.set()

    async def until_idle(self) -> None:
        """Wait until no entry waits or is being applied."""
        await self._idle.wait()

    async def write_batch(self) -> list[tuple[int, PendingEntry]]:
        """Journal the entries that wait, and return them with their positions. If they cannot be written,
        all of them are refused, and the list is empty."""
        batch: list[PendingEntry] = []
        while self._pending and (len(batch) < LARGEST_BATCH or batch[-1].joined):
            batch.append(self._pending.popleft())
        now = self._run_time.now()  # one for all, so that times ascend in the order of the entries
        try:
            if self._store.durable:
                last = await self._threads.on_disk(self._append, batch, now)
            else:  # a store in memory never waits for a disk
                last = self._append(batch, now)
        except StoreError as error:
            for one in batch:
                self._refuse(one, error)
            return []
        return list(enumerate(batch, start=last - len(batch) + 1))

    def _append(self, batch: list[PendingEntry], now: float) -> int:
        small = [one.payload for one in batch if one.payload is not None]
        names = iter(self._store.write_together(small) if small else ())
        for one in batch:
            file = one.entry.file if one.payload is None else next(names)
            one.entry = replace(one.entry, time=now, file=file)
        entries = [one.entry for one in batch]
        if any(entry.file for entry in entries):
            self._store.sync()
        began = time.perf_counter()
        last = self._store.append(entries)
        self._counters.commit_seconds.add(time.perf_counter() - began)
        return last

    def _refuse(self, one: PendingEntry, error: Exception) -> None:
        log.error("the journal cannot be written: %s", error, extra={"event": "disk"})
        if one.release is not None:
            one.release()
        if one.entry.file and not one.offered:
            self._threads.files.submit(self._store.discard, one.entry.file)
        if not one.effects.done():
            one.effects.set_exception(
                Refused(Cause.DISK, f"the server cannot write ({error}); come again later", retry_after=5.0)
            )

    def fail(self, error: Exception) -> None:
        """Refuse all entries that wait, and those that come, because the run has failed or is stopped."""
        self._failure = self._failure or error
        while self._pending:
            one = self._pending.popleft()
            if not one.effects.done():
                one.effects.set_exception(error)
        self._idle.set()
