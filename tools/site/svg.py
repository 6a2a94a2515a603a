"""The shapes that the pictures of the documentation need, as SVG for light and dark pages."""

from __future__ import annotations

from html import escape

STYLE = """
text { font: 14px system-ui, sans-serif; fill: var(--ink) }
.small { font-size: 12px; fill: var(--soft) }
.strong { font-weight: 600 }
.middle { text-anchor: middle }
.end { text-anchor: end }
.over { stroke: var(--page); stroke-width: 5px; paint-order: stroke }
.card { fill: var(--page) }
.box { fill: var(--box); stroke: var(--line) }
.note { fill: var(--note); stroke: none }
.line { stroke: var(--line); fill: none }
.arrow { stroke: var(--ink); fill: none; stroke-width: 1.5 }
.head { fill: var(--ink) }
.fast { fill: #2a78d6 }
.slow { fill: #c2571a }
.refused { fill: var(--soft) }
.step { stroke: #1b8f6a; stroke-width: 2 }
.stepped { fill: #1b8f6a }
.stroke-fast { stroke: #2a78d6; stroke-width: 2; fill: none }
.stroke-slow { stroke: #c2571a; stroke-width: 2; fill: none }
.stroke-stepped { stroke: #1b8f6a; stroke-width: 2; fill: none }
.onbar { fill: #ffffff; font-weight: 600; font-size: 13px }
svg { --ink: #1d2433; --soft: #5a6375; --page: #ffffff; --box: #eef3fb; --line: #9aa7bd; --note: #fdf3dc }
@media (prefers-color-scheme: dark) {
  svg { --ink: #e7ebf3; --soft: #a3aec2; --page: #14181f; --box: #222b3a; --line: #5d6b84; --note: #3a3320 }
}
"""
"""Colours follow the reader's preference. A picture has its own background, so any page can have it."""


def picture(width: float, height: float, title: str, parts: list[str]) -> str:
    """Return a whole picture."""
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" '
        f'height="{height:g}" role="img" aria-label="{escape(title)}">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n"
        f'<rect class="card" width="{width:g}" height="{height:g}" rx="8"/>\n{body}\n</svg>\n'
    )


def text(x: float, y: float, words: str, kind: str = "") -> str:
    """Return a line of text."""
    return f'<text x="{x:g}" y="{y:g}" class="{kind}">{escape(words)}</text>'


def box(x: float, y: float, width: float, height: float, kind: str = "box", hint: str = "") -> str:
    """Return a rectangle, with a hint that is shown when the pointer is over it."""
    shape = f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="4" class="{kind}"'
    return f"{shape}><title>{escape(hint)}</title></rect>" if hint else f"{shape}/>"


def line(x1: float, y1: float, x2: float, y2: float, kind: str = "line", dashed: bool = False) -> str:
    """Return a straight line."""
    dashes = ' stroke-dasharray="5 4"' if dashed else ""
    return f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" class="{kind}"{dashes}/>'


def arrow(x1: float, y1: float, x2: float, y2: float, dashed: bool = False) -> str:
    """Return a horizontal or vertical arrow."""
    if y1 == y2:
        back = -8 if x2 > x1 else 8
        head = f"{x2:g},{y2:g} {x2 + back:g},{y2 - 4:g} {x2 + back:g},{y2 + 4:g}"
    else:
        head = f"{x2:g},{y2:g} {x2 - 4:g},{y2 - 8:g} {x2 + 4:g},{y2 - 8:g}"
    return line(x1, y1, x2, y2, "arrow", dashed) + f'<polygon points="{head}" class="head"/>'
