"""A privacy statement as HTML: the little Markdown that privacy.md is written in."""

from __future__ import annotations

import html
import re
from itertools import groupby


def as_html(markdown: str) -> str:
    """Headings, tables, lists, quotations, paragraphs; bold and code inside them. Everything is escaped.

    >>> as_html("- **a** < b")
    '<ul><li><strong>a</strong> &lt; b</li></ul>'
    """
    parts = []
    for kind, group in groupby(markdown.splitlines(), key=_kind):
        lines = list(group)
        match kind:
            case "#":
                parts += [f"<h4>{_inside(line.lstrip('# '))}</h4>" for line in lines]
            case "|":
                rows = [line.strip().strip("|").split("|", 1) for line in lines if "| --- |" not in line]
                cells = ("".join(f"<td>{_inside(cell.strip())}</td>" for cell in row) for row in rows[1:])
                parts.append(
                    "<div class='wide'><table class='words'>"
                    + "".join(f"<tr>{row}</tr>" for row in cells)
                    + "</table></div>"
                )
            case "-":
                items = "".join(f"<li>{_inside(line[2:])}</li>" for line in lines)
                parts.append(f"<ul>{items}</ul>")
            case ">":
                parts.append(
                    f"<blockquote>{_inside(' '.join(line[1:].strip() for line in lines))}</blockquote>"
                )
            case "text":
                parts.append(f"<p>{_inside(' '.join(lines))}</p>")
    return "".join(parts)


def _kind(line: str) -> str:
    if not line.strip():
        return ""
    return next((mark for mark in ("#", "|", "-", ">") if line.startswith(mark)), "text")


def _inside(text: str) -> str:
    text = html.escape(text, quote=False)
    text = re.sub(r"\*\*(.+?)\*\*", r"<strong>\1</strong>", text)
    return re.sub(r"`(.+?)`", r"<code>\1</code>", text)
