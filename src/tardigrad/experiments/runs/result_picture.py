"""The evaluations of a result as a picture."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from tardigrad.core.events import ModelEvaluated
from tardigrad.core.metric import Metric
from tardigrad.errors import ConfigError
from tardigrad.learning.heads.baseline import Baseline

MOST = 4
"""Metrics that are drawn if none are named."""
COLOURS = {False: "#0072B2", True: "#D55E00"}


class Picture(Figure):
    """A matplotlib figure that notebooks show, whatever matplotlib's backend is."""

    def _repr_png_(self) -> bytes:
        data = io.BytesIO()
        self.savefig(data, format="png", dpi=110)
        return data.getvalue()


def draw_history(
    history: Sequence[ModelEvaluated],
    metrics: Sequence[str] = (),
    main: str = "accuracy",
    baseline: Baseline | None = None,
) -> Picture:
    """Return a figure with a panel for each metric over client trips.

    `metrics`: default: `main`, loss and the next ones, at most four. `baseline`: drawn as a line.
    """
    there = list(
        dict.fromkeys(name for one in history for name in one.metrics if one.metric(name) is not None)
    )
    unknown = [name for name in metrics if name not in there]
    if unknown or not there:
        what = f"there is no metric {unknown[0]!r}" if unknown else "there was no evaluation"
        raise ConfigError(f"plot: {what}; the metrics are: {', '.join(there) or 'none'}")
    first = [name for name in dict.fromkeys((main, "loss")) if name in there]
    names = list(metrics) or [*first, *(name for name in there if name not in first)][:MOST]
    figure = Picture(figsize=(1 + 3.6 * len(names), 3.4), layout="constrained")
    for axis, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names):
        sides = [side for side in (False, True) if any(_curve(history, name, side))]
        for federated in sides:
            trips, values = _curve(history, name, federated)
            label = "clients' held-out examples" if federated else "test set"
            axis.plot(trips, values, color=COLOURS[federated], linewidth=1.8, label=label)
        constant = None if baseline is None else baseline["metrics"].get(name)
        if baseline is not None and constant is not None:
            axis.axhline(constant, color="0.45", linewidth=1, linestyle=(0, (6, 3)), label=baseline["says"])
        if len(axis.lines) > 1:
            axis.legend(frameon=False, fontsize=8)
        if "accuracy" in name or Metric.named(name).percent:
            axis.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        axis.set_title(name.replace("_", " "), loc="left", fontsize=11)
        axis.set_xlabel("client trips")
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(axis="y", color="0.9", linewidth=0.8)
        axis.set_axisbelow(True)
        axis.set_xlim(left=0)
    return figure


def _curve(history: Sequence[ModelEvaluated], name: str, federated: bool) -> tuple[list[int], list[float]]:
    """Return trips and values of one metric, of the test set or of the clients' own evaluations."""
    points = [
        (one.trips, value)
        for one in history
        if one.federated == federated and (value := one.metric(name)) is not None
    ]
    return [trips for trips, _ in points], [value for _, value in points]


def save_picture(figure: Figure, path: Path | str) -> None:
    """Write a figure to a file, whose suffix is its format."""
    from tardigrad.experiments.runs.run_tables import check_picture

    check_picture(Path(path))
    figure.savefig(path, dpi=140)
