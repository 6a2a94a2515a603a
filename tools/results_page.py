"""Write the tables of docs/results.md and of the pages in docs/results/ from the results recorded there.

`python tools/results_page.py --record runs/small runs/protocol` first records what `tardigrad reproduce`
has left there: the reproduction.json of every table, as docs/results/SCALE/PAPER/TABLE.json, and the
grid.json of its `--tune`, as docs/results/SCALE/PAPER/grids/TABLE.json. On a page a table stands between
two comments, the first of which names it, and `<!-- end of table -->`:

- `<!-- tally -->`: how many claims of each paper hold, at each scale that was recorded;
- `<!-- claims PAPER -->`: the verdicts on a paper's claims at all scales, and the reasons that
  docs/results/why.toml has for those that do not hold;
- `<!-- numbers SCALE PAPER/TABLE -->`: the numbers of one table;
- `<!-- details SCALE PAPER -->`: all recorded tables of a paper, with the verdicts on their claims and the
  numbers behind them.
"""

from __future__ import annotations

import argparse
import json
import re
import string
import sys
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

from tardigrad.experiments.compare.outcome import unfinished
from tardigrad.experiments.reproduce.grid_search import GridResult
from tardigrad.experiments.reproduce.reproduction_tables import (
    JudgedClaim,
    ReproductionResult,
    numbers_as_markdown,
)

ROOT = Path(__file__).parents[1]
RECORDED = ROOT / "docs/results"
PAGES = [ROOT / "docs/results.md", *sorted(RECORDED.glob("*.md"))]
TABLE = re.compile(
    r"(<!-- (tally|claims|numbers|details) ?(\w*) ?([\w/-]*) -->\n).*?(<!-- end of table -->)", re.DOTALL
)
PAPERS = {
    "fedbuff": "FedBuff",
    "momentum_approximation": "Momentum approximation",
    "fedac": "FedAC",
    "masfl": "MasFL, AdaMasFL",
    "fedasync": "FedAsync",
}
NOT_ON_THE_PAGE = {"momentum_under_staleness"}
"""These have a page of their own."""
CHANCE = "could be chance"
OURS = "not the paper's"
"""Begins claims that we added to a file."""
OUR_TABLES = {"fedac/full", "fedac/readings", "masfl/horizon"}
"""Tables whose claims are those of other tables, under conditions that we added."""
SCALES = {"small": "few clients and trips", "protocol": "the paper's settings, as far as affordable"}
OUTCOMES = ("holds", CHANCE, "does not hold", "not run")

Recorded = dict[tuple[str, str], ReproductionResult]


def recorded(folder: Path = RECORDED) -> Recorded:
    """Return all recorded results by scale and name."""
    results = [_read(file) for file in sorted(folder.glob("*/*/*.json"))]
    return {(result["scale"], result["name"]): result for result in results}


def record(runs: Path, folder: Path = RECORDED) -> list[str]:
    """Copy the results of all tables and grids in a folder of runs, and return their names. One with runs
    that are not finished is left out."""
    names = []
    for file in sorted(runs.glob("*/*/reproduction.json")):
        result: ReproductionResult = _read(file)
        if is_unfinished(result) or result["name"].split("/")[0] in NOT_ON_THE_PAGE:
            continue
        _write(result, folder / result["scale"] / f"{result['name']}.json")
        names.append(result["name"])
    for file in sorted(runs.glob("*/*/grid.json")):
        grid: GridResult = _read(file)
        paper, table = grid["name"].split("/")
        if not is_unfinished(grid) and paper not in NOT_ON_THE_PAGE:
            _write(grid, folder / grid["scale"] / paper / "grids" / f"{table}.json")
            names.append(f"the grid of {grid['name']}")
    return names


def is_unfinished(result: ReproductionResult | GridResult) -> bool:
    """Return whether some runs of a table or grid are not finished."""
    if "failed" in result:
        return any(map(unfinished, result["failed"].values()))
    tried = [
        one for entries in result["tasks"].values() for entry in entries.values() for one in entry["tried"]
    ]
    return any(unfinished(one["failed"]) for one in tried if "failed" in one)


def _read(file: Path) -> Any:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        sys.exit(f"{file} is no JSON: {error}")


