"""The commands of the audit log: what operators did to a run, and whether the record is whole."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tardigrad.cli.service_options import say
from tardigrad.core.plain_json import plain_json
from tardigrad.core.plural import counted
from tardigrad.errors import ConfigError

app = typer.Typer(
    help="Show or verify the audit log of a served run: the acts of its operators.",
    epilog="Example: `tardigrad audit-log show runs/live`",
    no_args_is_help=True,
)

Where = Annotated[
    Path, typer.Argument(metavar="RUN_DIR|FILE", help="A run's folder, or its log.", show_default=False)
]
AsJson = Annotated[bool, typer.Option("--json", help="Print lines of JSON.")]


def _file(where: Path) -> Path:
    from tardigrad.service.store.audit_log import AUDIT

    file = where / AUDIT if where.is_dir() else where
    if not file.exists() and not where.is_dir():
        raise ConfigError(f"{where}: there is no such file or folder; give a run's folder or its {AUDIT}")
    return file


@app.command(epilog="Example: `tardigrad audit-log verify runs/live`")
def verify(where: Where, as_json: AsJson = False) -> None:
    """Check the hashes of all lines, and that none is missing at the end as far as the run's folder tells."""
    from tardigrad.service.store.audit_verification import verified

    lines = verified(_file(where))
    first, last = (lines[0]["hash"], lines[-1]["hash"]) if lines else ("", "")
    if as_json:
        print(plain_json({"acts": len(lines), "first": first, "last": last}))
    elif lines:
        say(f"whole: {counted(len(lines), 'act')}; first hash {first}, last hash {last}")
    else:
        say("whole: no acts")


@app.command(epilog="Example: `tardigrad audit-log show runs/live`")
def show(where: Where, as_json: AsJson = False) -> None:
    """Print the acts, after their hashes were checked."""
    from tardigrad.service.monitor.logs import harmless
    from tardigrad.service.store.audit_verification import verified

    for line in verified(_file(where)):
        if as_json:
            print(plain_json(line))
            continue
        arguments = line["arguments"]
        told = [str(line["number"]), str(line["time"]), str(line["admin"]), str(line["act"])]
        if isinstance(arguments, dict):
            told += [
                f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}"
                for name, value in arguments.items()
            ]
        if line["reason"]:
            told.append(f"({line['reason']})")
        say(harmless(" ".join(told)))
