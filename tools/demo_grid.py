"""Measure what docs/demo.md shows: the client trips to 90 % accuracy with every setting that was tried.

`python tools/demo_grid.py > docs/recorded/demo-grid.json` prints the mean over the seeds for each row and
client's learning rate, or null where a seed missed the target. It takes some minutes.
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any

import tardigrad as td
from tardigrad.experiments.compare.compare import load_comparison, merged

DEMO = Path(__file__).parents[1] / "experiments/demo.toml"
SEEDS = (10, 11, 12)
LOCAL_LRS = (0.05, 0.1, 0.2, 0.4, 0.8)
STOP = {"trips": 4000, "accuracy": 0.9}
SETTINGS: dict[str, list[dict[str, float]]] = {
    "FedBuff": [{"lr": 0.5}, {"lr": 1}, {"lr": 2}],
    "FedAsync": [{"alpha": 0.1}, {"alpha": 0.3}, {"alpha": 0.6}, {"alpha": 0.9}],
    "FedAvgM": [
        {"lr": 1, "beta": 0.5},
        {"lr": 1, "beta": 0.8},
        {"lr": 0.5, "beta": 0.8},
        {"lr": 0.5, "beta": 0.9},
        {"lr": 0.2, "beta": 0.9},
    ],
    "FedAvg": [{"lr": 1}, {"lr": 2}],
}


def trips(values: dict[str, Any]) -> float | None:
    """Return the mean trips to the target, or None if a seed missed it."""
    results = [td.run(td.Config.model_validate(values | {"seed": seed}), progress=False) for seed in SEEDS]
    if any(result.stopped_by != "accuracy" for result in results):
        return None
    return statistics.fmean(result.client_trips for result in results)


def main() -> None:
    """Print the table as JSON, and a line for each row on standard error."""
    demo = load_comparison(DEMO)
    table: dict[str, dict[str, float | None]] = {}
    for entry, settings in SETTINGS.items():
        for setting in settings:
            name = f"{entry.lower()} " + ", ".join(f"{key} {value:g}" for key, value in setting.items())
            table[name] = {}
            for lr in LOCAL_LRS:
                change: dict[str, object] = {"algorithm": setting, "local": {"lr": lr}, "stop": STOP}
                values = merged(merged(demo.base, demo.entries[entry]), change)
                table[name][f"{lr:g}"] = trips(values)
            print(name, table[name], file=sys.stderr, flush=True)
    print(json.dumps({"seeds": SEEDS, "stop": STOP, "trips": table}, indent=1))


if __name__ == "__main__":
    main()
