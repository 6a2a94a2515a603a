"""Ctrl-C: the first stops a run where a snapshot can be written, the second stops it at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import TypeVar

T = TypeVar("T")


class Interrupt:
    """An object that is true after Ctrl-C was pressed.

    Signals reach only the main thread, and only a program without a handler of its own for SIGINT; in other
    cases this is never true.
    """

    def __init__(self, wanted: bool = True) -> None:
        self._wanted = wanted
        self._asked = False

    def __bool__(self) -> bool:
        return self._asked

    def watch(self, items: Iterator[T]) -> Iterator[T]:
        """Yield the items until there are no more or Ctrl-C was pressed."""
        ours = (
            self._wanted
            and threading.current_thread() is threading.main_thread()
            and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        )
        if ours:
            signal.signal(signal.SIGINT, self._ask)
        try:
            while not self._asked:
                try:
                    item = next(items)
                except StopIteration:
                    return
                yield item
        finally:
            if ours:
                signal.signal(signal.SIGINT, signal.default_int_handler)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self._asked:
            raise KeyboardInterrupt
        self._asked = True
