"""The client: asks for tasks, trains, delivers, until the run is over. It comes back by itself."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path

import grpc

from tardigrad.errors import ConfigError, RunError, TardigradError
from tardigrad.service.access.signed_requests import Signer
from tardigrad.service.access.tls_probe import tls_fault
from tardigrad.service.client.client_memory import ClientMemory, TrainedUpload
from tardigrad.service.client.client_trainer import Assignment, ClientTrainer
from tardigrad.service.client.connection import Connection, RetryLater, RunIsOver
from tardigrad.service.protocol.refusals import OVER, Cause, log
from tardigrad.service.protocol.task_settings import LocalNoise, local_noise

FIRST_WAIT, LONGEST_WAIT = 0.2, 5.0
COME_BACK = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.INTERNAL,
)
LOST = (
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.ALREADY_EXISTS,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.FAILED_PRECONDITION,  # trained by an older version, and its number was given again
)
"""Answers to a delivery after which the trip is of no use any more."""


SPENT = "this client took part as often as privacy allows"


class Backoff:
    """Waits longer after each failure, never for the same time as others."""

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self.succeeded()

    def succeeded(self) -> None:
        """All is well."""
        self._wait = FIRST_WAIT
        self._since: float | None = None

    async def failed(self, why: str, at_least: float = 0.0) -> None:
        """Wait; a RunError if nothing has worked for longer than one's patience."""
        now = time.monotonic()
        self._since = now if self._since is None else self._since
        if now - self._since > self._patience:
            raise RunError(f"the server did not answer for {self._patience:g} s ({why})")
        wait = max(at_least, self._wait * random.uniform(0.5, 1.5))
        log.info("%s; trying again in %.1f s", why, wait)
        await asyncio.sleep(wait)
        self._wait = min(LONGEST_WAIT, 2 * self._wait)


