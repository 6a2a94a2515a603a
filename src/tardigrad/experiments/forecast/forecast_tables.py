"""Show forecasts as a table, and draw them as a picture."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tardigrad.experiments.compare.plot import COLOURS
from tardigrad.experiments.forecast.forecast import Forecast

COLUMNS: dict[str, tuple[str, Callable[[Forecast], str]]] = {
    "steps/time": ("steps per unit of time", lambda one: f"{one.steps_per_time:,.2f}"),
    "MB/time": ("megabytes per unit of time", lambda one: _megabytes(one.megabytes_per_time)),
    "MB down": ("megabytes of a download", lambda one: _size(one, one.megabytes_down)),
    "MB up": ("megabytes of an upload", lambda one: _size(one, one.megabytes_up)),
    "download": ("seconds of a trip, mean: download", lambda one: _part(one, "download")),
    "compute": ("    compute", lambda one: _part(one, "compute")),
    "upload": ("    upload", lambda one: _part(one, "upload")),
    "waiting": ("    waiting", lambda one: _part(one, "waiting")),
    "at work": ("clients at work, mean", lambda one: f"{one.in_flight:,.1f}"),
    "staleness": ("staleness, mean", lambda one: f"{one.staleness_mean:,.1f}"),
    "95 %": ("staleness, 95th percentile", lambda one: f"{one.staleness_95:,.0f}"),
    "given up": ("trips that were given up", lambda one: _given_up(one)),
    "absent": (
        "clients that were never there",
        lambda one: f"{one.never_there:,}" if one.never_there else "-",
    ),
    "refused": ("refused uploads", lambda one: f"{sum(one.refused.values()) / max(one.trips, 1):.1%}"),
    "k": ("contributions of one client, most", lambda one: f"{one.participations_max:,}"),
    "b": ("steps between two of them, fewest", lambda one: _or_dash(one.separation_min, ",")),
    "epsilon": ("epsilon with BLT noise", lambda one: _or_dash(one.epsilon, ",.3g")),
    "fast/slow": ("contributions, fast half / slow half", lambda one: _or_dash(one.fast_over_slow, ".2f")),
    "rich/poor": ("contributions, rich half / poor half", lambda one: _or_dash(one.rich_over_poor, ".2f")),
}
"""By short heading: the heading in full, and the text of a cell."""
OPTIONAL = ("MB down", "MB up", "download", "compute", "upload", "waiting", "given up", "absent")
"""Columns that are left out where no plan has anything to say."""
SHORT_HEADINGS = (
    "k, b: the most contributions of one client, and the fewest steps between two of them; epsilon: what "
    "these cost with BLT noise (docs/privacy.md). fast/slow, rich/poor: contributions of one half of the "
    "clients over those of the other."
)
FULL_HEADINGS = (
    "epsilon: what the contributions of one client cost (docs/privacy.md). rich: clients with many examples."
)


def _size(one: Forecast, megabytes: float | None) -> str:
    told_apart = one.split is not None or one.megabytes_down != one.megabytes_up
    return _or_dash(megabytes, ",.3g") if told_apart else "-"


def _part(one: Forecast, name: str) -> str:
    return "-" if one.split is None else f"{one.split[name]:,.3g} ({_share_of(one.split, name):.0%})"


def _share_of(split: dict[str, float], name: str) -> float:
    return split[name] / (sum(split.values()) or 1.0)


def _given_up(one: Forecast) -> str:
    return f"{one.given_up / (one.trips + one.given_up):.1%}" if one.given_up else "-"


def _columns(forecasts: list[Forecast]) -> dict[str, tuple[str, Callable[[Forecast], str]]]:
    """Return the columns in which at least one plan has something to say."""
    return {
        heading: column
        for heading, column in COLUMNS.items()
        if heading not in OPTIONAL or any(column[1](one) != "-" for one in forecasts)
    }


def _or_dash(value: float | None, format_: str) -> str:
    return "-" if value is None else format(value, format_)


def _megabytes(value: float | None) -> str:
    """Return a rate as text; a small one with two digits, because it is not 0."""
    return _or_dash(value, ",.1f" if value is None or value >= 0.1 else ".2g")


def show_forecasts(forecasts: list[Forecast], console: Console) -> None:
    """Print a row for each forecast; in a terminal too narrow for that, a column for each."""
    table = _horizontal(forecasts)
    if _width(table) <= console.width:
        console.print(table)
        console.print(SHORT_HEADINGS, highlight=False, style="dim")
        return
    for some in _blocks(forecasts, console.width):
        console.print(_vertical(some))
    console.print(FULL_HEADINGS, highlight=False, style="dim")


def _horizontal(forecasts: list[Forecast]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for name in forecasts[0].settings or ["plan"]:
        table.add_column(escape(name.split(".")[-1]), no_wrap=True, min_width=4)
    columns = _columns(forecasts)
    for heading in columns:
        table.add_column(heading, justify="right", no_wrap=True)
    for one in forecasts:
        settings = [escape(value) for value in one.settings.values()] or ["as it is"]
        table.add_row(*settings, *(cell(one) for _, cell in columns.values()))
    return table


def _vertical(forecasts: list[Forecast]) -> Table:
    table = Table(box=box.SIMPLE, padding=(0, 2, 0, 0), pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    for _ in forecasts:
        table.add_column(justify="right", overflow="fold")
    for name in forecasts[0].settings:
        table.add_row(escape(name), *(escape(one.settings[name]) for one in forecasts), style="cyan")
    for heading, cell in _columns(forecasts).values():
        table.add_row(heading, *map(cell, forecasts))
    return table


def _blocks(forecasts: list[Forecast], width: int) -> Iterator[list[Forecast]]:
    """Split the forecasts into groups whose columns fit side by side, with at least one in each."""
    block: list[Forecast] = []
    for one in forecasts:
        if block and _width(_vertical([*block, one])) > width:
            yield block
            block = []
        block.append(one)
    yield block


def _width(table: Table) -> int:
    return Console(width=1000).measure(table).maximum


def draw_forecasts(forecasts: list[Forecast], file: Path) -> None:
    """Draw staleness, speed and bias, with a bar for each forecast."""
    labels = [
        ", ".join(f"{name.split('.')[-1]} {value}" for name, value in one.settings.items()) or "plan"
        for one in forecasts
    ]
    all_panels: list[tuple[str, list[float | None]]] = [
        ("steps per unit of time", [one.steps_per_time for one in forecasts]),
        ("staleness (dot: mean, bar: to the 95th percentile)", [one.staleness_95 for one in forecasts]),
        ("contributions, fast half over slow half", [one.fast_over_slow for one in forecasts]),
        ("contributions, rich half over poor half", [one.rich_over_poor for one in forecasts]),
    ]
    panels = [(title, values) for title, values in all_panels if any(value is not None for value in values)]
    size = (4.2 * len(panels), 1.0 + 0.34 * len(forecasts))
    figure, axes = plt.subplots(
        1, len(panels), figsize=size, sharey=True, squeeze=False, layout="constrained"
    )
    places = range(len(forecasts))
    for axis, (title, values), colour in zip(axes[0], panels, COLOURS):
        shown = [value or 0.0 for value in values]
        bars = axis.barh(places, shown, color=colour, height=0.7)
        numbers = [f"{value:,.0f}" if value >= 100 else f"{value:.3g}" for value in shown]
        axis.bar_label(bars, numbers, padding=3, fontsize=8, color="0.25")
        if max(shown) > 30 * (min(shown) or 1.0):
            axis.set_xscale("symlog", linthresh=1.0)
        axis.margins(x=0.15)
        if title.startswith("staleness"):
            axis.plot([one.staleness_mean for one in forecasts], places, "o", color="0.1", markersize=4)
        if title.startswith("contributions"):
            axis.axvline(1.0, color="0.4", linewidth=1, linestyle=":")
        axis.set_title(title, fontsize=9, loc="left")
        axis.spines[["top", "right"]].set_visible(False)
        axis.set_yticks(list(places), labels)
    axes[0][0].invert_yaxis()
    figure.savefig(file, dpi=140)
    plt.close(figure)
