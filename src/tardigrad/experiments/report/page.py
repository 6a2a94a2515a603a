"""The page: one HTML file that contains everything and loads nothing from the network."""

from __future__ import annotations

import html
from base64 import b64encode
from dataclasses import dataclass, field
from hashlib import sha256

from tardigrad.core.plain_json import plain_json
from tardigrad.experiments.report.chart import Chart, Drawing
from tardigrad.watch.assets import asset

STYLE = """
:root { color-scheme: light dark;
  --paper: #ffffff; --raised: #f6f7f9; --ink: #1f2430; --muted: #5c6470;
  --grid: #e3e6ea; --link: #0063a0; --bad: #b3261e;
  --c0: #0072b2; --c1: #c85500; --c2: #00875f; --c3: #b85d92;
  --c4: #b87f00; --c5: #2f95d0; --c6: #1f2430; }
@media (prefers-color-scheme: dark) { :root { --paper: #14171c; --raised: #1d2128; --ink: #e8eaee;
  --muted: #a0a8b4; --grid: #2f353f; --link: #7cc0f5; --bad: #ff8f85; --c0: #4ba3e3; --c1: #ff8b45;
  --c2: #35c79a; --c3: #e59cc6; --c4: #f0b73d; --c5: #9bd7ff; --c6: #e8eaee; }
  figure svg image { filter: brightness(1.6); } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 2rem 1.25rem 4rem; max-width: 74rem; background: var(--paper);
  color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
h1 { font-size: 1.7rem; line-height: 1.25; margin: 0 0 .4rem; text-wrap: balance; overflow-wrap: anywhere; }
h2 { font-size: 1.25rem; margin: 3rem 0 .4rem; padding-top: 1rem; border-top: 1px solid var(--grid); }
h3 { font-size: 1rem; margin: 0; overflow-wrap: anywhere; }
h4 { margin: 1.2rem 0 .3rem; }
p { margin: .4rem 0 1rem; max-width: 46rem; overflow-wrap: anywhere; }
li { max-width: 46rem; overflow-wrap: anywhere; }
ul { padding-left: 1.2rem; }
.lead, figcaption, nav, .note { color: var(--muted); }
.failed { color: var(--bad); }
nav { display: flex; flex-wrap: wrap; gap: .2rem 1.1rem; margin: 1rem 0; font-size: .95rem; }
a { color: var(--link); text-decoration: none; }
a:hover { text-decoration: underline; }
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 25rem), 1fr));
  gap: 1.5rem; }
.charts.small { grid-template-columns: repeat(auto-fill, minmax(min(100%, 12.5rem), 1fr)); gap: 1rem; }
.charts.small h3 { font-size: .92rem; }
figure { margin: 0; padding: 1rem; background: var(--raised); border-radius: .6rem; min-width: 0; }
figure svg { display: block; width: 100%; height: auto; margin: .5rem 0; overflow: visible; }
figure svg text { font-family: inherit !important; }
figure svg image { image-rendering: pixelated; }
figcaption { font-size: .9rem; line-height: 1.45; overflow-wrap: anywhere; }
.wide { overflow-x: auto; margin: .6rem 0 1rem; }
table { border-collapse: collapse; font-size: .92rem; font-variant-numeric: tabular-nums; }
th, td { padding: .35rem .8rem .35rem 0; text-align: right; vertical-align: top;
  border-bottom: 1px solid var(--grid); }
td { white-space: nowrap; }
th { color: var(--muted); font-weight: 600; vertical-align: bottom; }
th:first-child, td:first-child, .words th, .words td { text-align: left; }
.words td { white-space: normal; overflow-wrap: break-word; max-width: 34rem; }
.turns { display: none; gap: .4rem; flex-wrap: wrap; margin: .2rem 0 1rem; }
.scripted .turns { display: flex; }
.turns button { font: inherit; font-size: .92rem; padding: .3rem .9rem; border: 1px solid var(--grid);
  border-radius: 1.2rem; background: none; color: var(--ink); cursor: pointer; }
.turns button[aria-pressed="true"] { background: var(--ink); color: var(--paper); border-color: var(--ink); }
.turns button:focus-visible, a:focus-visible, summary:focus-visible { outline: 2px solid var(--link);
  outline-offset: 2px; }
[hidden] { display: none !important; }
blockquote { margin: .6rem 0; padding: .2rem 1rem; border-left: 3px solid var(--bad); }
details { margin: .4rem 0; }
summary { cursor: pointer; overflow-wrap: anywhere; }
pre { background: var(--raised); padding: 1rem; border-radius: .6rem; overflow-x: auto; font-size: .85rem; }
@media (max-width: 40rem) { body { padding: 1.25rem .8rem 3rem; } figure { padding: .6rem; } }
@media print { figure, details { break-inside: avoid; } .turns { display: none !important; } }
"""
SHOWN = """
.plot, .tools { display: none; }
.interactive .plot { display: block; }
.interactive .tools { display: flex; }
.interactive > svg { display: none; }
.head { display: flex; align-items: baseline; gap: .5rem; }
@media print { .interactive .plot, .interactive .tools { display: none; }
  .interactive > svg { display: block; } }
"""
"""The picture of a chart is shown unless the script has drawn the chart itself, and in print."""
TOOLS = (
    '<div class="tools"><button type="button" class="reset off">show all</button>'
    '<button type="button" class="csv">CSV</button></div>'
)
SCRIPTS = ("uPlot.iife.min.js", "charts.js", "report.js")


