"""Where a server listens: its address, its certificate, and whether uploads are stored durably."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from pathlib import Path

import grpc

from tardigrad.errors import ConfigError
from tardigrad.service.access.certificates import SERVER, SERVER_KEY


@dataclass(frozen=True)
class Endpoint:
    """Where a server listens, and how it protects its clients.

    >>> Endpoint(port=7433, insecure=True).check()
    """

    host: str = "127.0.0.1"
    """The address to listen on."""
    port: int = 0
    """0 lets the system choose a free port."""
    keys: Path = Path("keys")
    """The folder with the list of enrolled clients and the server's certificate."""
    insecure: bool = False
    """Whether to listen without TLS. Only a loopback address is allowed then."""
    durable: bool = True
    """Whether uploads are on disk before they are acknowledged."""
    metrics_port: int | None = None
    """The port of the Prometheus metrics, over plain HTTP; 0 is any free port, None is no metrics."""
    metrics_host: str = "127.0.0.1"
    """The address of the metrics."""

    def check(self) -> None:
        """Raise a ConfigError if these settings are not safe together, or a port is none."""
        for name, port in (("port", self.port), ("metrics_port", self.metrics_port)):
            if port is not None and not 0 <= port < 65536:
                raise ConfigError(f"{name}: {port} is not a port from 1 to 65535, or 0 for any free one")
        if self.insecure and not is_loopback(self.host):
            raise ConfigError(f"--insecure: without TLS only on this machine (127.0.0.1), not on {self.host}")
        if not self.durable and not self.insecure:
            raise ConfigError("--no-durability: is for measurements, and only together with --insecure")

    def credentials(self) -> grpc.ServerCredentials | None:
        """Return the server's certificate with its key, or None if it listens without TLS."""
        if self.insecure:
            return None
        try:
            private, public = (self.keys / SERVER_KEY).read_bytes(), (self.keys / SERVER).read_bytes()
        except OSError as error:
            raise ConfigError(
                f"--keys {self.keys}: no {SERVER} with its key is there ({error}); "
                "`tardigrad enroll` makes one"
            ) from None
        return grpc.ssl_server_credentials([(private, public)])


def is_loopback(host: str) -> bool:
    """Return whether this host is the machine itself."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
