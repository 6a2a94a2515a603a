"""Charts: figures that are readable on light and dark backgrounds, in a page and as a picture."""

from __future__ import annotations

import html
import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.colors import LinearSegmentedColormap, to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator, PercentFormatter

from tardigrad.experiments.compare.plot import COLOURS, STYLES
from tardigrad.experiments.report.interactive import ChartSpec
from tardigrad.experiments.report.run_record import FloatArray

INK, MUTED, GRID = "#1f2430", "#5c6470", "#e3e6ea"
SERIES = tuple(INK if colour == "#000000" else colour for colour in COLOURS)
BLUE, ORANGE = SERIES[0], SERIES[1]
VARIABLES = {colour.lower(): f"--c{number}" for number, colour in enumerate(COLOURS)} | {
    INK: "--ink",
    MUTED: "--muted",
    GRID: "--grid",
}
"""In a page, CSS variables replace these colours, so that they follow the page's colour scheme."""
FRESH_TO_STALE = LinearSegmentedColormap.from_list("staleness", ["#2a86c8", "#9a8fb3", "#e06a1c"])
"""These are visible on light and dark backgrounds, and colour-blind people can tell them apart."""
LOOK: dict[Any, Any] = {
    "axes.axisbelow": True, "axes.edgecolor": MUTED, "axes.facecolor": "none", "axes.grid": True,
    "axes.grid.axis": "y", "axes.labelcolor": INK, "axes.labelsize": 11.5, "axes.spines.right": False,
    "axes.spines.top": False, "figure.constrained_layout.use": True, "figure.facecolor": "none",
    "font.size": 11, "grid.color": GRID, "grid.linewidth": 0.8, "legend.frameon": False,
    "lines.linewidth": 1.8, "svg.fonttype": "none", "text.color": INK,
    "xtick.color": MUTED, "xtick.labelcolor": INK, "xtick.labelsize": 11,
    "ytick.color": MUTED, "ytick.labelcolor": INK, "ytick.labelsize": 11,
}  # fmt: skip
MARK = "<!-- drawn by tardigrad report -->"
WIDTH, HEIGHT = 390, 260
"""The size of a chart in points: about as wide as a telephone, so that its text is readable there."""


@dataclass(frozen=True)
class Chart:
    """A figure with its title and caption."""

    name: str
    """The name of its files, without suffix."""
    title: str
    says: str
    """The caption: what the chart shows, in one sentence."""
    figure: Figure
    turn: str = ""
    """If not empty, the reader chooses which charts of the section are shown, by this word."""
    spec: ChartSpec | None = None
    """Its numbers, if the reader's browser can draw it."""

    def drawn(self) -> Drawing:
        """Draw the figure as SVG. This is done once, because the layout takes most of the time."""
        text = io.StringIO()
        with matplotlib.rc_context(LOOK | {"svg.hashsalt": self.name}):
            FigureCanvasSVG(self.figure).print_svg(text, metadata={"Date": None})  # savefig draws twice
            self.figure.set_layout_engine("none")
        found = re.search(r"<svg.*</svg>", text.getvalue(), re.DOTALL)
        assert found is not None, "matplotlib writes one"
        return Drawing(self, re.sub(r"<metadata>.*?</metadata>", "", found[0], flags=re.DOTALL))


@dataclass(frozen=True)
class Drawing:
    """A chart as SVG."""

    chart: Chart
    svg: str

    def inline(self) -> str:
        """Return the SVG for a page: its colours follow the page, and its identifiers are unique there."""
        name, says = self.chart.name, f"{self.chart.title}. {self.chart.says}"
        svg = re.sub(r"#[0-9a-f]{6}\b", lambda found: _variable(found[0]), self.svg)
        svg = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{name}-", svg)
        box = re.search(r'viewBox="[^"]*"', svg)
        assert box is not None, "matplotlib writes one"
        head = f'<svg {box[0]} role="img"><title>{html.escape(says)}</title>'
        return re.sub(r"<svg[^>]*>", lambda _: head, svg, count=1)

    def save(self, folder: Path) -> None:
        """Write NAME.svg and NAME.png, with a white background."""
        paper = f'{MARK}<rect width="100%" height="100%" fill="#ffffff"/>'
        svg = re.sub(r"<svg[^>]*>", lambda head: head[0] + paper, self.svg, count=1)
        (folder / f"{self.chart.name}.svg").write_text(svg + "\n", encoding="utf-8")
        self.chart.figure.set_facecolor("white")
        self.chart.figure.set_dpi(150)
        with matplotlib.rc_context(LOOK):
            FigureCanvasAgg(self.chart.figure).print_png(folder / f"{self.chart.name}.png")


def remove_pictures(folder: Path) -> None:
    """Remove the pictures of an earlier report from a folder, and no other files."""
    for file in folder.glob("*.svg"):
        with file.open(encoding="utf-8", errors="replace") as lines:
            if MARK in lines.read(2000):
                file.with_suffix(".png").unlink(missing_ok=True)
                file.unlink()


def _variable(colour: str) -> str:
    return f"var({VARIABLES[colour]})" if colour in VARIABLES else colour


@contextmanager
def panel(width: float = WIDTH, height: float = HEIGHT) -> Iterator[tuple[Figure, Axes]]:
    """Return a figure with one pair of axes, in the style of the report.

    >>> with panel() as (figure, axis):
    ...     _ = axis.plot([0, 1], [0, 1])
    """
    with matplotlib.rc_context(LOOK):
        figure = Figure(figsize=(width / 72, height / 72))
        yield figure, figure.subplots()


