"""The exit codes: their reference page, and the tables of other pages, which `python
tools/site/exit_code_reference.py` writes."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import tardigrad.errors
from markdown_text import table

DOCS = Path(__file__).parents[2] / "docs"
BEGIN, END = "<!-- exit codes: begin -->", "<!-- exit codes: end -->"


class ExitCode(NamedTuple):
    """What an exit code means, and what the operator of a server that ended with it does."""

    code: int
    meaning: str
    remedy: str = ""


CODES = [
    ExitCode(0, "done; of a server: the run is over, or the server was stopped"),
    ExitCode(
        1,
        "an unexpected error, such as a bug here or in a module of one's own: its type and message, and with "
        "TARDIGRAD_DEBUG=1 the traceback; or nobody reads the output any more (a closed pipe)",
        "keep the log, start it once with `TARDIGRAD_DEBUG=1` in the environment, and report what it prints",
    ),
    ExitCode(
        2,
        "the config, a file or an option is wrong; nothing was written, and starting again would not help",
        'the last line names the file or option. "somebody else is running it": another process has the '
        "folder",
    ),
    ExitCode(
        3,
        "the run failed: it diverged, a snapshot is damaged, nobody is left to train; of several runs, one "
        "of them did, and the others have ended or were stopped",
        "the last line says why, such as a disk that is full, or files that are lost",
    ),
    ExitCode(130, "interrupted; `--resume` goes on (`join`: the same command does). A server ends with 0"),
    ExitCode(
        137,
        "killed by the system, mostly for memory",
        "raise `MemoryMax` or the container's limit ([deployment.md](../deployment.md#capacity))",
    ),
]


def meanings() -> str:
    """Return the table of what the codes mean."""
    return "".join(table(("code", "meaning"), [(str(one.code), one.meaning) for one in CODES]))


def remedies() -> str:
    """Return the table of what the operator of a server does."""
    rows = [(str(one.code), one.remedy) for one in CODES if one.remedy]
    return "".join(table(("code", "what to do"), rows))


TABLES = {"architecture.md": meanings, "deployment.md": meanings, "how-to/recover.md": remedies}
"""The pages of docs/ that have one of these tables."""


def page() -> str:
    """Return the reference page."""
    rows = [
        (f"`td.{name}`", str(error.exit_code), error.__doc__ or "")
        for name, error in vars(tardigrad.errors).items()
        if isinstance(error, type) and issubclass(error, tardigrad.errors.TardigradError)
    ]
    parts = [
        "# Exit codes",
        meanings(),
        "## Errors in Python",
        *table(("error in Python", "exit code of the command", "meaning"), rows),
        "## When a server ended",
        remedies(),
    ]
    return "\n\n".join(parts) + "\n"


def with_table(name: str, text: str) -> str:
    """Return a page of docs/ with its table between the markers."""
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n\n{TABLES[name]()}\n\n{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    for name in TABLES:
        (DOCS / name).write_text(with_table(name, (DOCS / name).read_text()))
