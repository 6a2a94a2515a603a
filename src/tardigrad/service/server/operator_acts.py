"""Acts of operators: they are journaled, applied, and in the audit log before they are acknowledged."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext

from torch import Tensor

from tardigrad.service.protocol.refusals import Cause, Refused, log
from tardigrad.service.server.check_ins import CheckIns
from tardigrad.service.server.helper_link import HelperLink
from tardigrad.service.server.journal_queue import JournalQueue
from tardigrad.service.server.model_state import ModelState
from tardigrad.service.server.run_state import Effects, RunState
from tardigrad.service.server.worker_threads import Threads
from tardigrad.service.store.contract import JournalEntry, StoreError
from tardigrad.service.store.recovery import Recovery

EXPORT_SECONDS = 10.0
"""Seconds that an export of a secure run waits for the receipts of its version."""


class OperatorActs:
    """The actions of operators on one run. Methods must be called in the event loop's thread."""

    def __init__(
        self,
        run_state: RunState,
        model_state: ModelState,
        queue: JournalQueue,
        check_ins: CheckIns,
        recovery: Recovery,
        threads: Threads,
        moved: asyncio.Condition,
    ) -> None:
        """`moved`: notified when a version was published or signed."""
        self._run_state, self._model_state, self._queue = run_state, model_state, queue
        self._check_ins, self._recovery, self._threads, self._moved = check_ins, recovery, threads, moved
        self.link: HelperLink | None = None
        """The link to the helpers of a secure run."""

    def check_not_ejected(self, client: str) -> None:
        """Raise `Refused` if an operator has ejected this client."""
        if client in self._run_state.steering.ejected:
            raise ejected(client)

    async def act(self, entry: JournalEntry) -> Effects:
        """Journal an act of an operator, apply it, and write its line into the audit log. Return its effects.
        If it would change nothing, nothing is journaled."""
        if not self._run_state.steering.changes(entry):
            return Effects()
        if self._run_state.over is not None and entry.kind != "export":
            return Effects()
        acting = asyncio.ensure_future(self._act(entry))
        acting.add_done_callback(lambda done: done.cancelled() or done.exception())  # retrieved
        return await asyncio.shield(acting)  # it is done even if the operator hangs up

    async def _act(self, entry: JournalEntry) -> Effects:
        link = self.link if entry.kind == "eject" else None
        async with nullcontext() if link is None else link.undisturbed(entry.client):
            effects = await self._queue.put(entry)
        try:
            await self._threads.on_disk(self._recovery.audit.sync)
        except StoreError as error:
            raise Refused(
                Cause.DISK, f"it is done, but not in the audit log yet, which cannot be written: {error}"
            ) from None
        return effects

    async def released_model(self) -> tuple[int, dict[str, Tensor]]:
        """Return the last version that was published, and its model under the names of its module. In a
        secure run that is a version with receipts."""
        version, model = await self._threads.in_model_thread(self._model_state.current)
        secure = self._run_state.secure
        if secure is not None:
            async with self._moved:
                signed = self._moved.wait_for(lambda: version <= secure.version)
                try:
                    await asyncio.wait_for(signed, EXPORT_SECONDS)
                except TimeoutError:
                    raise Refused(
                        Cause.HELPER_AWAY, f"the helpers have not signed version {version} yet; come again",
                        retry_after=EXPORT_SECONDS,
                    ) from None  # fmt: skip
        return version, await asyncio.wrap_future(self._model_state.named(model))

    def applied(self, entry: JournalEntry, effects: Effects) -> None:
        """Let an act that was applied take effect on clients that wait."""
        match entry.kind:
            case "pause":
                self._check_ins.dismiss()
            case "eject":
                self._check_ins.send_away(entry.client)
                if self.link is not None:
                    trips = [event.trip for event in effects.events]
                    self.link.offers.drop_ended(trips, ejected(entry.client))
        log.info(
            "%s by %s%s", entry.kind, entry.admin, f": {entry.client}" if entry.client else "",
            extra={"event": "act", "client": entry.client},
        )  # fmt: skip


def ejected(client: str) -> Refused:
    """Return the refusal of a client that an operator has ejected."""
    return Refused(
        Cause.EJECTED, f"{client} was ejected from this run by its operator; ask for `tardigrad admin admit`"
    )