@contextmanager
def curves_panel(lines: int) -> Iterator[tuple[Figure, Axes]]:
    """Return a figure for this many lines, with space for their names at the right."""
    with panel(WIDTH + 50, max(HEIGHT, 17 * lines + 70)) as both:
        yield both


def draw_band(axis: Axes, x: FloatArray, values: FloatArray, number: int, marker: str | None = None) -> None:
    """Draw the mean over seeds (a row for each), in a band from the lowest to the highest."""
    axis.plot(x, values.mean(axis=0), marker=marker, markersize=4, **style(number))
    if len(values) > 1:
        colour = SERIES[number % len(SERIES)]
        axis.fill_between(x, values.min(axis=0), values.max(axis=0), color=colour, alpha=0.15, linewidth=0)


def style(number: int) -> dict[str, Any]:
    """Return the colour and dashes of entry `number`. The first forty-two entries differ."""
    dashes = STYLES[(number + number // len(SERIES)) % (len(STYLES) - 1)]
    return {"color": SERIES[number % len(SERIES)], "linestyle": dashes}


def short(label: str, most: int = 20) -> str:
    """Return a label, shortened to fit beside a chart."""
    label = " ".join(label.split())
    return label if len(label) <= most else f"{label[: most - 9]}…{label[-8:]}"


def plain(text: str) -> str:
    """Return a text in which matplotlib does not see a formula."""
    return text.replace("$", r"\$")


def label_ends(axis: Axes, ends: list[tuple[float, float, int, str]]) -> None:
    """Write each line's name beside its end (x, y), in its colour and without overlaps. A single line has
    no name."""
    if len(ends) < 2:
        return
    if len(ends) > len(SERIES):  # colours repeat: a legend shows the dashes, too
        ends = sorted(ends, key=lambda end: -end[1])
        handles = [Line2D([], [], label=plain(short(label)), **style(number)) for _, _, number, label in ends]
        axis.figure.legend(handles=handles, loc="outside right upper", fontsize=10, handlelength=2.6)
        return
    (left, right), (low, high) = axis.get_xlim(), axis.get_ylim()
    gap = 16 / (axis.figure.bbox.height / axis.figure.dpi * 72 - 70)  # a line of letters
    ends = sorted(ends, key=lambda end: end[1])
    places = [float(np.clip((y - low) / (high - low), 0.0, 1.0)) for _, y, _, _ in ends]
    for (x, _, number, label), place, height in zip(ends, places, spread(places, gap)):
        colour = SERIES[number % len(SERIES)]
        axis.plot(
            [(x - left) / (right - left), 1.0, 1.03], [place, place, height], transform=axis.transAxes,
            clip_on=False, color=colour, alpha=0.5, linewidth=0.8, scalex=False, scaley=False,
        )  # fmt: skip
        axis.text(
            1.04,
            height,
            plain(short(label)),
            transform=axis.transAxes,
            va="center",
            color=colour,
            fontsize=10.5,
        )


def spread(places: list[float], gap: float) -> list[float]:
    """Return sorted places in [0, 1], moved as little as needed to be `gap` apart.

    >>> spread([0.5, 0.5], 0.2)
    [0.4, 0.6]
    """
    groups: list[tuple[float, int]] = []  # centre and number of labels that stand together
    for place in places:
        centre, count = place, 1
        while groups and centre - count * gap / 2 < groups[-1][0] + groups[-1][1] * gap / 2:
            other, many = groups.pop()
            centre, count = (centre * count + other * many) / (count + many), count + many
            half = count * gap / 2
            centre = min(max(centre, half - gap / 2), max(1.0 - half + gap / 2, half - gap / 2))
        groups.append((centre, count))
    return [
        round(centre + (number - (count - 1) / 2) * gap, 9)
        for centre, count in groups
        for number in range(count)
    ]


def percent(axis: Axes) -> None:
    """Show percentages on the vertical axis."""
    low, high = axis.get_ylim()
    axis.yaxis.set_major_locator(MaxNLocator(nbins=6, steps=[1, 2, 5, 10]))
    axis.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0 if high - low > 0.05 else 1))


def thousands(value: float, _: int | None = None) -> str:
    """Return a number with separators of thousands, or in scientific notation.

    >>> thousands(12000), thousands(0.25), thousands(1.5e9)
    ('12,000', '0.25', '1.5e+09')
    """
    if value and (abs(value) >= 1e9 or abs(value) < 1e-3):
        return f"{value:.3g}"
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"


def numbered(axis: Axes, which: str = "x", whole: bool = False) -> None:
    """Set a few round ticks with separators of thousands."""
    one = axis.xaxis if which == "x" else axis.yaxis
    one.set_major_locator(
        MaxNLocator(nbins=5, integer=whole, steps=[1, 2, 5, 10] if whole else [1, 2, 2.5, 5, 10])
    )
    one.set_major_formatter(FuncFormatter(thousands))


def faint(colour: str) -> LinearSegmentedColormap:
    """Return a colour map from transparent to a colour, for any background."""
    red, green, blue = to_rgb(colour)
    return LinearSegmentedColormap.from_list(
        "faint", [(red, green, blue, 0.0), (red, green, blue, 0.55), (red, green, blue, 1.0)]
    )


def slug(text: str) -> str:
    """Return a label as part of a file's name.

    >>> slug("MA <b>light</b>, 2")
    'ma-b-light-b-2'
    """
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:50] or "entry"
