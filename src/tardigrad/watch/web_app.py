"""The page's web application: its files, a stream of what changes, and pages of the list of clients."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from tardigrad.core.plain_json import plain_json
from tardigrad.watch.assets import TYPES, asset
from tardigrad.watch.panels import PANELS, curves, overview
from tardigrad.watch.run_readers import FolderReader, WatchedFolders
from tardigrad.watch.watched_run import WatchedRun

if TYPE_CHECKING:
    from tardigrad.watch.server_reader import ServerReader

SECONDS = 0.5
"""How often the runs' files are looked at."""
MOST_VIEWERS = 32
COMPARED_POINTS = 2000
"""Points of all curves together where runs are compared."""


class WatchPage:
    """The runs that are watched, and the answers to requests about them."""

    def __init__(self, folders: WatchedFolders | None, servers: list[ServerReader]) -> None:
        self._folders, self._servers = folders, servers
        self._readers: list[FolderReader | ServerReader] = list(servers)
        self._viewers = 0
        self._closed = False
        self._changed = asyncio.Event()
        self._cache: dict[tuple[int, str], str] = {}

    @property
    def runs(self) -> list[WatchedRun]:
        """All runs. The position of a run in this list never changes and is its name in requests."""
        return [reader.run for reader in self._readers]

    def app(self) -> Starlette:
        """Return the web application."""
        return Starlette(
            routes=[
                Route("/", self._index),
                Route("/static/{name}", self._static),
                Route("/events", self._events),
                Route("/clients", self._clients),
            ]
        )

    async def follow(self) -> None:
        """Read what is new, again and again, until cancelled."""
        tasks = [asyncio.create_task(server.follow()) for server in self._servers]
        told = -SECONDS
        try:
            while True:
                more = self._look()
                if not more or time.monotonic() - told >= SECONDS:
                    self._tell()
                    told = time.monotonic()
                await asyncio.sleep(0 if more else SECONDS)
        finally:
            for task in tasks:
                task.cancel()
            self._closed = True
            self._tell()

    def _look(self) -> bool:
        """Read a piece of each run's events; return whether one of them has more."""
        if self._folders is not None:
            self._readers += self._folders.new_readers()
        more = [reader.read() for reader in self._readers if isinstance(reader, FolderReader)]
        now = time.monotonic()
        for run in self.runs:
            run.tick(now)
        return any(more)

    def _tell(self) -> None:
        self._cache.clear()
        self._changed.set()
        self._changed = asyncio.Event()

    # -- answers -----------------------------------------------------------------------------------

    async def _index(self, _: Request) -> Response:
        """Return the page, with the parts visible that it will need, so that nothing moves when they come."""
        runs = self.runs
        private = any("epsilon" in one.metrics for run in runs[:1] for one in run.steps.points()[:1])
        is_served = any(run.status is not None for run in runs[:1])
        progress = any(run.progress_only for run in runs[:1])
        parts = {"several": len(runs) > 1, "private": private, "served": is_served, "progress": progress}
        classes = " ".join(name for name, on in parts.items() if on)
        return Response(asset("watch.html").replace("{classes}", classes), media_type=TYPES["watch.html"])

    async def _static(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in TYPES:
            return PlainTextResponse("There is no such file.\n", 404)
        return Response(asset(name), media_type=TYPES[name])

    async def _clients(self, request: Request) -> Response:
        asked = request.query_params
        run = self._run(asked.get("run", "0"))
        if run is None:
            return PlainTextResponse("There is no such run.\n", 404)
        page = asked.get("page", "0")
        found = run.clients.page(
            asked.get("search", "")[:200],
            asked.get("sort", "trips"),
            asked.get("down", "1") == "1",
            int(page) if page.isascii() and page.isdigit() and len(page) < 8 else 0,
            run.status,
        )
        return Response(plain_json(found), media_type="application/json")

    async def _events(self, request: Request) -> Response:
        number = request.query_params.get("run", "0")
        if self._run(number) is None:
            return PlainTextResponse("There is no such run.\n", 404)
        if self._viewers >= MOST_VIEWERS:
            return PlainTextResponse("Too many pages are open.\n", 503)
        return StreamingResponse(self._stream(int(number)), media_type="text/event-stream")

    def _run(self, number: str) -> WatchedRun | None:
        if not (number.isascii() and number.isdigit() and len(number) < 6):
            return None
        runs = self.runs or [WatchedRun("")]  # before there is one, the first is empty
        return runs[int(number)] if int(number) < len(runs) else None

    async def _stream(self, number: int) -> AsyncIterator[str]:
        """Yield the panels of a run that have changed, as server-sent events."""
        sent: dict[str, str] = {}
        self._viewers += 1
        try:
            while not self._closed:
                changed = self._changed
                panels = {name: self._panel(number, name) for name in ("runs", "compare", *PANELS)}
                news = {name: text for name, text in panels.items() if sent.get(name) != text}
                if news:
                    sent |= news
                    body = ",".join(f'"{name}":{text}' for name, text in news.items())
                    yield f"data: {{{body}}}\n\n"
                else:
                    yield ": \n\n"  # so that a browser that went away is noticed
                await changed.wait()
        finally:
            self._viewers -= 1

    def _panel(self, number: int, name: str) -> str:
        """Return a panel as JSON, made once for all viewers."""
        key = (number if name in PANELS else -1, name)
        if key not in self._cache:
            self._cache[key] = plain_json(self._content(number, name))
        return self._cache[key]

    def _content(self, number: int, name: str) -> object:
        runs = self.runs
        if name == "runs":
            unlisted = self._folders is not None and self._folders.unlisted
            return {"runs": [overview(run) for run in runs], "unlisted": unlisted}
        if name == "compare":
            if len(runs) < 2:
                return []
            return [
                {"entry": run.entry, "seed": run.seed, **curves(run, max(40, COMPARED_POINTS // len(runs)))}
                for run in runs
            ]
        return PANELS[name](runs[number]) if number < len(runs) else None
