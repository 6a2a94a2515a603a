"""The threads of a server besides the one of its event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar, TypeVarTuple

from tardigrad.service.monitor.logs import served_run

T = TypeVar("T")
Given = TypeVarTuple("Given")


class Threads:
    """Run work that would block the event loop: one thread for tensors, one for the journal, and one for file
    operations whose result nobody awaits."""

    def __init__(self) -> None:
        self.model, self.disk, self.files = (
            ThreadPoolExecutor(1, name, served_run.set, (served_run.get(),))
            for name in ("model", "journal", "files")
        )

    def in_model_thread(self, function: Callable[[*Given], T], *given: *Given) -> asyncio.Future[T]:
        """Call the function on the model thread, after all work that was submitted to it before."""
        return asyncio.get_running_loop().run_in_executor(self.model, function, *given)

    def on_disk(self, function: Callable[[*Given], T], *given: *Given) -> asyncio.Future[T]:
        """Call the function on the journal's thread, after all work that was submitted to it before."""
        return asyncio.get_running_loop().run_in_executor(self.disk, function, *given)

    def close(self) -> None:
        """Wait until all submitted work is done, and end the threads."""
        for threads in (self.model, self.disk, self.files):
            threads.shutdown()
