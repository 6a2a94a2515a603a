"""The calls of operators: authenticate the operator, check the request, and pass it to the coordinator."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, closing
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar, cast

import grpc
from google.protobuf.message import DecodeError, Message

from tardigrad.core.plain_json import plain_json
from tardigrad.service.access.admins import Admins
from tardigrad.service.access.enrolment import NAME as CLIENT_NAME
from tardigrad.service.access.signed_requests import RequestVerifier
from tardigrad.service.monitor.status import SECONDS, status_of
from tardigrad.service.protocol.refusals import LONGEST, Cause, Refusals, Refused
from tardigrad.service.protocol.v1 import admin_pb2 as admin_v1
from tardigrad.service.protocol.v1 import admin_pb2_grpc as admin_v1_grpc
from tardigrad.service.protocol.v1 import service_pb2 as v1
from tardigrad.service.protocol.wire import CHUNK
from tardigrad.service.server.coordinator import Coordinator
from tardigrad.service.server.exports import make_export
from tardigrad.service.server.limits import Rates, unless_silent
from tardigrad.service.server.listener import parsed_signed
from tardigrad.service.server.rpc import Servicer
from tardigrad.service.server.steering import fault_of_limits, limits_in_force
from tardigrad.service.store.contract import ACTS, Act, JournalEntry

ADMINISTRATION = "tardigrad.v1.Administration"
REQUESTS_PER_SECOND = 20.0
"""Requests of one operator, on average over about two seconds."""

M = TypeVar("M", bound=Message)


@dataclass(frozen=True)
class SteeredRun:
    """A run that operators can steer."""

    name: str
    """By which operators ask for it; empty if the server has one run without a name."""
    coordinator: Coordinator
    servicer: Servicer
    folder: Path

    @property
    def state(self) -> str:
        """Whether it is running, paused, over or failed."""
        if self.coordinator.failure is not None:
            return "failed"
        if self.coordinator.run_state.over is not None:
            return "over"
        return "running" if self.coordinator.run_state.steering.paused is None else "paused"


class AdminServicer(admin_v1_grpc.AdministrationServicer):
    """The four calls of operators, to all runs of one server."""

    def __init__(
        self,
        runs: Mapping[str, SteeredRun],
        admins: Admins,
        finished: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """`runs`: by their names. `finished`: why those have ended that were over when the server began."""
        self._runs, self._admins, self._finished = runs, admins, finished
        self.gate = RequestVerifier(admins)
        """Has a session and nonces of its own, apart from those of the clients."""
        self.refusals = Refusals()
        self._rates = Rates(REQUESTS_PER_SECOND)
        self._exporting: dict[str, asyncio.Lock] = {}

    def reload(self) -> None:
        """Read the list of operators now, if there is one."""
        self.gate.reload("operators")

    @asynccontextmanager
    async def _answering(
        self, method: str, request: v1.Signed, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[tuple[str, bytes]]:
        """Yield the operator and the content of its request, and turn `Refused` into a gRPC status."""
        admin = ""
        try:
            admin, content = await self._admit(request, method)
            yield admin, content
        except Refused as refused:
            self.refusals.note(admin, method, refused)
            trailing = [("tardigrad-time-ms", str(self.gate.now_ms())), ("tardigrad-why", refused.why.value)]
            if refused.retry_after is not None:
                trailing.append(("tardigrad-retry-after", f"{refused.retry_after:.3f}"))
            await context.abort(refused.status, refused.sentence, tuple(trailing))
        except Exception:
            if not context.done():
                raise
            # the operator has hung up, so nobody can be told

    async def _admit(self, request: v1.Signed, method: str) -> tuple[str, bytes]:
        try:
            admin, content = await self.gate.admitted(request, method)
        except Refused as refused:
            if refused.why is not Cause.NOT_ENROLLED:
                raise
            fault = "this operator is not enrolled" if len(self._admins) else "this server has no operators"
            raise Refused(Cause.NOT_ENROLLED, f"{fault}; {self._admins.advice} enrolls one") from None
        self._rates.take(admin)
        return admin, content

    def _run(self, name: str) -> SteeredRun:
        """Return the run of this name; without a name, the only one."""
        if not name and len(self._runs) == 1 and not self._finished:
            return next(iter(self._runs.values()))
        if name in self._finished:
            raise Refused(
                Cause.ACT,
                f"the run {name} was over ({self._finished[name]}) when the server began; its result is in "
                "its folder there",
            )
        if name not in self._runs:
            names = ", ".join(sorted([*self._runs, *self._finished])) or "none"
            raise Refused(
                Cause.ACT,
                f"{name[:64]!r} is not a run of this server; its runs are {names}"
                if name
                else f"this server has several runs; name one of {names} (--run NAME)",
            )
        return self._runs[name]

    async def Enter(self, request: v1.Signed, context: grpc.aio.ServicerContext) -> admin_v1.Entered:
        """Tell an operator the session and the runs."""
        async with self._answering("Enter", request, context):
            runs = [
                admin_v1.RunListing(name=run.name, run=run.coordinator.run, state=run.state)
                for run in self._runs.values()
            ]
            runs += [admin_v1.RunListing(name=name, state="over") for name in self._finished]
            return admin_v1.Entered(session=self.gate.session, runs=runs)

    async def Steer(self, request: v1.Signed, context: grpc.aio.ServicerContext) -> admin_v1.Steered:
        """Do an act, and answer when it is journaled and in the audit log."""
        async with self._answering("Steer", request, context) as (admin, content):
            wanted = _parsed(admin_v1.SteerRequest(), content)
            run = self._run(wanted.run)
            coordinator = run.coordinator
            if wanted.act == "limits" and not wanted.limits:
                return self._steered(run)
            entry = self._entry(run, admin, wanted)
            _check_alive(coordinator)
            if coordinator.run_state.over is not None:
                return self._steered(run)
            effects = await coordinator.acts.act(entry)
            steered = self._steered(run)
            steered.changed, steered.audit = effects.acted, effects.audit
            steered.ended = len(effects.events)
            return steered

    def _entry(self, run: SteeredRun, admin: str, wanted: admin_v1.SteerRequest) -> JournalEntry:
        """Return the entry of an act; raise `Refused` if it is not possible."""
        if wanted.act not in ACTS - {"export"}:
            raise Refused(Cause.ACT, f"{wanted.act[:64]!r} is not an act; give {', '.join(sorted(ACTS))}")
        if bool(wanted.client) != (wanted.act in ("eject", "admit")):
            raise Refused(Cause.ACT, "a client is given to eject or admit it, and for nothing else")
        if wanted.act == "eject":
            under_way = wanted.client in run.coordinator.run_state.open
            if not under_way and not run.servicer.knows(wanted.client):
                raise Refused(Cause.ACT, f"{wanted.client[:64]!r} is not an enrolled client")
        if wanted.client and not CLIENT_NAME.fullmatch(wanted.client):
            raise Refused(Cause.ACT, f"{wanted.client[:64]!r} is not the name of a client")
        if wanted.limits and wanted.act != "limits":
            raise Refused(Cause.ACT, f"limits cannot be given to {wanted.act}")
        in_force = limits_in_force(run.coordinator.run_state.book, run.coordinator.settings)
        if fault := fault_of_limits(wanted.limits, in_force):
            raise Refused(Cause.ACT, fault)
        changed = {name: value for name, value in wanted.limits.items() if in_force[name] != value}
        return JournalEntry(
            cast("Act", wanted.act), 0.0, client=wanted.client, reason=_reason(wanted.reason), admin=admin,
            wall=self._wall(), limits=json.dumps(changed, sort_keys=True) if changed else "",
        )  # fmt: skip

    def _wall(self) -> float:
        return self.gate.now_ms() / 1000

    def _steered(self, run: SteeredRun) -> admin_v1.Steered:
        coordinator = run.coordinator
        return admin_v1.Steered(
            state=run.state,
            limits=limits_in_force(coordinator.run_state.book, coordinator.settings),
            under_way=len(coordinator.run_state.book.in_flight),
        )

    async def Export(self, request: v1.Signed, context: grpc.aio.ServicerContext) -> None:
        """Send the last published model when its export is journaled and in the audit log."""
        async with self._answering("Export", request, context) as (admin, content):
            wanted = _parsed(admin_v1.ExportRequest(), content)
            run, reason = self._run(wanted.run), _reason(wanted.reason)
            coordinator, idle = run.coordinator, run.coordinator.settings.idle_seconds
            async with self._exporting.setdefault(run.name, asyncio.Lock()):
                _check_alive(coordinator)
                if coordinator.stopping:
                    raise Refused(Cause.ACT, "the run is over, and its model is in its folder on the server")
                version, model = await coordinator.acts.released_model()
                wall, where = self._wall(), coordinator.run_state.where()
                facts: dict[str, str | int | float]
                facts = {"run": coordinator.run, "name": run.name, "version": version, "admin": admin}
                try:
                    made = await asyncio.to_thread(make_export, run.folder, model, facts, where, wall)
                except OSError as error:
                    raise Refused(Cause.DISK, f"the server cannot write the export ({error})") from None
                del model
            with closing(made):
                effects = await coordinator.acts.act(
                    JournalEntry("export", 0.0, version=version, digest=made.model_digest, reason=reason,
                                 admin=admin, wall=wall)
                )  # fmt: skip
                header = admin_v1.ExportHeader(
                    version=version, files=[file.description() for file in made.files], audit=effects.audit
                )
                await unless_silent(context.write(admin_v1.ExportPart(header=header)), idle)
                for chunk in made.chunks():
                    await unless_silent(context.write(admin_v1.ExportPart(chunk=chunk)), idle)

    async def Follow(self, request: v1.Signed, context: grpc.aio.ServicerContext) -> None:
        """Send the config, the status every second, and new lines of the events, until the run has ended."""
        async with self._answering("Follow", request, context) as (admin, content):
            wanted = _parsed(admin_v1.FollowRequest(), content)
            run = self._run(wanted.run)
            coordinator, idle = run.coordinator, run.coordinator.settings.idle_seconds

            async def send(part: admin_v1.FollowedPart) -> None:
                await unless_silent(context.write(part), idle)

            config = await asyncio.to_thread((run.folder / "config.toml").read_text, encoding="utf-8")
            await send(admin_v1.FollowedPart(config=config))
            offset, events = wanted.offset, run.folder / "events.jsonl"
            if offset > await asyncio.to_thread(_size, events):
                offset = 0
                await send(admin_v1.FollowedPart(restart=True))
            while True:
                ended = coordinator.ended.done() or coordinator.stopping
                status = plain_json(asdict(status_of(coordinator, run.servicer)))
                await send(admin_v1.FollowedPart(status=status))
                while lines := await asyncio.to_thread(_lines, events, offset):
                    await send(admin_v1.FollowedPart(events=lines))
                    offset += len(lines)
                if ended:
                    return
                await asyncio.sleep(SECONDS)
                await self.gate.check_still_known(admin)


def admin_handlers(servicer: AdminServicer) -> grpc.GenericRpcHandler:
    """Return the calls of operators by their names."""
    return grpc.method_handlers_generic_handler(ADMINISTRATION, {
        "Enter": grpc.unary_unary_rpc_method_handler(
            servicer.Enter, parsed_signed, admin_v1.Entered.SerializeToString),
        "Steer": grpc.unary_unary_rpc_method_handler(
            servicer.Steer, parsed_signed, admin_v1.Steered.SerializeToString),
        "Export": grpc.unary_stream_rpc_method_handler(
            servicer.Export, parsed_signed, admin_v1.ExportPart.SerializeToString),
        "Follow": grpc.unary_stream_rpc_method_handler(
            servicer.Follow, parsed_signed, admin_v1.FollowedPart.SerializeToString),
    })  # fmt: skip


def _check_alive(coordinator: Coordinator) -> None:
    """Raise `Refused` if nothing can be journaled any more."""
    if coordinator.failure is not None:
        raise Refused(Cause.FAILED, "the run has failed; the server's log says why")
    if coordinator.stopping and coordinator.run_state.over is None:
        raise Refused(Cause.STOPPING, "the server is about to stop; ask again when it is back")


def _reason(text: str) -> str:
    if len(text) > LONGEST:
        raise Refused(Cause.ACT, f"the reason has {len(text)} characters; at most {LONGEST} are kept")
    return text


def _size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


def _lines(file: Path, offset: int) -> bytes:
    """Return whole lines from an offset on, at most a message of them; b"" if there are none. A line that is
    longer than a message is returned in pieces."""
    if not file.exists():
        return b""
    with file.open("rb") as content:
        content.seek(offset)
        found = content.read(CHUNK)
    end = found.rfind(b"\n") + 1
    return found[:end] if end or len(found) < CHUNK else found


def _parsed(message: M, content: bytes) -> M:
    """Fill an empty message from these bytes; raise `Refused` if they are malformed."""
    try:
        message.ParseFromString(content)
    except DecodeError:
        raise Refused(Cause.UNSIGNED, f"the request's content is not a {type(message).__name__}") from None
    return message
