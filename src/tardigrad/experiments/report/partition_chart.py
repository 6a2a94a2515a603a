"""Charts of the partition: the labels and the number of examples of clients."""

from __future__ import annotations

import numpy as np
from matplotlib.colors import PowerNorm

from tardigrad.core.plural import counted
from tardigrad.data.partition_pictures import Holdings
from tardigrad.experiments.report.chart import BLUE, Chart, faint, numbered, panel, slug

COLUMNS = 250
"""With more clients than this, several share a column."""
MOST_LABELS = 60


def partition_charts(held: dict[str, Holdings]) -> list[Chart]:
    """Return charts of each partition: clients by labels, and the sizes of clients."""
    charts = []
    for number, (label, one) in enumerate(held.items()):
        name = f"{number}-{slug(label)}"
        of = f", as in {label}" if len(held) > 1 else ""
        if one.counts is not None and one.counts.shape[1] > 1 and len(one.counts) > 1:
            charts.append(_labels(one, f"partition-labels-{name}", f"Who holds which labels{of}"))
        if one.sizes.max() > 1.2 * one.sizes.min():
            charts.append(_sizes(one, f"partition-sizes-{name}", f"How much they hold{of}"))
    return charts


def _labels(held: Holdings, name: str, title: str) -> Chart:
    assert held.counts is not None, "checked by the caller"
    shares = held.counts / np.maximum(held.counts.sum(axis=1, keepdims=True), 1)
    shown = np.sort(np.argsort(-held.counts.sum(axis=0), kind="stable")[:MOST_LABELS])
    order = np.lexsort((-shares.max(axis=1), shares.argmax(axis=1)))
    starts = np.unique(np.linspace(0, len(order), min(len(order), COLUMNS), endpoint=False).astype(int))
    columns = np.add.reduceat(shares[order], starts) / np.diff(starts, append=len(order))[:, None]
    with panel() as (figure, axis):
        picture = axis.imshow(
            columns[:, shown].T, aspect="auto", origin="lower", interpolation="none", cmap=faint(BLUE),
            norm=PowerNorm(0.5, 0, 1), extent=(0, len(order), -0.5, len(shown) - 0.5),
        )  # fmt: skip
        bar = figure.colorbar(picture, ax=axis, pad=0.01, fraction=0.05, ticks=[0, 0.05, 0.2, 0.5, 1])
        bar.ax.yaxis.set_major_formatter("{x:.0%}")
        bar.set_label("share of its examples")
        bar.outline.set_visible(False)
        axis.grid(visible=False)
        axis.set_xlabel("clients, sorted by their main label")
        axis.set_ylabel("label" if len(shown) == shares.shape[1] else f"the {len(shown)} commonest labels")
        places = np.unique(np.linspace(0, len(shown) - 1, min(len(shown), 11)).astype(int))
        axis.set_yticks(places, [str(label) for label in shown[places]])
        numbered(axis, whole=True)
    has = np.median((held.counts > 0).sum(axis=1))
    main = np.median(shares.max(axis=1))
    says = (
        f"Half of the clients hold at most {has:.0f} of {shares.shape[1]} labels, and the commonest of them "
        f"makes up {main:.0%} of a typical client's examples."
    )
    return Chart(name, title, says, figure)


def _sizes(held: Holdings, name: str, title: str) -> Chart:
    sizes = held.sizes
    low, middle, high = max(int(sizes.min()), 1), np.median(sizes), int(sizes.max())
    with panel() as (figure, axis):
        if high > 30 * low:  # a long tail is seen on a logarithmic axis
            axis.hist(sizes, bins=np.geomspace(low, high + 1, 31).tolist(), color=BLUE, rwidth=0.9)
            axis.set_xscale("log")
            axis.xaxis.set_major_formatter("{x:,.0f}")
        else:
            axis.hist(sizes, bins=min(30, high - low + 1), color=BLUE, rwidth=0.9)
            numbered(axis, whole=True)
        axis.set_xlabel("examples of a client")
        axis.set_ylabel("clients")
        numbered(axis, "y", whole=True)
    hold = "client holds" if len(sizes) == 1 else "clients hold"
    says = (
        f"{len(sizes):,} {hold} {counted(int(sizes.sum()), 'example')}: from {sizes.min():,} to {high:,}, "
        f"half of them at most {middle:,.0f}."
    )
    return Chart(name, title, says, figure)
