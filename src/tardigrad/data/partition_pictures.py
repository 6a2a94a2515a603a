"""Show a partition as a table and as a picture: the labels and the number of examples of each client."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, PowerNorm
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, MaxNLocator, PercentFormatter, StrMethodFormatter
from torch import Tensor

from tardigrad.data.clients import Clients, Federation
from tardigrad.learning.heads import MultiLabel

BLUE, GREY = "#0072B2", "0.35"
SHADES = LinearSegmentedColormap.from_list("shades", ["#ffffff", "#a6cee3", BLUE, "#00304d"])
LOOKED_AT = 5000
"""Maximum number of clients whose labels are counted."""
FEW = 30
"""Up to this many clients and labels are drawn as single dots."""
LINE = 100
"""Characters of clients' names that fit side by side; with more, names are written upright."""
LONGEST = 20
"""Characters of a name that are drawn."""
MOST_LABELS = 100
"""Maximum number of labels in the picture; the most frequent ones are drawn."""
COLUMNS = 500
"""Maximum number of columns of the picture; with more clients, several share a column."""
THOUSANDS = StrMethodFormatter("{x:,.0f}")


@runtime_checkable
class Labelled(Protocol):
    """Clients whose labels can be read without loading their features."""

    def labels(self, client: int) -> Tensor:
        """Return the labels of a client."""


@dataclass(frozen=True)
class Holdings:
    """How many examples of each label each client has."""

    sizes: np.ndarray
    """Number of examples of each client."""
    counts: np.ndarray | None
    """Number of examples by client and label, of at most 5,000 evenly spaced clients; None if labels are not
    classes."""
    test: int
    """Number of examples in the central test set."""
    names: tuple[str, ...] = ()
    """The clients' names, of up to 30 clients."""

    def rows(self) -> list[tuple[str, str]]:
        """Return the rows of a table, each with a name and a value."""
        rows = [
            ("clients", f"{len(self.sizes):,}"),
            ("examples", f"{self.sizes.sum():,}"),
            ("examples per client (min, median, max)", _three(self.sizes)),
        ]
        if self.counts is not None:
            most = self.counts.max(axis=1) / np.maximum(self.counts.sum(axis=1), 1)
            rows += [
                ("labels", f"{self.counts.shape[1]:,}"),
                ("labels per client (min, median, max)", _three((self.counts > 0).sum(axis=1))),
                ("share of a client's main label (median)", f"{np.median(most):.0%}"),
            ]
        return [*rows, ("test examples", f"{self.test:,}")]

    def table(self) -> str:
        """Return the rows as text in two aligned columns."""
        width = max(len(name) for name, _ in self.rows())
        return "\n".join(f"{name:<{width}}  {value}" for name, value in self.rows())


def holdings(federation: Federation) -> Holdings:
    """Count the examples of each client, by label if labels are classes."""
    clients = federation.clients
    sizes = np.array([clients.examples(client) for client in range(len(clients))])
    looked_at = np.unique(np.linspace(0, len(clients) - 1, min(len(clients), LOOKED_AT)).astype(int))
    counts = []
    for client in looked_at.tolist():
        counted = _count_labels(clients, client, federation)
        if counted is None:
            break
        counts.append(counted)
    table = np.stack(counts) if len(counts) == len(looked_at) else None
    names = tuple(str(clients.name(client)) for client in range(len(clients))) if len(clients) <= FEW else ()
    return Holdings(sizes, table, 0 if federation.test is None else len(federation.test[1]), names)


def draw_partition(held: Holdings, file: Path, title: str = "") -> None:
    """Save a picture of a partition: labels by client, and the distributions of labels and sizes.

    >>> draw_partition(holdings(federation), Path("partition.png"))  # doctest: +SKIP
    """
    if held.counts is None:
        figure = Figure(figsize=(6, 3.8), layout="constrained")
        _draw_sizes(figure.subplots(), held.sizes)
    else:
        figure = Figure(figsize=(11, 4.8), layout="constrained")
        axes = figure.subplot_mosaic([["who", "sizes"], ["who", "labels"]], width_ratios=[3, 1])
        if max(held.counts.shape) <= FEW:
            _draw_dots(axes["who"], held.counts, held.names)
        else:
            _draw_shades(axes["who"], held)
        _draw_sizes(axes["sizes"], held.sizes)
        _draw_labels(axes["labels"], held.counts)
    if title:
        figure.suptitle(title, x=0.01, ha="left", fontsize=12)
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=140)


def _count_labels(clients: Clients, client: int, federation: Federation) -> np.ndarray | None:
    """Return how often each class occurs at a client, or None if labels are not classes."""
    labels = clients.labels(client) if isinstance(clients, Labelled) else clients.load(client)[1]
    if isinstance(federation.head, MultiLabel):
        return labels.sum(dim=0, dtype=torch.int64).numpy()
    if labels.ndim != 1 or labels.dtype.is_floating_point:
        return None
    return np.bincount(labels.numpy(), minlength=max(federation.classes, 2))


