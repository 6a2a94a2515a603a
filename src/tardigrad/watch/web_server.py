"""Serving the page: listening on an address until Ctrl-C."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
from collections.abc import Callable, Sequence

import uvicorn

from tardigrad.errors import ConfigError
from tardigrad.watch.gate import Gate, is_loopback
from tardigrad.watch.web_app import WatchPage

SHORT = 2
"""Seconds that open streams have to end."""


async def serve_page(
    page: WatchPage,
    host: str,
    port: int,
    names: Sequence[str] = (),
    token: bool = False,
    say: Callable[[str], None] = print,
) -> None:
    """Serve the page until cancelled. `say` is told its address; a page that others can reach, or `token`,
    has a token in it."""
    listening = _listen(host, port)
    with listening:
        port = listening.getsockname()[1]
        secret = None if is_loopback(host) and not token else secrets.token_urlsafe(32)
        gate = Gate(page.app(), host, port, names, secret)
        settings = uvicorn.Config(
            gate, log_level="error", access_log=False, server_header=False, lifespan="off",
            timeout_graceful_shutdown=SHORT, limit_concurrency=200, h11_max_incomplete_event_size=16_384,
        )  # fmt: skip
        server = _Server(settings)
        shown = f"[{host}]" if ":" in host else socket.gethostname() if host == "0.0.0.0" else host
        say(f"http://{shown}:{port}/" + ("" if secret is None else f"?token={secret}"))
        following = asyncio.create_task(page.follow())
        serving = asyncio.create_task(server.serve([listening]))
        try:
            await asyncio.wait({following, serving}, return_when=asyncio.FIRST_COMPLETED)
            if following.done():
                following.result()
        finally:
            following.cancel()
            server.should_exit = True
            with contextlib.suppress(asyncio.CancelledError):
                await serving


class _Server(uvicorn.Server):
    """Leaves signals to the caller."""

    @contextlib.contextmanager
    def capture_signals(self):  # type: ignore[no-untyped-def]
        """Capture none."""
        yield


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host.strip("[]"), port), family=family, backlog=100)
    except OSError as error:
        said = error.strerror or error
        raise ConfigError(
            f"--host {host} --port {port}: cannot listen there ({said}); give another --port"
        ) from None
