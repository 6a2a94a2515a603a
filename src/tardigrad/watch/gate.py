"""Who may see the page: the check of every request before it is answered, and the headers of every answer.

A page on loopback is for the programs of this machine; other pages in the same browser must not read it. So
the name by which it is addressed is checked (a foreign name that points to 127.0.0.1 is refused), and so is
the page from which a request comes. On any other address a token is needed as well.
"""

from __future__ import annotations

import hmac
import ipaddress
import secrets
import socket
from collections.abc import Iterable
from http.cookies import CookieError, SimpleCookie

from starlette.datastructures import Headers, MutableHeaders, QueryParams
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""The content security policy: only files of the page itself, and nothing inline."""
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
LOOPBACK_NAMES = ("127.0.0.1", "localhost", "[::1]")
NEEDS_TOKEN = "This page needs a token: open the address that `tardigrad watch` has printed.\n"


def is_loopback(host: str) -> bool:
    """Return whether only programs of this machine can reach an address.

    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


class Gate:
    """Passes on the requests that are allowed, and answers the others itself."""

    def __init__(self, app: ASGIApp, host: str, port: int, names: Iterable[str], token: str | None) -> None:
        """`names`: more names by which the page may be addressed. `token`: None if none is needed."""
        self._app, self._port, self._token = app, port, token
        self._any_address = not is_loopback(host)
        self._names = {name.lower() for name in (*LOOPBACK_NAMES, *names)}
        if self._any_address:
            self._names |= {host.lower(), socket.gethostname().lower(), socket.getfqdn().lower()}
        self._cookie = f"tardigrad-watch-{port}"  # cookies are not separate by port
        self._session = secrets.token_urlsafe(32)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            return
        answer = self._refusal(scope)

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        await (self._app if answer is None else answer)(scope, receive, send_with_headers)

    def _refusal(self, scope: Scope) -> Response | None:
        """Return the answer to a request that is not passed on, or None."""
        headers = Headers(scope=scope)
        if scope["method"] not in ("GET", "HEAD"):
            return PlainTextResponse("This page can only be read.\n", 405)
        if len(headers.getlist("host")) != 1 or not self._is_mine(headers["host"]):
            return PlainTextResponse("This page is not known by this name.\n", 421)
        origin = headers.get("origin")
        if origin is not None and origin not in {f"{way}://{headers['host']}" for way in ("http", "https")}:
            return PlainTextResponse("Other pages may not read this one.\n", 403)
        if scope["path"] != "/" and headers.get("sec-fetch-site") not in (None, "same-origin", "none"):
            return PlainTextResponse("Other pages may not read this one.\n", 403)
        return self._without_token(scope, headers)

    def _is_mine(self, name: str) -> bool:
        host, _, port = name.rpartition(":") if not name.endswith("]") else (name, "", "80")
        if not host:
            host, port = name, "80"
        if host.lower() in self._names and (port == str(self._port) or self._any_address):
            return True
        if not self._any_address:
            return False
        try:
            ipaddress.ip_address(host.strip("[]"))
        except ValueError:
            return False
        return True  # an address cannot be made to point here by somebody's name server

    def _without_token(self, scope: Scope, headers: Headers) -> Response | None:
        """Return None for a request with the session's cookie. A request with the token gets the cookie."""
        if self._token is None:
            return None
        try:
            cookie = SimpleCookie(headers.get("cookie", "")).get(self._cookie)
        except CookieError:
            cookie = None
        if cookie is not None and _same(cookie.value, self._session):
            return None
        given = QueryParams(scope["query_string"]).get("token", "") if scope["path"] == "/" else ""
        if not _same(given, self._token):
            return PlainTextResponse(NEEDS_TOKEN, 401)
        answer = RedirectResponse("/", 303)
        answer.set_cookie(self._cookie, self._session, httponly=True, samesite="strict", path="/")
        return answer


def _same(given: str, expected: str) -> bool:
    """Compare in constant time."""
    return hmac.compare_digest(given.encode("utf-8", "replace"), expected.encode())
