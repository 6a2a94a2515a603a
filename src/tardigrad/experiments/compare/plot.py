"""Draw a metric over client trips and over virtual time, with a band over seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib.ticker
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tardigrad.core.metric import ACCURACY, Metric

# Okabe and Ito's colours, which colour-blind people can tell apart
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
STYLES = ("-", "--", "-.", (0, (1, 1)), (0, (5, 1)), (0, (3, 1, 1, 1)), "-")


@dataclass(frozen=True)
class Curve:
    """One algorithm: for each seed a list of (trips, time, value of the metric)."""

    label: str
    runs: list[list[tuple[float, float, float]]]


def draw_comparison(
    curves: list[Curve],
    targets: Sequence[float],
    title: str,
    file: Path,
    metric: Metric = ACCURACY,
    baseline: tuple[str, float] | None = None,
) -> None:
    """Draw a metric over trips and over virtual time, with mean and range over seeds, the targets, and the
    baseline (what it predicts, and its value)."""
    figure = Figure(figsize=(11, 4.4), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    for axis, column, label in ((axes[0], 0, "client trips"), (axes[1], 1, "virtual time")):
        for number, curve in enumerate(curves):
            _band(axis, curve, column, number)
        for target in targets:
            axis.axhline(target, color="0.45", linewidth=1, linestyle=":")
        if baseline is not None:
            axis.axhline(baseline[1], color="0.45", linewidth=1, linestyle=(0, (6, 3)))
        axis.set_xlabel(label)
        _tidy(axis)
    below = 3 if metric.lower_is_better else -12  # on the side of the line where the curves are not
    easiest = max(targets) if metric.lower_is_better else min(targets)
    named = ", ".join(_target(target, metric) for target in targets)  # in one place: they may be close
    axes[1].annotate(
        f"target{'s' * (len(targets) > 1)} {named}", (1, easiest), xycoords=("axes fraction", "data"),
        xytext=(-4, below), textcoords="offset points", ha="right", fontsize=9, color="0.35",
    )  # fmt: skip
    _name_baseline(axes[1], baseline, metric)
    _metric_axis(axes[0], metric, "test ")
    axes[0].legend(frameon=False, loc="upper right" if metric.lower_is_better else "lower right")
    seeds = len(curves[0].runs)
    axes[1].set_title(
        f"mean and range over {seeds} seeds" if seeds > 1 else "one seed",
        loc="right",
        fontsize=9,
        color="0.35",
    )
    figure.suptitle(plain(title), x=0.01, ha="left", fontsize=12)
    _save(figure, file)


def _name_baseline(axis: Axes, baseline: tuple[str, float] | None, metric: Metric) -> None:
    """Write at the right end of its line what the baseline predicts, and its value."""
    if baseline is not None:
        axis.annotate(
            f"{baseline[0]}: {metric.shown(baseline[1])}", (1, baseline[1]),
            xycoords=("axes fraction", "data"), xytext=(-4, 3), textcoords="offset points", ha="right",
            fontsize=9, color="0.35",
        )  # fmt: skip


def _target(target: float, metric: Metric) -> str:
    return f"{100 * target:.3g} %" if metric.percent else f"{target:.4g}"


def _metric_axis(axis: Axes, metric: Metric, before: str = "") -> None:
    """Label the vertical axis with the metric."""
    axis.set_ylabel(f"{before}{metric}")
    if metric.percent:
        axis.yaxis.set_major_formatter(matplotlib.ticker.PercentFormatter(1.0, decimals=0))


def draw_run(
    curve: Curve,
    staleness: list[int],
    file: Path,
    metric: Metric = ACCURACY,
    baseline: tuple[str, float] | None = None,
) -> None:
    """Draw one run: a metric over trips and over time with its baseline, and the staleness of its uploads."""
    figure = Figure(figsize=(12, 3.8), layout="constrained")
    axes = figure.subplots(1, 3)
    for axis, column, label in ((axes[0], 0, "client trips"), (axes[1], 1, "virtual time")):
        _band(axis, curve, column, 0)
        if baseline is not None:
            axis.axhline(baseline[1], color="0.45", linewidth=1, linestyle=(0, (6, 3)))
        axis.set_xlabel(label)
        _metric_axis(axis, metric)
        _tidy(axis)
    _name_baseline(axes[1], baseline, metric)
    counts = np.bincount(staleness) if staleness else np.zeros(1)
    axes[2].bar(range(len(counts)), counts / max(counts.sum(), 1), color=COLOURS[0], width=0.9)
    axes[2].set_xlabel("staleness (versions)")
    axes[2].set_ylabel("share of accepted uploads")
    axes[2].yaxis.set_major_formatter(matplotlib.ticker.PercentFormatter(1.0, decimals=0))
    axes[2].xaxis.set_major_locator(matplotlib.ticker.MaxNLocator(integer=True))
    _tidy(axes[2])
    figure.suptitle(plain(curve.label), x=0.01, ha="left")
    _save(figure, file)


def plain(label: str) -> str:
    """Return a label for matplotlib: a dollar sign does not start a formula, and a long label is cut."""
    return (label if len(label) <= 60 else f"{label[:59]}…").replace("$", r"\$")


def _band(axis: Axes, curve: Curve, column: int, number: int) -> None:
    """Draw the mean over seeds on a common grid, in a band from the worst to the best."""
    runs = [np.array(run) for run in curve.runs if run]
    end = min(run[-1, column] for run in runs)
    grid = np.linspace(0.0, end, 200)
    values = np.stack([np.interp(grid, run[:, column], run[:, 2]) for run in runs])
    colour = COLOURS[number % len(COLOURS)]
    style = STYLES[(number + number // len(COLOURS)) % len(STYLES)]  # no pair comes twice before 49
    axis.plot(
        grid, values.mean(axis=0), color=colour, linestyle=style, linewidth=1.8, label=plain(curve.label)
    )
    if len(runs) > 1:
        axis.fill_between(grid, values.min(axis=0), values.max(axis=0), color=colour, alpha=0.15, linewidth=0)


def _tidy(axis: Axes) -> None:
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(axis="y", color="0.9", linewidth=0.8)
    axis.set_axisbelow(True)
    axis.set_xlim(left=0 if axis.get_xlabel() != "staleness (versions)" else None)


def _save(figure: Figure, file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=140)
