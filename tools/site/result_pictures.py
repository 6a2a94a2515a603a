"""Pictures of recorded results: AdaMasFL over the length of the run, and momentum under staleness."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path

import svg

DOCS = Path(__file__).parents[2] / "docs"
TOP, BOTTOM = 52.0, 250.0
"""The panel of a curve, from above to below."""


def horizon() -> str:
    """Return the accuracy of AdaMasFL and FedBuff over the steps of a run, a panel per number at work."""
    result = json.loads((DOCS / "results/protocol/masfl/horizon.json").read_text())
    steps = {task: int(task.removeprefix("T = ")) for task in result["ours"]}
    parts = [svg.text(20, 26, "Accuracy at the end, over the number of steps of the run", "strong")]
    for panel, at_work in enumerate((20, 50, 90)):
        left = 62 + 268 * panel
        parts.append(svg.text(left + 105, TOP - 6, f"{at_work} at work", "middle"))
        for percent in (60, 70, 80, 90):
            y = _height(percent / 100)
            parts += [
                svg.line(left, y, left + 218, y),
                svg.text(left - 6, y + 4, f"{percent} %", "small end"),
            ]
        for task, count in steps.items():
            parts.append(
                svg.text(_along(count, steps, left), BOTTOM + 18, task.removeprefix("T = "), "small middle")
            )
        for name, kind in (("FedBuff", "fast"), ("AdaMasFL", "slow")):
            numbers = {task: ours[f"{name}, {at_work} at work"] for task, ours in result["ours"].items()}
            parts += _curve([(_along(steps[task], steps, left), one) for task, one in numbers.items()], kind)
    for i, (kind, words) in enumerate(
        (("slow", "AdaMasFL, not tuned"), ("fast", "FedBuff, with the rates of the small scale"))
    ):
        parts.append(svg.box(62 + 210 * i, 283, 14, 10, kind))
        parts.append(svg.text(84 + 210 * i, 293, words, "small"))
    parts.append(svg.text(840, 293, "bars: 95 % interval of the mean", "small end"))
    return svg.picture(
        860, 310, "AdaMasFL and FedBuff over the length of the run, with 20, 50 and 90 at work", parts
    )


def _height(accuracy: float) -> float:
    """Return where an accuracy between 0.55 and 0.9 is drawn."""
    return BOTTOM - (BOTTOM - TOP) * (max(accuracy, 0.55) - 0.55) / 0.35


def _along(count: int, steps: dict[str, int], left: float) -> float:
    """Return where a number of steps is drawn, on a logarithmic scale."""
    first, last = min(steps.values()), max(steps.values())
    return left + 14 + 190 * math.log(count / first) / math.log(last / first)


def _curve(points: list[tuple[float, dict]], kind: str) -> list[str]:
    """Return a line through the means, with a bar for the interval of each."""
    places = [(x, _height(one["mean"])) for x, one in points]
    parts = [svg.line(*a, *b, f"stroke-{kind}") for a, b in itertools.pairwise(places)]
    for (x, y), (_, one) in zip(places, points, strict=True):
        low, high = map(_height, one["interval"])
        parts.append(svg.line(x, low, x, high, f"stroke-{kind}"))
        parts.append(
            f'<circle cx="{x:g}" cy="{y:g}" r="4" class="{kind}"><title>{one["mean"]:.1%}</title></circle>'
        )
    return parts


def momentum() -> str:
    """Return the trips of every row to the target, as multiples of those without momentum."""
    found = {
        data: json.loads((DOCS / f"momentum-under-staleness/{data}.json").read_text())
        for data in ("image", "text")
    }
    labels = [label for label in next(iter(found["image"]["ours"].values())) if label != "no momentum"]
    parts = [
        svg.text(20, 26, "Client trips to the target, as a multiple of those without momentum", "strong")
    ]
    for column, (data, result) in enumerate(found.items()):
        left = 170 + 350 * column
        parts.append(svg.text(left, 52, {"image": "Images", "text": "Text"}[data], "strong"))
        for ratio in (0.5, 1, 2, 4):
            x = _ratio(ratio, left)
            kind = "step" if ratio == 1 else "line"
            parts += [svg.line(x, 62, x, 62 + 40 * len(labels), kind)]
            parts.append(svg.text(x, 80 + 40 * len(labels), f"{ratio:g}", "small middle"))
        for row, label in enumerate(labels):
            y = 82 + 40 * row
            if column == 0:
                parts.append(svg.text(20, y + 5, label, ""))
            for place, (task, ours) in enumerate(result["ours"].items()):
                parts.append(_mark(ours[label], ours["no momentum"], left, y - 10 + 10 * place, place, task))
    end = 100 + 40 * len(labels)
    for i, words in enumerate(("few at work", "some at work", "many at work")):
        parts.append(f'<circle cx="{28 + 130 * i}" cy="{end + 4}" r="5" class="{SHADES[i]}"/>')
        parts.append(svg.text(40 + 130 * i, end + 8, words, "small"))
    parts.append(
        svg.text(
            840, end + 8, "left of the green line: fewer trips; ring: not every seed reached it", "small end"
        )
    )
    return svg.picture(
        860, end + 26, "Momentum under staleness: trips to the target over those without momentum", parts
    )


SHADES = ("fast", "stepped", "slow")
"""The colours of few, some and many at work."""


def _ratio(ratio: float, left: float) -> float:
    """Return where a multiple between 0.5 and 4 is drawn, on a logarithmic scale."""
    return left + 300 * math.log(ratio / 0.5) / math.log(8)


def _mark(one: dict, base: dict, left: float, y: float, place: int, task: str) -> str:
    """Return the dot of one row, or a ring at its least ratio if a seed missed the target."""
    cost = one["mean"] if one["mean"] is not None else one["budget"]
    without = base["mean"] if base["mean"] is not None else base["budget"]
    ratio = cost / without
    x = _ratio(min(max(ratio, 0.5), 4.0), left)
    missed = one["mean"] is None
    kind = f"stroke-{SHADES[place]}" if missed else SHADES[place]
    words = f"{task}: {'at least ' if missed else ''}{ratio:.2f}"
    return f'<circle cx="{x:g}" cy="{y:g}" r="5" class="{kind}"><title>{words}</title></circle>'
