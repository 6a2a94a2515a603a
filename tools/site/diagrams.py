"""The Mermaid diagrams of the documents as SVG, so that a page needs no script from elsewhere.

Two kinds are known, with as much of their syntax as the documents use: `sequenceDiagram` and `flowchart TB`.
"""

from __future__ import annotations

import itertools
import re
import textwrap

import svg

PARTICIPANT = re.compile(r"participant (\w+) as (.+)")
MESSAGE = re.compile(r"(\w+)(-->>|->>)(\w+): ?(.+)")
NOTE = re.compile(r"Note over (\w+)(?:,\s*(\w+))?: ?(.+)")
NODE = re.compile(r'(\w+)\["(.+)"\]')
TAG = re.compile(r"</?b>")
LETTER = 7.2
"""The width of a letter, about."""


def draw(source: str, title: str) -> str:
    """Return the picture of a diagram."""
    lines = [line.strip() for line in source.strip().splitlines()]
    if lines[0] == "sequenceDiagram":
        return sequence(lines[1:], title)
    if lines[0] == "flowchart TB":
        return flowchart(lines[1:], title)
    raise ValueError(
        f"a diagram of the kind {lines[0]!r} cannot be drawn: use sequenceDiagram or flowchart TB"
    )


def words(label: str) -> list[str]:
    """Return the lines of a label."""
    return TAG.sub("", label).split("<br/>")


def sequence(lines: list[str], title: str) -> str:
    """Return a sequence diagram: participants beside each other, messages from top to bottom."""
    named = dict(found.groups() for line in lines if (found := PARTICIPANT.fullmatch(line)))
    gap = _gap(lines, list(named))
    middle = {name: 30 + gap / 2 + gap * i for i, name in enumerate(named)}
    parts: list[str] = []
    y = 84.0
    for line in lines:
        if found := MESSAGE.fullmatch(line):
            sender, kind, receiver, label = found.groups()
            rows = textwrap.wrap(label, int(abs(middle[sender] - middle[receiver]) / LETTER) - 2)
            for row in rows:
                parts.append(svg.text((middle[sender] + middle[receiver]) / 2, y, row, "middle over"))
                y += 16
            y -= 9
            parts.append(svg.arrow(middle[sender], y, middle[receiver], y, dashed=kind == "-->>"))
            y += 28
        elif found := NOTE.fullmatch(line):
            first, last, label = found.groups()
            rows = [row for part in words(label) for row in textwrap.wrap(part, int(gap / LETTER))]
            width = max(len(row) for row in rows) * 6.4 + 20
            centre = (middle[first] + middle[last or first]) / 2
            centre = min(max(centre, width / 2 + 8), 60 + gap * len(named) - width / 2 - 8)
            parts.append(svg.box(centre - width / 2, y - 18, width, 17 * len(rows) + 9, "note"))
            for row in rows:
                parts.append(svg.text(centre, y - 2, row, "small middle"))
                y += 17
            y += 18
        elif not PARTICIPANT.fullmatch(line):
            raise ValueError(f"{title}: the line {line!r} of the diagram is not understood")
    return svg.picture(60 + gap * len(named), y, title, [*_participants(named, middle, gap, y), *parts])


def _gap(lines: list[str], names: list[str]) -> float:
    """Return the room of a participant: as wide as messages between neighbours are long, within limits."""
    longest = 16
    for line in lines:
        if found := MESSAGE.fullmatch(line):
            apart = abs(names.index(found[1]) - names.index(found[3])) or 1
            longest = max(longest, len(found[4]) // apart)
        elif found := PARTICIPANT.fullmatch(line):
            longest = max(longest, *(len(row) for row in words(found[2])))
    return min(longest * LETTER + 24, 235)


def _participants(named: dict[str, str], middle: dict[str, float], gap: float, end: float) -> list[str]:
    """Return the participants' boxes and the lines below them."""
    parts = []
    for name, label in named.items():
        parts.append(svg.line(middle[name], 56, middle[name], end - 8, dashed=True))
        parts.append(svg.box(middle[name] - gap / 2 + 6, 12, gap - 12, 44))
        rows = words(label)
        for i, row in enumerate(rows):
            kind = "strong middle" if i == 0 else "small middle"
            parts.append(svg.text(middle[name], (39 if len(rows) == 1 else 30) + 18 * i, row, kind))
    return parts


def flowchart(lines: list[str], title: str) -> str:
    """Return a chart of layers: each below all that it follows, those of one rank beside each other."""
    labels = dict(found.groups() for line in lines if (found := NODE.fullmatch(line)))
    edges = [
        pair
        for line in lines
        if "-->" in line
        for chain in [[part.strip() for part in line.split("-->")]]
        for pair in itertools.pairwise(chain)
    ]
    rank = dict.fromkeys(labels, 0)
    for _ in labels:
        for before, after in edges:
            rank[after] = max(rank[after], rank[before] + 1)
    width, height = 860.0, 58.0
    rows = [[name for name in labels if rank[name] == i] for i in range(max(rank.values()) + 1)]
    place, parts = {}, []
    for i, row in enumerate(rows):
        room = (width - 40) / len(row)
        for j, name in enumerate(row):
            wide = room - 16 if len(row) > 1 else 500.0
            place[name] = (20 + room * j + room / 2, 16 + (height + 22) * i, wide)
    for before, after in edges:
        x1, y1, _ = place[before]
        x2, y2, _ = place[after]
        parts.append(_elbow(x1, y1 + height, x2, y2))
    for name, (x, y, wide) in place.items():
        heading, *rest = words(labels[name])
        below = textwrap.wrap(" ".join(rest), int(wide / 6))
        parts.append(svg.box(x - wide / 2, y, wide, height))
        parts.append(svg.text(x, y + (22 if len(below) < 2 else 17), heading, "strong middle"))
        for k, row in enumerate(below[:2]):
            parts.append(svg.text(x, y + (42 if len(below) < 2 else 34) + 15 * k, row, "small middle"))
    return svg.picture(width, 16 + (height + 22) * len(rows), title, parts)


def _elbow(x1: float, y1: float, x2: float, y2: float) -> str:
    """Return an arrow from one box down to another, with a bend between them."""
    if x1 == x2:
        return svg.arrow(x1, y1, x2, y2)
    turn = y2 - 12  # the line passes the boxes between them in its own column
    return (
        svg.line(x1, y1, x1, turn, "arrow")
        + svg.line(x1, turn, x2, turn, "arrow")
        + svg.arrow(x2, turn, x2, y2)
    )
