"""Write a report: read the folders, draw the charts, and write them into one page."""

from __future__ import annotations

import html
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tardigrad.core.files import write_text
from tardigrad.core.plural import counted
from tardigrad.errors import ConfigError
from tardigrad.experiments.report import facts
from tardigrad.experiments.report.chart import remove_pictures
from tardigrad.experiments.report.curves import curve_charts
from tardigrad.experiments.report.momentum_chart import matrix_charts
from tardigrad.experiments.report.page import Section, page
from tardigrad.experiments.report.participation_chart import (
    not_drawn,
    participation_charts,
    serving_charts,
    uploads_by_client,
)
from tardigrad.experiments.report.partition_chart import partition_charts
from tardigrad.experiments.report.population import PopulationFindings, find_out
from tardigrad.experiments.report.privacy_section import as_html
from tardigrad.experiments.report.sources import Series, Sources, read_sources
from tardigrad.experiments.report.staleness_chart import all_fresh, staleness_charts, weight_charts
from tardigrad.experiments.report.steps_chart import step_chart, told
from tardigrad.experiments.report.traffic_chart import at_work_charts, timeline_charts
from tardigrad.privacy.statement import NOTHING_PROMISED

WORDS_ALONE = ("Results", "Staleness", "Who takes part", "Privacy", "Trips that did not count", "Settings")
"""Sections that are shown even without a chart."""
MOST_OTHERS = 8
"""Maximum number of charts of numbers that algorithms report."""


class Report(NamedTuple):
    """The files of a report. A notebook shows a link to the page."""

    page: Path
    """One HTML page, which opens offline."""
    pictures: Path
    """The folder with every chart as PNG and SVG."""

    def _repr_html_(self) -> str:
        return f'<a href="{html.escape(str(self.page))}" target="_blank">{html.escape(str(self.page))}</a>'


def report(
    folders: Path | str | Sequence[Path | str],
    out: Path | str | None = None,
    pictures: Path | str | None = None,
) -> Report:
    """Write one HTML page about runs and comparisons, and return the paths of page and pictures.

    `folders`: the folder of a run or a comparison, or several.
    `out`: the page; default: report.html in the first folder.
    `pictures`: the folder for each chart as PNG and SVG; default: beside the page.

    >>> report("runs/demo")  # doctest: +SKIP
    Report(page=PosixPath('runs/demo/report.html'), pictures=PosixPath('runs/demo/report'))
    """
    folders = [folders] if isinstance(folders, Path | str) else folders
    return _write(
        [Path(folder) for folder in folders],
        None if out is None else Path(out),
        None if pictures is None else Path(pictures),
    )


def _write(folders: list[Path], out: Path | None, pictures: Path | None) -> Report:
    if not folders:
        raise ConfigError("report: name at least one folder of a run or a comparison")
    out = folders[0] / "report.html" if out is None else out
    if out.suffix.lower() not in (".html", ".htm"):
        raise ConfigError(f"--out {out}: a report's name ends in .html")
    pictures = out.with_suffix("") if pictures is None else pictures
    sources = read_sources(folders)
    sections = _sections(sources)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        pictures.mkdir(parents=True, exist_ok=True)
        remove_pictures(pictures)
        drawings = {chart.name: chart.drawn() for section in sections for chart in section.charts}
        for drawing in drawings.values():
            drawing.save(pictures)
        write_text(out, page(_title(sources), _lead(sources.entries), sections, drawings))
    except OSError as error:
        raise ConfigError(f"--out {out}: cannot be written ({error})") from None
    return Report(out, pictures)


def _title(sources: Sources) -> str:
    titles = [str(table["title"]) for table in sources.comparisons]
    titles += (
        [entry.label for entry in sources.alone]
        if len(sources.alone) < 4
        else [counted(len(sources.alone), "entry", "entries")]
    )
    return "; ".join(titles)


def _lead(entries: list[Series]) -> str:
    runs = [run for entry in entries for run in entry.runs]
    trips = sum(len(run.record.trips) for run in runs)
    seconds = [run.summary["wall_seconds"] for run in runs if run.summary is not None and not run.served]
    made = counted(len(runs), "run")
    if len(runs) > 1:
        made += f" of {counted(len(entries), 'entry', 'entries')}"
    spent = f"{counted(trips, 'client trip')} in all"
    if not any(run.served for run in runs):
        spent += f", computed in {counted(round(sum(seconds)), 'second')}"
    return f"{made}, {spent}."


