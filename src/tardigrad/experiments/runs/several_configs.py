"""Which runs `tardigrad serve` serves if it is given several configs, or a folder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tardigrad.errors import ConfigError
from tardigrad.experiments.runs.run_folder import SERVER_FILES
from tardigrad.service.access.enrolment import check_name


@dataclass(frozen=True)
class SeveralConfigs:
    """The configs of several runs."""

    files: dict[str, Path]
    """By the name of the run."""
    out: Path
    """The folder of the runs."""


def configs_of_runs(given: Sequence[Path], out: Path | None, say: Callable[[str], None]) -> SeveralConfigs:
    """Return the configs of several runs, which are given as files, or as one folder.

    The name of a run is that of its file without ".toml". A folder stands for all such files in it, and
    unless `out` is given also for the runs that it holds: each of its folders in which a server has begun a
    run goes on, with the config there if there is no other. `say` is called with what is left out.
    """
    if len(given) > 1:
        if out is None:
            raise ConfigError("--out: give the folder of the runs; each is in the folder of its name there")
        folders = [file for file in given if file.is_dir()]
        if folders:
            raise ConfigError(f"{folders[0]}: is a folder; give several configs, or one folder")
        return SeveralConfigs(_by_name(given), out)
    folder = given[0]
    files = _by_name(sorted(folder.glob("*.toml")))
    if out is None:
        for stored in sorted(folder.glob("*/config.toml")):
            run = stored.parent
            if any((run / name).exists() for name in SERVER_FILES):
                files.setdefault(check_name(run.name, f"{folder}: run"), stored)
            elif run.name not in files:
                say(f"{run}: holds a run that no server has begun, and is left out")
    if not files:
        raise ConfigError(f"{folder}: has neither configs (NAME.toml) nor folders of served runs")
    return SeveralConfigs(files, out or folder)


def _by_name(files: Sequence[Path]) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for file in files:
        name = check_name(file.stem, f"{file}: run")
        if name in found:
            raise ConfigError(f"{found[name]} and {file}: both are called {name}; rename one of them")
        found[name] = file
    return found