def _draw_dots(axis: Axes, counts: np.ndarray, names: Sequence[str] = ()) -> None:
    """Draw a dot for each client and label, whose area is the number of examples."""
    client, label = np.nonzero(counts)
    number = counts[client, label]
    distance = min(7.2 * 72 / len(counts), 3.4 * 72 / counts.shape[1])  # between two dots, in points
    axis.scatter(client, label, s=number / counts.max() * (0.95 * distance) ** 2, color=BLUE, linewidths=0)
    axis.set_xlim(-0.7, len(counts) - 0.3)
    axis.set_ylim(-0.7, counts.shape[1] - 0.3)
    axis.set_xlabel("client")
    axis.set_title(f"the largest dot is {counts.max():,} examples", loc="right", fontsize=9, color=GREY)
    axis.xaxis.set_major_locator(FixedLocator(range(len(counts))))
    if names:
        long = max(map(len, names)) * len(names) > LINE
        short = [name if len(name) <= LONGEST else f"{name[: LONGEST - 1]}…" for name in names]
        axis.set_xticklabels([name.replace("$", r"\$") for name in short], rotation=90 if long else 0)
    axis.grid(color="0.93", linewidth=0.8)
    axis.spines[["top", "right"]].set_visible(False)
    axis.set_axisbelow(True)
    _label_axis(axis, np.arange(counts.shape[1]))


def _draw_shades(axis: Axes, held: Holdings) -> None:
    """Draw a column of shares for each client, sorted by the client's most frequent label."""
    assert held.counts is not None
    shares = held.counts / np.maximum(held.counts.sum(axis=1, keepdims=True), 1)
    shown = np.arange(shares.shape[1])
    if len(shown) > MOST_LABELS:
        shown = np.sort(np.argsort(-held.counts.sum(axis=0), kind="stable")[:MOST_LABELS])
        shares = shares[:, shown]
    order = np.lexsort((-shares.max(axis=1), shares.argmax(axis=1)))
    starts = np.unique(np.linspace(0, len(order), min(len(order), COLUMNS), endpoint=False).astype(int))
    columns = np.add.reduceat(shares[order], starts) / np.diff(starts, append=len(order))[:, None]
    picture = axis.imshow(
        columns.T, aspect="auto", origin="lower", interpolation="nearest", cmap=SHADES,
        norm=PowerNorm(0.5, 0, 1), extent=(0, len(order), -0.5, len(shown) - 0.5),
    )  # fmt: skip
    bar = axis.figure.colorbar(picture, ax=axis, pad=0.01, fraction=0.04, ticks=[0, 0.05, 0.2, 0.5, 1])
    bar.ax.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    bar.set_label("share of the client's examples", color=GREY)
    bar.outline.set_visible(False)
    axis.xaxis.set_major_formatter(THOUSANDS)
    some = "" if len(shares) == len(held.sizes) else f" ({len(shares):,} of {len(held.sizes):,})"
    together = "" if len(starts) == len(order) else f", {len(order) / len(starts):.0f} to a column"
    axis.set_xlabel(f"clients{some}, sorted by their main label{together}")
    axis.spines[:].set_color("0.8")
    _label_axis(axis, shown)


def _label_axis(axis: Axes, shown: np.ndarray) -> None:
    places = np.arange(len(shown)) if len(shown) <= 20 else np.linspace(0, len(shown) - 1, 11).astype(int)
    axis.yaxis.set_major_locator(FixedLocator(places.tolist()))
    axis.set_yticks(places, [str(label) for label in shown[places]])
    axis.set_ylabel("label" if len(shown) < MOST_LABELS else f"the {len(shown)} most frequent labels")


def _draw_sizes(axis: Axes, sizes: np.ndarray) -> None:
    low, high = max(int(sizes.min()), 1), max(int(sizes.max()), 1)
    bars = min(max(len(sizes) // 2, 8), 30)
    if high > 30 * low:  # a logarithmic axis shows a long tail
        axis.hist(sizes, bins=np.geomspace(low, high + 1, bars + 1).tolist(), color=BLUE, rwidth=0.92)
        axis.set_xscale("log")
    else:
        width = max(1, -(-(high - low) // bars), high // 15 if high - low < 2 else 1)
        axis.hist(
            sizes, bins=np.arange(low - width / 2, high + width, width).tolist(), color=BLUE, rwidth=0.92
        )
        axis.set_xlim(0, 1.3 * high + 1)
    axis.set_xlabel("examples of a client")
    _tidy(axis)


def _draw_labels(axis: Axes, counts: np.ndarray) -> None:
    labels = (counts > 0).sum(axis=1)
    wide = (labels.max() - labels.min()) // 40
    bins = np.arange(labels.min(), labels.max() + 2 + wide, 1 + wide) - 0.5
    axis.hist(labels, bins=bins.tolist(), color=BLUE, rwidth=0.92)
    axis.set_xlim(left=min(0.5, float(labels.min()) - 0.5), right=max(float(labels.max()) + 0.5, 2.5))
    axis.set_xlabel("labels of a client")
    _tidy(axis)


def _tidy(axis: Axes) -> None:
    axis.set_ylabel("clients")
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(axis="y", color="0.9", linewidth=0.8)
    axis.set_axisbelow(True)
    axis.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=5))
    axis.yaxis.set_major_formatter(THOUSANDS)
    if axis.get_xscale() == "linear":
        axis.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=5))
        axis.xaxis.set_major_formatter(THOUSANDS)


def _three(numbers: np.ndarray) -> str:
    return f"{numbers.min():,}, {np.median(numbers):,.0f}, {numbers.max():,}"
