"""Write the tables of docs/results.md from the recorded results in docs/results/.

`python tools/results_page.py --record runs/protocol` first records what `tardigrad reproduce`
has left there: the reproduction.json of every table, as docs/results/SCALE/PAPER/TABLE.json. On the page a
table stands between two comments, `<!-- result SCALE PAPER/TABLE -->` and `<!-- end of result -->`.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path

from tardigrad.experiments.reproduce.reproduction_tables import ReproductionResult, as_markdown

ROOT = Path(__file__).parents[1]
PAGE, RECORDED = ROOT / "docs/results.md", ROOT / "docs/results"
RESULT = re.compile(r"(<!-- result (\w+) ([\w/-]+) -->\n).*?(<!-- end of result -->)", re.DOTALL)


def recorded(folder: Path = RECORDED) -> dict[tuple[str, str], ReproductionResult]:
    """Return all recorded results by scale and name."""
    results = [json.loads(file.read_text(encoding="utf-8")) for file in sorted(folder.glob("*/*/*.json"))]
    return {(result["scale"], result["name"]): result for result in results}


def record(runs: Path, folder: Path = RECORDED) -> list[str]:
    """Copy the results of all tables in a folder of runs, and return their names. A table with runs that are
    not finished is left out."""
    names = []
    for file in sorted(runs.glob("*/*/reproduction.json")):
        result: ReproductionResult = json.loads(file.read_text(encoding="utf-8"))
        if "not finished" in result["failed"].values() or "stopped" in result["failed"].values():
            continue
        copy = folder / result["scale"] / f"{result['name']}.json"
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
        names.append(result["name"])
    return names


def written(page: str, results: dict[tuple[str, str], ReproductionResult]) -> str:
    """Return the page with all tables as recorded. Raise KeyError for a table that was not recorded."""

    def table(found: re.Match[str]) -> str:
        return f"{found[1]}\n{as_markdown(results[found[2], found[3]])}\n{found[4]}"

    return RESULT.sub(table, page)


def main() -> None:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--record", type=Path, metavar="DIR", help="first record the results in this folder")
    arguments = parser.parse_args()
    if arguments.record is not None:
        print("recorded:", ", ".join(record(arguments.record)) or "nothing")
    try:
        PAGE.write_text(written(PAGE.read_text(encoding="utf-8"), recorded()), encoding="utf-8")
    except KeyError as missing:
        sys.exit(f"{PAGE}: the result {missing} is not recorded in {RECORDED}; use --record DIR")


if __name__ == "__main__":
    main()
