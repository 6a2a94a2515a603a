"""Ctrl-C: the first asks the run to stop where all is whole, the second stops it at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import TypeVar

T = TypeVar("T")


class Interrupt:
    """Truth, once somebody has asked to stop.

    Only the main thread of a program that has not made other arrangements hears of signals; elsewhere this
    is never true.
    """

    def __init__(self, wanted: bool = True) -> None:
        self._wanted = wanted
        self._asked = False

    def __bool__(self) -> bool:
        return self._asked

    def watch(self, items: Iterator[T]) -> Iterator[T]:
        """The items, until there are no more or somebody asks to stop."""
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
