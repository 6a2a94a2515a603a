"""Write the tables of docs/momentum-under-staleness.md from the recorded results.

`python tools/momentum_page.py --record runs/small` first records what `tardigrad reproduce
momentum_under_staleness` and its `--tune` have left there, in docs/momentum-under-staleness.
On the page a table stands between `<!-- table NAME -->` and `<!-- end of table -->`.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
from pathlib import Path

from results_page import is_unfinished, markdown
from tardigrad.experiments.reproduce.grid_search import GridResult
from tardigrad.experiments.reproduce.reproduction_tables import OurNumber, ReproductionResult

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/momentum-under-staleness.md"
RECORDED = ROOT / "docs/momentum-under-staleness"
NAMES = ("image", "text")
TABLE = re.compile(r"(<!-- table (\w+) -->\n).*?(<!-- end of table -->)", re.DOTALL)
NOT_RECORDED = "Not measured yet."


def record(runs: Path) -> list[Path]:
    """Copy the results in a folder of runs, unless some of the runs are not finished, and return the files
    that were written."""
    copied = []
    for name in NAMES:
        folder = runs / "momentum_under_staleness" / name
        for source, copy in (
            (folder / "reproduction.json", RECORDED / f"{name}.json"),
            (folder / "grid.json", RECORDED / f"{name}-grid.json"),
        ):
            if source.exists() and not is_unfinished(json.loads(source.read_text())):
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, copy)
                copied.append(copy)
    return copied


def trips_table(result: ReproductionResult) -> str:
    """Return trips and time to the target, by row and number of clients at work."""
    tasks, times = result["ours"], result.get("also", {})["time"]
    rows = [["row", *(f"{task}: trips to {result['targets'][task][0]:g}, time" for task in tasks)]]
    best = {
        task: min(filter(None, (one["mean"] for one in own.values())), default=0.0)
        for task, own in tasks.items()
    }
    for label in next(iter(tasks.values())):
        cells = []
        for task, own in tasks.items():
            mark = "**" if own[label]["mean"] == best[task] else ""
            text = f"{_with_interval(own[label], len(result['seeds']))}{_time(times[task][label])}"
            cells.append(f"{mark}{text}{mark}")
        rows.append([label, *cells])
    return markdown(rows)


def claims_table(result: ReproductionResult) -> str:
    """Return the verdicts on all claims."""
    rows = [["claim", "at work", "verdict", "found"]]
    for claim in result["claims"]:
        rows.append([claim["says"], claim["task"].split()[0], claim["verdict"], claim["found"]])
    return markdown(rows)


def settings_table(grid: GridResult) -> str:
    """Return the settings that were chosen, by row and number of clients at work; * if at the grid's edge."""
    rows = [["row", *grid["tasks"]]]
    for label in next(iter(grid["tasks"].values())):
        cells = []
        for entries in grid["tasks"].values():
            one = entries[label]
            parts = [
                f"{key.split('.')[-1]} {value:g}" + ("\\*" if key in one["edges"] else "")
                for key, value in one["chosen"].items()
            ]
            best = next(tried for tried in one["tried"] if tried["settings"] == one["chosen"])
            reached = "missed" if best["trips"] is None else f"{best['trips']:,.0f}"
            if 0 < best["reached"] < len(grid["seeds"]):
                reached += f", with {best['reached']} of {len(grid['seeds'])} seeds"
            cells.append(f"{', '.join(parts)} ({reached})")
        rows.append([label, *cells])
    return markdown(rows)


def written(page: str) -> str:
    """Return the page with all tables as recorded."""
    makers = {"trips": trips_table, "claims": claims_table, "settings": settings_table}

    def table(found: re.Match[str]) -> str:
        maker, name = found[2].split("_")
        file = RECORDED / (f"{name}-grid.json" if maker == "settings" else f"{name}.json")
        text = makers[maker](json.loads(file.read_text())) if file.exists() else NOT_RECORDED
        return f"{found[1]}\n{text}\n\n{found[3]}"

    return TABLE.sub(table, page)


def _time(number: OurNumber) -> str:
    if number["mean"] is None:
        return ""
    low, high = number["interval"]
    return f"; {number['mean']:,.1f} [{low:,.1f}, {high:,.1f}]"


def _with_interval(number: OurNumber, seeds: int) -> str:
    if number["mean"] is None:
        budget = number.get("budget")
        return "failed" if budget is None else f"> {budget:,.0f} ({number['reached']} of {seeds})"
    low, high = number["interval"]
    return f"{number['mean']:,.0f} [{low:,.0f}, {high:,.0f}]"


def main() -> None:
    """Record, if asked to, and write the page."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--record", type=Path, metavar="DIR", help="first record the results in this folder")
    arguments = parser.parse_args()
    if arguments.record is not None:
        print(
            "recorded:",
            ", ".join(str(file.relative_to(ROOT)) for file in record(arguments.record)) or "nothing",
        )
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
