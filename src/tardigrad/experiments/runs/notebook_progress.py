"""The progress bar of `td.run`: in a notebook an HTML element, on a terminal that of the command line."""

from __future__ import annotations

import time
from html import escape

from rich.console import Console

from tardigrad.core.events import Event, ModelEvaluated
from tardigrad.experiments.config.schema import Config
from tardigrad.experiments.runs.progress import Bar, ProgressText

SECONDS = 0.3
"""The least time between two updates in a notebook, which stores and sends each of them."""


def progress_bars(wanted: bool | None) -> tuple[Bar | NotebookBar, ...]:
    """Return the progress bar of a run in Python in a tuple, which is empty if there should be none.

    `wanted`: None stands for: in a notebook, and where standard error is a terminal.
    """
    console = Console(stderr=True)
    if wanted is False or (wanted is None and not (console.is_jupyter or console.is_terminal)):
        return ()
    return (NotebookBar() if console.is_jupyter else Bar(console),)


class NotebookBar:
    """An observer that shows a progress bar below the cell of a notebook. It needs no widgets."""

    def begin(self, config: Config, history: list[ModelEvaluated]) -> None:
        """Show the bar."""
        from IPython.display import display

        self._text = ProgressText(config, history)
        self._shown = time.monotonic()
        self._handle = display(self._data(), raw=True, display_id=True)

    def see(self, events: list[Event]) -> None:
        """Count these events and update the bar if it is time."""
        self._text.counts.see(events)
        now = time.monotonic()
        if now - self._shown > SECONDS:
            self._shown = now
            self._handle.update(self._data(), raw=True)

    def end(self) -> None:
        """Show how far the run came."""
        self._handle.update(self._data(), raw=True)

    def _data(self) -> dict[str, str]:
        said = ", ".join(text for text in self._text.fields().values() if text)
        share = self._text.share
        bar = f'<progress value="{share:.3f}" max="1" style="width: 12em"></progress>'
        return {
            "text/plain": f"{share:4.0%}  {said}",
            "text/html": f'<div style="font-variant-numeric: tabular-nums">{bar} {share:.0%} &nbsp; '
            f"{escape(said)}</div>",
        }
