"""The gRPC server: its options, its handlers, the health service, and listening on an address."""

from __future__ import annotations

import asyncio
import socket
from typing import Generic, TypeVar

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from tardigrad.errors import ConfigError
from tardigrad.service.access.certificates import SERVER, SERVER_KEY
from tardigrad.service.protocol.v1 import service_pb2 as v1
from tardigrad.service.protocol.v1 import service_pb2_grpc as v1_grpc
from tardigrad.service.protocol.wire import LARGEST_MESSAGE, received

NAME = "tardigrad.v1.Federation"
OPTIONS = [
    ("grpc.max_receive_message_length", LARGEST_MESSAGE),
    ("grpc.max_send_message_length", LARGEST_MESSAGE),
    ("grpc.so_reuseport", 0),
    ("grpc.max_concurrent_streams", 16),  # of one connection
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
]


S = TypeVar("S", bound=v1_grpc.FederationServicer)


class Listener:
    """A gRPC server with the calls of one service and the standard health service."""

    def __init__(self, name: str, handlers: grpc.GenericRpcHandler) -> None:
        """`name`: of the service, for the health check."""
        self._name = name
        self._server = grpc.aio.server(options=OPTIONS)
        self._health = health.aio.HealthServicer()
        self._server.add_generic_rpc_handlers((handlers,))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)

    def add(self, handlers: grpc.GenericRpcHandler) -> None:
        """Answer the calls of another service too. To be called before `start`."""
        self._server.add_generic_rpc_handlers((handlers,))

    async def start(self, address: str, credentials: grpc.ServerCredentials | None) -> int:
        """Listen on "HOST:PORT" and return the port, which the system chooses if 0 was given. Without
        credentials the server listens without TLS."""
        host, _, number = address.rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        where = f"--host {host or repr(host)} --port {number}"
        if fault := await asyncio.to_thread(_binding_fault, host, int(number)):
            raise ConfigError(
                f"{where}: cannot listen there ({fault}); give an address of this machine and a free port"
            )
        address = f"[{host}]:{number}" if ":" in host else f"{host}:{number}"
        try:
            if credentials is None:
                port = self._server.add_insecure_port(address)
            else:
                port = self._server.add_secure_port(address, credentials)
        except RuntimeError:
            if credentials is None:
                raise ConfigError(f"{where}: cannot listen there; give another port") from None
            raise ConfigError(  # the address could be bound, so the certificate is at fault
                f"--keys: {SERVER} and {SERVER_KEY} cannot be used to listen with {where}; they must be a "
                "certificate in PEM and the key that belongs to it"
            ) from None
        await self._server.start()
        for name in ("", self._name):
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)
        return int(port)

    async def stop(self, grace: float) -> None:
        """Accept no new calls, and cancel those that have not ended after `grace` seconds."""
        await self._health.enter_graceful_shutdown()
        await self._server.stop(grace)


class Server(Listener, Generic[S]):
    """The listener of the server of a run."""

    def __init__(self, servicer: S) -> None:
        super().__init__(NAME, _handlers(servicer))
        self.servicer = servicer


def _handlers(servicer: v1_grpc.FederationServicer) -> grpc.GenericRpcHandler:
    """Return the calls by their names. The generated handlers are not used, because they log a traceback for
    each malformed request and copy chunks."""
    return grpc.method_handlers_generic_handler(NAME, {
        "Join": grpc.unary_unary_rpc_method_handler(
            servicer.Join, parsed_signed, v1.Joined.SerializeToString),
        "FetchTask": grpc.unary_stream_rpc_method_handler(
            servicer.FetchTask, parsed_signed, _serialized),
        "Deliver": grpc.stream_unary_rpc_method_handler(
            servicer.Deliver, received, v1.Answer.SerializeToString),
        "GiveUp": grpc.unary_unary_rpc_method_handler(
            servicer.GiveUp, parsed_signed, v1.GivenUp.SerializeToString),
        "OfferKeys": grpc.unary_unary_rpc_method_handler(
            servicer.OfferKeys, parsed_signed, v1.OfferedKeys.SerializeToString),
        "Watch": grpc.unary_stream_rpc_method_handler(
            servicer.Watch, parsed_signed, v1.Progress.SerializeToString),
    })  # fmt: skip


def parsed_signed(data: bytes) -> v1.Signed:
    """Return the request in these bytes. Malformed bytes become an empty, unsigned request."""
    try:
        return v1.Signed.FromString(data)
    except DecodeError:
        return v1.Signed()


def _serialized(part: v1.TaskPart | bytes) -> bytes:
    """Return the bytes of a part, which may have been serialized before."""
    return part if isinstance(part, bytes) else part.SerializeToString()


def _binding_fault(host: str, port: int) -> str:
    """Return why a socket cannot be bound to this address, or "" if it can. gRPC itself does not say."""
    if not host:
        return "no host was given"
    fault = ""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        return getattr(error, "strerror", None) or str(error)
    for family, kind, protocol, _, address in found:
        try:
            with socket.socket(family, kind, protocol) as trial:
                trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                trial.bind(address)
                return ""
        except OSError as error:
            fault = error.strerror or str(error)
    return fault
