"""Forecasts as a table and a picture."""

from __future__ import annotations

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


def show_forecasts(forecasts: list[Forecast], console: Console) -> None:
    """In the terminal: a row for each."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    names = list(forecasts[0].settings)
    for name in names or ["plan"]:
        table.add_column(escape(name.split(".")[-1]), no_wrap=True, min_width=4)
    speed = ("steps/time", "MB/time", "at work", "staleness", "95 %", "refused")
    for heading in (*speed, "k", "b", "epsilon", "fast/slow", "rich/poor"):
        table.add_column(heading, justify="right", overflow="fold")
    for one in forecasts:
        refused = sum(one.refused.values()) / max(one.trips, 1)
        table.add_row(
            *(escape(str(one.settings[name])) for name in names or []),
            *([] if names else ["as it is"]),
            f"{one.steps_per_time:,.2f}",
            "-" if one.megabytes_per_time is None else f"{one.megabytes_per_time:,.1f}",
            f"{one.in_flight:,.1f}",
            f"{one.staleness_mean:,.1f}",
            f"{one.staleness_95:,.0f}",
            f"{refused:.1%}",
            f"{one.participations_max:,}",
            "-" if one.separation_min is None else f"{one.separation_min:,}",
            "-" if one.epsilon is None else f"{one.epsilon:,.3g}",
            "-" if one.fast_over_slow is None else f"{one.fast_over_slow:.2f}",
            "-" if one.rich_over_poor is None else f"{one.rich_over_poor:.2f}",
        )
    console.print(table)
    console.print(
        "k, b: how often, and at how many steps' distance, one client came at most; epsilon: what that would "
        "cost with BLT noise (docs/privacy.md). fast/slow, rich/poor: contributions of one half of the "
        "clients over the other's.",
        highlight=False,
        style="dim",
    )


def draw_forecasts(forecasts: list[Forecast], file: Path) -> None:
    """Staleness, speed, and bias, a bar for each forecast."""
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