def _sections(sources: Sources) -> list[Section]:
    entries = sources.entries
    found = find_out(entries)
    sections = [
        Section("Results", _results(sources)),
        Section("Curves", "", curve_charts(entries, sources.targets)),
        *_staleness(entries),
        Section(
            "Clients at work",
            facts.paragraph("In each entry's first run: the mean, and in the band the fewest and the most."),
            at_work_charts(entries),
        ),
        Section(
            "Trips against versions",
            facts.paragraph(
                "A short window in the middle of each entry's first run. Each line is a trip from its start "
                "to its arrival, upright lines are steps of the model, and the colour says how many of them "
                "a trip missed."
            ),
            timeline_charts(entries),
        ),
        *_clients(entries, found),
        Section("Who holds what", "", partition_charts(found.holdings)),
        *_momentum(entries),
        *_privacy(entries),
        *_others(entries),
        Section("Trips that did not count", facts.refusals(entries)),
        Section("Settings", _settings(entries)),
    ]
    return [
        section for section in sections if section.charts or (section.heading in WORDS_ALONE and section.text)
    ]


def _results(sources: Sources) -> str:
    parts = []
    for table in sources.comparisons:
        if len(sources.comparisons) > 1:
            parts.append(f"<h4>{html.escape(str(table['title']))}</h4>")
        parts.append(facts.comparison(table))
    if sources.alone:
        parts.append(facts.runs(sources.alone))
    parts.append(facts.tuning(sources))
    parts.append(facts.items(sources.missing, "failed"))
    return "".join(parts)


def _staleness(entries: list[Series]) -> list[Section]:
    fresh = all_fresh(entries)
    stale, weights = staleness_charts(entries), weight_charts(entries)
    said = f"Every upload that counted was fresh in: {', '.join(fresh)}." if fresh else ""
    return [
        Section("Staleness", facts.paragraph(said) if said else "", stale),
        Section("Weights of uploads", "", weights),
    ]


def _clients(entries: list[Series], found: PopulationFindings) -> list[Section]:
    populations = found.populations
    taking_part = participation_charts(entries, populations)
    served = serving_charts(entries, populations)
    sentences = uploads_by_client(entries) + not_drawn(populations)
    said = "".join(map(facts.paragraph, sentences)) + facts.items(found.unknown, "note")
    tried = [one for one in populations.values() if any(v is not None for v in one.values)]
    on = ""
    if tried:
        count = sum(v is not None for v in tried[0].values)
        hold = "holds" if count == 1 else "hold"
        what = "kept for evaluation" if tried[0].held_out else f"{hold}, and also trained on"
        on = facts.paragraph(
            f"The final model, tried on the examples that {counted(count, 'client')} {what}: are some served "
            "worse?"
        )
    return [
        Section("Who takes part", said, taking_part),
        Section("How clients are served", on, served),
    ]


def _momentum(entries: list[Series]) -> list[Section]:
    error = step_chart(entries, "least_squares_error")
    said = facts.paragraph(
        "Uploads are stale, so plain momentum weighs updates as MW does, not as M. Momentum approximation "
        "weighs the steps by A, so that AW comes near M."
    )
    matrices = matrix_charts(entries)
    return [
        Section("Momentum approximation", said if matrices else "", matrices, small=True),
        Section("Error of momentum approximation", "", [] if error is None else [error]),
    ]


def _privacy(entries: list[Series]) -> list[Section]:
    private = [entry for entry in entries if entry.first.privacy not in ("", NOTHING_PROMISED)]
    if not private:
        return []
    spent = step_chart(entries, "epsilon")
    said = facts.paragraph(
        "This page has facts of single clients and of when they took part, which no noise protects: keep it "
        "where the events are kept."
    )
    void = [
        f"{entry.label}: epsilon is void, because {entry.first.summary['privacy_void']}."
        for entry in private
        if entry.first.summary and entry.first.summary.get("privacy_void")
    ]
    said += facts.items(void)
    statements = "".join(
        f"<details{' open' if len(private) == 1 else ''}><summary>Privacy statement of "
        f"{html.escape(entry.label)}</summary>{as_html(entry.first.privacy)}</details>"
        for entry in private
    )
    return [Section("Privacy", said + statements, [] if spent is None else [spent])]


def _others(entries: list[Series]) -> list[Section]:
    names = [name for name in told(entries) if name not in ("epsilon", "least_squares_error")]
    charts = [chart for name in names[:MOST_OTHERS] if (chart := step_chart(entries, name)) is not None]
    return [Section("What the algorithms tell of their steps", "", charts)]


def _settings(entries: list[Series]) -> str:
    different = facts.differences(entries) if len(entries) > 1 else ""
    said = facts.paragraph("Where the entries differ:") if different else ""
    return said + different + facts.configs(entries)