class Participant:
    """One client of one server."""

    def __init__(
        self,
        address: str,
        signer: Signer,
        authority: bytes | None,
        trainee: ClientTrainer,
        state: Path,
        patience: float = 600.0,
        seen: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._address, self._signer, self._authority = address, signer, authority
        self._trainee, self._state, self._seen = trainee, state, seen
        self._backoff = Backoff(patience)
        self._remembering: ClientMemory | None = None
        self._run = ""
        self._at_work: tuple[int, int] | None = None  # trip and epoch
        self._noise: LocalNoise | None = None  # as it was said in the log
        self._unsent: TrainedUpload | None = None  # trained, and the server has not said what became of it

    async def take_part(self) -> str:
        """Trip after trip; why the run was over at last."""
        while True:
            try:
                async with Connection(self._address, self._signer, self._authority) as connection:
                    try:
                        return await self._visit(connection)
                    except asyncio.CancelledError:
                        await self._leave(connection)
                        raise
            except grpc.aio.AioRpcError as error:
                over = dict(error.trailing_metadata() or ()).get(OVER)
                if over is not None:  # it ended while we were away
                    return str(over)
                await self._explain(error)
            except TimeoutError:
                await self._backoff.failed("the server was silent")

    async def _visit(self, connection: Connection) -> str:
        self._trainee.check_shapes(connection.shapes)
        if connection.run != self._run:
            self._run, self._unsent = connection.run, None
            self._remembering = ClientMemory(self._state / connection.run)
        assert self._remembering is not None
        pending = [self._unsent] if self._unsent is not None else self._remembering.pending()
        for finished in pending:
            over = await self._deliver(connection, finished)
            if over:
                return over
        while True:
            found = await connection.fetch(begun=self._begin)
            self._backoff.succeeded()
            if isinstance(found, RunIsOver):
                return found.reason
            if isinstance(found, RetryLater):
                log.info("no task now: %s", found.reason)
                await asyncio.sleep(found.seconds)
                continue
            over = await self._trip(connection, found)
            if over:
                return over

    def _begin(self, trip: int, epoch: int) -> None:
        self._at_work = trip, epoch

    async def _trip(self, connection: Connection, assignment: Assignment) -> str:
        assert self._remembering is not None
        noise = local_noise(assignment.settings)
        if noise is not None and noise != self._noise:
            self._noise = noise
            origin = "this system" if noise.seed is None else "the run's seed: nothing is private"
            log.info(
                "this run has local privacy: each upload is clipped to %g and gets noise of %g times that "
                "from %s; this client makes at most %d uploads",
                noise.clip, noise.noise_multiplier, origin, noise.participations,
            )  # fmt: skip
        if noise is not None and self._remembering.contributions >= noise.participations:
            await self._leave(connection)
            return SPENT
        try:
            finished = await _apart(self._trainee.train, assignment, self._remembering.memory)
        except Exception as error:
            await self._leave(connection)
            if isinstance(error, TardigradError):
                raise
            where = f"trip {assignment.task.trip}, in the client's own model or examples"
            raise RunError(f"{where}: {type(error).__name__}: {error}") from error
        if noise is not None:  # it must never be noised a second time, nor sent more often than was promised
            await asyncio.to_thread(self._remembering.count_contribution)
        if noise is not None or self._trainee.remembers(assignment.settings):
            await asyncio.to_thread(self._remembering.keep, finished)
        self._unsent = finished
        return await self._deliver(connection, finished)

    async def _deliver(self, connection: Connection, finished: TrainedUpload) -> str:
        """Deliver, however often it takes in this session; why the run is over, if it is."""
        assert self._remembering is not None
        try:
            answer = await connection.deliver(finished)
        except grpc.aio.AioRpcError as error:
            if error.code() in LOST:
                log.warning("trip %d was refused: %s", finished.trip, error.details())
                self._settled(finished)
                if error.code() is grpc.StatusCode.INVALID_ARGUMENT:
                    await connection.give_up(finished.trip, finished.epoch)
                return ""
            raise
        if answer.accepted and finished.memory:
            await asyncio.to_thread(self._remembering.commit, finished)
        self._settled(finished)
        self._backoff.succeeded()
        fate = f"staleness {answer.staleness}" if answer.accepted else f"did not count: {answer.reason}"
        self._seen(f"trip {finished.trip} from version {finished.version}: {fate}")
        return str(answer.over)

    def _settled(self, finished: TrainedUpload) -> None:
        """All is known of this trip."""
        assert self._remembering is not None
        self._remembering.drop(finished.trip)
        self._at_work = self._unsent = None

    async def _leave(self, connection: Connection) -> None:
        """Give our ticket back, so that somebody else can have it."""
        if self._at_work is not None:
            (trip, epoch), self._at_work = self._at_work, None
            try:
                await asyncio.wait_for(connection.give_up(trip, epoch), 5.0)
                if self._remembering is not None:
                    self._remembering.drop(trip)
            except (grpc.aio.AioRpcError, TimeoutError) as error:
                log.info("trip %d could not be given back: %s", trip, error)

    async def _explain(self, error: grpc.aio.AioRpcError) -> None:
        """Wait where it may get better, raise where it will not."""
        told = dict(error.trailing_metadata() or ())
        said = f"{error.code().name}: {error.details()}"
        why = told.get("tardigrad-why")
        if why == Cause.SESSION:
            await self._backoff.failed("the server was restarted")
            return
        if why == Cause.TIME and "tardigrad-time-ms" in told:
            self._signer.set_clock(int(told["tardigrad-time-ms"]))
            await self._backoff.failed("our clock differs from the server's")
            return
        if error.code() is grpc.StatusCode.UNAVAILABLE and not self._run:  # it has never worked: can it?
            fault = await asyncio.to_thread(tls_fault, self._address, self._authority)
            if fault is not None:
                raise ConfigError(fault)
        if error.code() in COME_BACK:
            await self._backoff.failed(said, float(told.get("tardigrad-retry-after", 0.0)))
            return
        raise (ConfigError if why == Cause.NOT_ENROLLED else RunError)(f"the server refused: {said}")


async def _apart(function: Callable[..., TrainedUpload], *values: object) -> TrainedUpload:
    """In a thread that nobody waits for at the end: who is told to leave need not finish its trip."""
    loop = asyncio.get_running_loop()
    result: asyncio.Future[TrainedUpload] = loop.create_future()

    def settle(finished: TrainedUpload | None, error: BaseException | None) -> None:
        if result.done():
            return
        if finished is not None:
            result.set_result(finished)
        elif error is not None:
            result.set_exception(error)

    def work() -> None:
        finished, error = None, None
        try:
            finished = function(*values)
        except BaseException as raised:
            error = raised
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, finished, error)

    threading.Thread(target=work, daemon=True).start()
    return await result