@dataclass(frozen=True)
class Section:
    """A section of the page."""

    heading: str
    text: str = ""
    """Its text as HTML."""
    charts: list[Chart] = field(default_factory=list)
    small: bool = False
    """Whether its charts are small, with several in a row."""

    @property
    def anchor(self) -> str:
        """The target of links to it."""
        return "".join(c if c.isalnum() else "-" for c in self.heading.lower())


def page(title: str, lead: str, sections: list[Section], drawings: dict[str, Drawing]) -> str:
    """Return the content of the file. `drawings` has every chart by its name."""
    links = "".join(f'<a href="#{one.anchor}">{html.escape(one.heading)}</a>' for one in sections)
    body = "".join(_section(one, drawings) for one in sections)
    scripts = [asset(name) for name in SCRIPTS]
    specs = {name: one.chart.spec for name, one in drawings.items() if one.chart.spec is not None}
    data = plain_json(specs).replace("<", "\\u003c")  # so that no label ends the element
    style = STYLE + asset("uPlot.min.css") + asset("charts.css") + SHOWN
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{_policy(scripts)}">'
        f'<link rel="icon" href="data:,"><title>{html.escape(title)}</title><style>{style}</style></head>\n'
        f"<body><header><h1>{html.escape(title)}</h1><p class='lead'>{html.escape(lead)}</p>"
        f"<nav>{links}</nav></header>\n<main>{body}</main>\n"
        f'<script type="application/json" id="charts">{data}</script>'
        + "".join(f"<script>{script}</script>" for script in scripts)
        + "</body></html>\n"
    )


def _policy(scripts: list[str]) -> str:
    """Return the content security policy: the page loads nothing and runs only its own scripts, whatever a
    label or an error message contains."""
    hashes = (b64encode(sha256(script.encode()).digest()).decode() for script in scripts)
    allowed = " ".join(f"'sha256-{one}'" for one in hashes)
    return f"default-src 'none'; style-src 'unsafe-inline'; script-src {allowed}; img-src data:"


def _section(one: Section, drawings: dict[str, Drawing]) -> str:
    turns = list(dict.fromkeys(chart.turn for chart in one.charts if chart.turn))
    buttons = "".join(
        f'<button type="button" value="{html.escape(turn)}">{html.escape(turn)}</button>' for turn in turns
    )
    row = f'<div class="turns" role="group" aria-label="horizontal axis">{buttons}</div>' if turns else ""
    charts = "".join(_figure(drawings[chart.name]) for chart in one.charts)
    grid = f'<div class="charts{" small" if one.small else ""}">{charts}</div>' if charts else ""
    return f'<section id="{one.anchor}"><h2>{html.escape(one.heading)}</h2>{one.text}{row}{grid}</section>\n'


def _figure(drawing: Drawing) -> str:
    chart = drawing.chart
    turn = f' data-turn="{html.escape(chart.turn)}"' if chart.turn else ""
    head = f"<h3>{html.escape(chart.title)}</h3>"
    plot = ""
    if chart.spec is not None:
        head = f'<div class="head">{head}{TOOLS}</div>'
        plot = f'<div class="plot" aria-label="{html.escape(chart.title)}"></div>'
    return (
        f'<figure id="{chart.name}"{turn}>{head}{drawing.inline()}{plot}'
        f"<figcaption>{html.escape(chart.says)}</figcaption></figure>"
    )
