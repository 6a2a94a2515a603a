"""The thread on which entries are applied to the model, and the way back into the event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial

from tardigrad.service.monitor.counters import Counters
from tardigrad.service.server.journal_queue import PendingEntry
from tardigrad.service.server.model_state import ModelState
from tardigrad.service.server.published_versions import PublishedVersions
from tardigrad.service.server.run_state import Effects
from tardigrad.service.server.task_broadcast import Broadcast
from tardigrad.service.server.worker_threads import Threads


class ModelThread:
    """Applies entries to the model in order, publishes new versions, and reports failures."""

    def __init__(
        self,
        model_state: ModelState,
        threads: Threads,
        counters: Counters,
        versions: PublishedVersions,
        on_published: Callable[[], None],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        """`on_published` and `on_failure` are called in the event loop."""
        self._model_state, self._threads, self._counters = model_state, threads, counters
        self._versions, self._on_published, self._on_failure = versions, on_published, on_failure
        self._loop = asyncio.get_running_loop()
        self._batch: list[tuple[Effects, PendingEntry]] = []

    def start(self) -> None:
        """Publish versions as they are made, and make steps when layers do not have to wait any more: also
        those that waited when the last process stopped."""
        self._model_state.published = self._tell_published
        self._model_state.aggregator.notify(self._advance)
        self._advance()

    def apply(self, effects: Effects, one: PendingEntry) -> None:
        """Take an entry to apply to the model. The caller calls `flush` before it gives up control, so that
        the entry is applied before all work that is submitted later."""
        if effects.touch_model:
            self._batch.append((effects, one))
        elif one.release is not None:
            one.release()

    def flush(self) -> None:
        """Apply the entries that were given since the last call, in order. They are one piece of work,
        because each piece wakes up the model thread, and then the event loop."""
        if self._batch:
            batch, self._batch = self._batch, []
            self._submit(partial(self._apply_batch, batch))

    def _apply_batch(self, batch: list[tuple[Effects, PendingEntry]]) -> None:
        for effects, one in batch:
            began = time.perf_counter()
            self._model_state.do(effects, one.upload)
            if effects.moved:
                self._counters.step_seconds.add(time.perf_counter() - began)
        self._loop.call_soon_threadsafe(self._applied, batch)

    def _applied(self, batch: list[tuple[Effects, PendingEntry]]) -> None:
        for effects, one in batch:
            if one.release is not None:
                one.release()
            for version in effects.forget:
                self._versions.remove(version)

    def _advance(self) -> None:
        """Make the steps for which no layer has to wait any more. May be called from any thread."""
        self._submit(self._model_state.advance)

    def _submit(self, work: Callable[[], None]) -> None:
        def guarded() -> None:
            try:
                work()
            except BaseException as error:
                self._loop.call_soon_threadsafe(self._on_failure, error)
                raise

        self._threads.model.submit(guarded)

    def _tell_published(self, version: int, broadcast: Broadcast) -> None:
        """Call `_published` in the event loop; on the model thread."""
        self._loop.call_soon_threadsafe(self._published, version, broadcast)

    def _published(self, version: int, broadcast: Broadcast) -> None:
        self._versions.publish(version, broadcast)
        self._on_published()
