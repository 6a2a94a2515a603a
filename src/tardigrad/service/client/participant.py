"""The client: fetches tasks, trains and delivers until the run is over, and reconnects by itself."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import grpc

from tardigrad.core.upload import Vectors
from tardigrad.errors import ConfigError, RunError, TardigradError
from tardigrad.secure.helper_refusals import NOT_LISTED, OTHER_KEY, RESEAL
from tardigrad.service.access.signed_requests import Signer
from tardigrad.service.client.client_memory import ClientMemory, TrainedUpload
from tardigrad.service.client.client_trainer import Assignment, TripTrainer
from tardigrad.service.client.connection import Connection, RetryLater, RunIsOver
from tardigrad.service.client.guardrails import Guardrails
from tardigrad.service.client.reconnecting import CannotTakePart, Reconnecting
from tardigrad.service.client.secure_trips import SecureTrips, secure_trips
from tardigrad.service.protocol.refusals import PAUSED, log
from tardigrad.service.protocol.task_settings import LocalNoise, local_noise
from tardigrad.service.protocol.v1 import service_pb2 as v1

LOST = (
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.ALREADY_EXISTS,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.FAILED_PRECONDITION,  # the file of an older client, without an epoch
)
"""Statuses of a delivery after which the trip is dropped."""
GIVE_BACK_SECONDS = 5.0
"""How long a client that leaves tries to give its ticket back."""
SPENT = "this client took part as often as privacy allows"


class Participant(Reconnecting):
    """One client of one run."""

    def __init__(
        self,
        address: str,
        signer: Signer,
        authority: bytes | None,
        trainer: TripTrainer,
        state: Path,
        patience: float = 600.0,
        seen: Callable[[str], None] = lambda line: None,
        guardrails: Guardrails | None = None,
        declaration: str | None = None,
        run: str = "",
        moves_on: bool = False,
    ) -> None:
        """`declaration`: what the server declared, if the client was made of it and of a table. `run`: the
        name of the run, on a server with several. `moves_on`: as in `Reconnecting`."""
        super().__init__(address, signer, authority, patience, run, moves_on)
        self._guardrails, self._declaration = guardrails or Guardrails(), declaration
        self._secure: SecureTrips | None = None
        self._trainer, self._state, self._seen = trainer, state, seen
        self._memory: ClientMemory | None = None
        self._run = ""
        self._at_work: tuple[int, int] | None = None  # trip and epoch
        self._noise: LocalNoise | None = None  # as it was logged last
        self._unsent: TrainedUpload | None = None  # trained, and not answered by the server yet

    async def take_part(self) -> str:
        """Make trips until the run is over, and return why it ended."""

        async def session(connection: Connection) -> str:
            try:
                return await self._session(connection)
            except asyncio.CancelledError:
                await self._leave(connection)
                raise

        ended = await self.connected(session)
        return ended.reason if isinstance(ended, RunIsOver) else ended

    def _connection(self) -> Connection:
        return Connection(
            self._address, self._signer, self._authority, self._pace, self._trainer.frozen, self._wanted
        )

    async def _session(self, connection: Connection) -> str:
        self._secure = secure_trips(
            connection.joined, self._guardrails, self._signer.client, self._state, self._declaration
        )
        self._trainer.check_shapes(connection.shapes, connection.settings)
        if connection.run != self._run:
            if self._secure is not None:
                log.info("this run is secure: %s", self._secure.promise())
            self._run, self._unsent = connection.run, None
            self._memory = ClientMemory(self._state / connection.run, connection.joined.name)
        assert self._memory is not None
        pending = [self._unsent] if self._unsent is not None else self._memory.pending()
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
                if found.reason == PAUSED and self._moves_on and connection.joined.name:
                    raise CannotTakePart(f"the run {connection.joined.name} is {PAUSED}")
                await asyncio.sleep(found.seconds)
                continue
            over = await self._trip(connection, found)
            if over:
                return over

    def _begin(self, trip: int, epoch: int) -> None:
        self._at_work = trip, epoch

    async def _trip(self, connection: Connection, assignment: Assignment) -> str:
        assert self._memory is not None
        secure = self._secure
        if secure is not None:
            await asyncio.to_thread(secure.check_task, assignment)
            assignment = replace(assignment, evaluate=False)
        noise = local_noise(assignment.settings)
        if noise is not None and noise != self._noise:
            self._noise = noise
            origin = "this system" if noise.seed is None else "the run's seed: nothing is private"
            log.info(
                "this run has local privacy: each upload is clipped to %g and gets noise of %g times that "
                "from %s; this client makes at most %d uploads",
                noise.clip, noise.noise_multiplier, origin, noise.participations,
            )  # fmt: skip
        if noise is not None and self._memory.contributions >= noise.participations:
            await self._leave(connection)
            return SPENT
        try:
            finished = await _in_daemon_thread(self._train, assignment, self._memory.memory)
        except Exception as error:
            await self._leave(connection)
            if isinstance(error, TardigradError):
                raise
            where = f"trip {assignment.task.trip}, in the client's own model or examples"
            raise RunError(f"{where}: {type(error).__name__}: {error}") from error
        if noise is not None:  # counted and saved before it is sent, so that it is not noised twice
            await asyncio.to_thread(self._memory.count_contribution)
        if secure is not None or noise is not None or self._trainer.remembers(assignment.settings):
            await asyncio.to_thread(self._memory.keep, finished)
        self._unsent = finished
        return await self._deliver(connection, finished)

    def _train(self, assignment: Assignment, memory: Vectors) -> TrainedUpload:
        finished = self._trainer.train(assignment, memory)
        return finished if self._secure is None else self._secure.hidden(finished)

    async def _deliver(self, connection: Connection, finished: TrainedUpload) -> str:
        """Deliver an upload, and return why the run is over, or "" if it is not."""
        assert self._memory is not None
        try:
            answer = await self._send(connection, finished)
        except grpc.aio.AioRpcError as error:
            if error.code() in LOST:
                log.warning("trip %d was refused: %s", finished.trip, error.details())
                self._answered(finished)
                if error.code() is grpc.StatusCode.INVALID_ARGUMENT:
                    await connection.give_up(finished.trip, finished.epoch)
                return ""
            raise
        if answer.accepted and finished.memory:
            await asyncio.to_thread(self._memory.commit, finished)
        self._answered(finished)
        self._backoff.succeeded()
        fate = f"staleness {answer.staleness}" if answer.accepted else f"did not count: {answer.reason}"
        self._seen(f"trip {finished.trip} from version {finished.version}: {fate}")
        if not answer.accepted and answer.reason in (NOT_LISTED, OTHER_KEY):
            raise ConfigError(
                f"a helper of this secure run has refused the upload: {answer.reason}; have the operator of "
                "each helper enroll this client's public key (tardigrad enroll NAME --public KEY), and join "
                "again"
            )
        return str(answer.over)

    async def _send(self, connection: Connection, finished: TrainedUpload) -> v1.Answer:
        """Send an upload. In a secure run its seeds are sealed to the keys of now, and again if a helper has
        erased a key meanwhile."""
        while True:
            if self._secure is None:
                return await connection.deliver(finished)
            keys = await connection.offered_keys()
            answer = await connection.deliver(finished, self._secure.envelopes(finished, keys))
            if answer.accepted or answer.reason != RESEAL:
                return answer
            await self._backoff.failed("a helper has erased the key that the upload was sealed to")

    def _answered(self, finished: TrainedUpload) -> None:
        """Drop a trip that the server has answered."""
        assert self._memory is not None
        self._memory.drop(finished.trip)
        self._at_work = self._unsent = None

    async def _leave(self, connection: Connection) -> None:
        """Give the ticket back, so that another client can have it."""
        if self._at_work is not None:
            (trip, epoch), self._at_work = self._at_work, None
            try:
                await asyncio.wait_for(connection.give_up(trip, epoch), GIVE_BACK_SECONDS)
                if self._memory is not None:
                    self._memory.drop(trip)
            except (grpc.aio.AioRpcError, TimeoutError):
                log.info("trip %d could not be given back; the server takes it back after a time", trip)


async def _in_daemon_thread(function: Callable[..., TrainedUpload], *values: object) -> TrainedUpload:
    """Run the function in a daemon thread, so that the process can end before the trip is trained."""
    loop = asyncio.get_running_loop()
    result: asyncio.Future[TrainedUpload] = loop.create_future()

    def set_result(finished: TrainedUpload | None, error: BaseException | None) -> None:
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
            loop.call_soon_threadsafe(set_result, finished, error)

    threading.Thread(target=work, daemon=True).start()
    return await result