def _write(result: ReproductionResult | GridResult, file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


def verdict(claim: JudgedClaim) -> str:
    """Return the verdict, which is "could be chance" if every difference that does not count has the claimed
    sign.

    >>> verdict({"verdict": "does not hold", "found": "gap 1 -> 2 (first to last: p = 0.3)"})
    'could be chance'
    """
    if claim["verdict"] != "does not hold":
        return claim["verdict"]
    parts = [re.search(r"p = ([\d.e-]+)", part) for part in claim["found"].split("; ")]
    if any(part is None for part in parts):
        return "does not hold"
    return CHANCE if all(float(part[1]) < 0.5 for part in parts if part) else "does not hold"


def of_paper(results: Recorded, scale: str, paper: str) -> list[ReproductionResult]:
    """Return the recorded results of a paper at a scale, by name. Raise KeyError if there are none."""
    found = [one for (size, name), one in results.items() if (size, name.split("/")[0]) == (scale, paper)]
    if not found:
        raise KeyError(f"{scale} {paper}")
    return found


def details(results: Recorded, scale: str, paper: str) -> str:
    """Return all tables of a paper at a scale, each with the verdicts on its claims."""
    return "\n\n".join(map(_details, of_paper(results, scale, paper)))


def _details(result: ReproductionResult) -> str:
    parts = [f"### {place(result)}: {result['title']}", numbers_as_markdown(result)]
    rows = [["claim", "verdict", "found"]]
    for claim in result["claims"]:
        task = f" ({claim['task']})" if claim["task"] else ""
        rows.append([claim["says"] + task, verdict(claim), claim["found"]])
    if len(rows) > 1:
        parts.append(markdown(rows))
    parts += [f"{run} failed: {error}" for run, error in result["failed"].items()]
    return "\n\n".join(parts)


def tally_table(results: Recorded) -> str:
    """Return how many of the papers' claims hold, by paper and scale."""
    rows = [["paper", "scale", "claims", *OUTCOMES]]
    for paper, title in PAPERS.items():
        for scale in SCALES:
            if not any((size, name.split("/")[0]) == (scale, paper) for size, name in results):
                continue
            claims = [claim for one in of_paper(results, scale, paper) for claim in papers_claims(one)]
            if not claims:
                continue
            count = Counter(map(verdict, claims))
            rows.append([title, scale, str(len(claims)), *(str(count[outcome]) for outcome in OUTCOMES)])
    return markdown(rows)


def papers_claims(result: ReproductionResult) -> list[JudgedClaim]:
    """Return the claims that are the paper's own, not ours."""
    if result["name"] in OUR_TABLES:
        return []
    return [claim for claim in result["claims"] if not claim["says"].startswith(OURS)]


def reasons(folder: Path = RECORDED) -> dict[tuple[str, str], str]:
    """Return why claims do not hold, as far as it is known, by paper and claim."""
    groups = tomllib.loads((folder / "why.toml").read_text(encoding="utf-8"))["why"]
    return {(one["paper"], claim): one["reason"] for one in groups for claim in one["claims"]}


def claims_table(results: Recorded, paper: str, why: dict[tuple[str, str], str]) -> str:
    """Return the verdicts on the claims of a paper at all scales, and below them the reasons, by letter.
    Where verdicts differ between tasks, the tasks are named."""
    scales = [
        scale for scale in SCALES if any(key[0] == scale and key[1].split("/")[0] == paper for key in results)
    ]
    found: dict[tuple[str, str], dict[str, list[JudgedClaim]]] = {}
    for scale in scales:
        for result in of_paper(results, scale, paper):
            for claim in papers_claims(result):
                by_scale = found.setdefault((place(result), claim["says"]), {})
                by_scale.setdefault(scale, []).append(claim)
    rows = [["claim", "where", *(f"{scale}: {SCALES[scale]}" for scale in scales), "why not"]]
    letters: dict[str, str] = {}
    for (where, says), by_scale in found.items():
        letter = ""
        if reason := why.get((paper, says)):
            letter = letters.setdefault(reason, string.ascii_lowercase[len(letters)])
        rows.append([says, where, *(_verdicts(by_scale.get(scale, [])) for scale in scales), letter])
    return "\n\n".join([markdown(rows), *(f"({letter}) {reason}" for reason, letter in letters.items())])


def _verdicts(claims: list[JudgedClaim]) -> str:
    tasks: dict[str, list[str]] = {}
    for claim in claims:
        tasks.setdefault(verdict(claim), []).append(claim["task"])
    if not tasks:
        return "not run"
    if len(tasks) == 1:
        return next(iter(tasks))
    return "; ".join(f"{outcome} ({', '.join(names)})" for outcome, names in tasks.items())


def place(result: ReproductionResult) -> str:
    """Return where the paper has the table, such as "Figure 3"."""
    where = re.search(r"(?:Table|Figure|Equation|Algorithm)s? .*$", result["source"])
    return where[0] if where else result["name"]


def written(page: str, results: Recorded) -> str:
    """Return the page with all tables as recorded. Raise KeyError for a table that was not recorded."""

    def table(found: re.Match[str]) -> str:
        match found[2]:
            case "tally":
                text = tally_table(results)
            case "claims":
                text = claims_table(results, found[3], reasons())
            case "details":
                text = details(results, found[3], found[4])
            case _:
                text = numbers_as_markdown(results[found[3], found[4]])
        return f"{found[1]}\n{text}\n\n{found[5]}"

    return TABLE.sub(table, page)


def markdown(rows: list[list[str]]) -> str:
    """Return a table in Markdown; the first row has the headings."""
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join([lines[0], "|" + " --- |" * len(rows[0]), *lines[1:]])


def main() -> None:
    """Record, if asked to, and write the pages."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--record",
        type=Path,
        nargs="+",
        metavar="DIR",
        default=[],
        help="first record the results in these folders",
    )
    for folder in parser.parse_args().record:
        print(f"{folder}: recorded", ", ".join(record(folder)) or "nothing")
    results = recorded()
    for page in PAGES:
        try:
            page.write_text(written(page.read_text(encoding="utf-8"), results), encoding="utf-8")
        except KeyError as missing:
            sys.exit(f"{page}: the result {missing} is not recorded in {RECORDED}; use --record DIR")


if __name__ == "__main__":
    main()
