"""Options and helpers of the commands of a served run."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from tardigrad.errors import ConfigError


class LogFormat(Enum):
    """The format of the log."""

    text = "text"
    json = "json"


class LogLevel(Enum):
    """The lowest level that is written to the log."""

    debug = "debug"
    info = "info"
    warning = "warning"
    error = "error"


LogFormatOption = Annotated[LogFormat, typer.Option(help="The format of the log on stderr.")]
LogLevelOption = Annotated[LogLevel, typer.Option(help="The lowest level that is logged.")]
CA = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="The server's ca.pem (default: beside the key)."),
]


def fault_of(address: str) -> str:
    """Return what is wrong with HOST:PORT, or "".

    The text never has the whole address, because rich would show parts such as ":100:" as an emoji.
    """
    host, colon, port = address.rpartition(":")
    if not colon:
        return f"{port[:60]!r} has no port; write it after a colon, such as localhost:7433"
    if not (port.isascii() and port.isdigit() and len(port) < 6 and 0 < int(port) < 65536):
        return f"{port[:20]!r} is not a port from 1 to 65535"
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        return "an IPv6 address must be in brackets, such as [::1]:7433"
    return "" if host and not any(c.isspace() for c in host) else f"{host!r} is not a host"


def say(line: str) -> None:
    """Print a line for the operator."""
    Console().print(line, highlight=False, markup=False, soft_wrap=True)


def authority_of(ca: Path | None, key: Path) -> bytes:
    """Return the certificate of the server's authority, from a file that is given or beside the key."""
    from cryptography import x509

    from tardigrad.service.access.certificates import AUTHORITY

    file = ca or key.parent / AUTHORITY
    try:
        content = file.read_bytes()
        x509.load_pem_x509_certificates(content)
    except OSError as error:
        raise ConfigError(
            f"--ca {file}: cannot be read ({error.strerror}); give the server's ca.pem"
        ) from None
    except ValueError:
        raise ConfigError(f"--ca {file}: is not a certificate in PEM; give the server's ca.pem") from None
    return content
