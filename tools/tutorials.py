"""Run the tutorials as a reader would, and compare what is printed with what the pages show.

A page is Markdown. A block with a title, such as ```toml title="run.toml"`, is a file that the reader writes.
A block ```console` has commands after "$ " (continued after "> "), each followed by what it prints; a line
"..." stands for any lines. Other blocks are not run.

    python tools/tutorials.py docs/tutorials/*.md            compare
    python tools/tutorials.py --write docs/tutorials/*.md    write what was printed into the pages
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
FENCE = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TITLE = re.compile(r'title="([^"]+)"')
NUMBER = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?(?:e[+-]?\d+)?|nan")
VOLATILE = re.compile(r"(sha256 │|wall seconds │|trips per second │|fingerprint|identity) *([\w.+/=-]+)")
"""Words after which two runs, or two machines, print something else."""
NOISY = re.compile(r"(accuracy|loss) *│ *[\d.]+|% to [\d.]+%")
"""What secret noise decides in the output of a private run, which has a row for epsilon."""
BAR = re.compile("[▁▂▃▄▅▆▇█]+")
MODEL = re.compile(r"model sha256 +│ +(\w+)")
UNTRAINED = re.compile(
    r"(tardigrad (plan|privacy plan|data|enroll|identity|join .* --check)|cat|head|ls|wc)\b"
)
"""Commands that print the same on all machines, because they do not train."""
PORTS = ("7433", "7434")
"""The ports in the pages. A run takes free ones in their place."""
PATIENCE = 900.0
"""Seconds that a page may take on a slow machine."""


@dataclass
class Command:
    """A command of a page, and the output that the page shows for it."""

    words: str
    shown: list[str] = field(default_factory=list)
    printed: list[str] = field(default_factory=list)
    code: int | None = None


@dataclass
class File:
    """A file that the reader writes."""

    name: str
    text: str


def steps_of(text: str) -> list[Command | File]:
    """Return the files and commands of a page, in order."""
    steps: list[Command | File] = []
    for language, info, body in FENCE.findall(text):
        if title := TITLE.search(info):
            steps.append(File(title[1], body))
        elif language == "console":
            for line in body.splitlines():
                if line.startswith("$ "):
                    steps.append(Command(line[2:]))
                elif line.startswith("> ") and not steps[-1].shown:
                    steps[-1].words += "\n" + line[2:]
                else:
                    steps[-1].shown.append(line)
    return steps


def follow(steps: list[Command | File], clone: Path, path: str) -> None:
    """Do all steps in a folder of a clone, in one shell; put what was printed into the commands.

    `clone` is an empty folder, in which the examples are where a clone has them.
    """
    (clone / "examples").symlink_to(ROOT / "examples")
    folder = clone / "tutorial"
    folder.mkdir()
    ports = {port: str(free_port()) for port in PORTS}
    kept = folder / ".steps"
    kept.mkdir()
    script = ["export COLUMNS=100"]
    for i, step in enumerate(steps):
        if isinstance(step, File):
            (kept / f"file{i}").write_text(replaced(step.text, ports))
            script.append(f"mkdir -p {shlex.quote(str(Path(step.name).parent))}")
            script.append(f"cp .steps/file{i} {shlex.quote(step.name)}")
        else:
            script.append(
                f"{{ {replaced(step.words, ports)}\n}} > .steps/printed{i} 2>&1; echo $? > .steps/code{i}"
            )
            script.append(f"[ $(cat .steps/code{i}) = 0 ] || exit 1")
    environment = os.environ | {
        "PATH": f"{path}:{os.environ['PATH']}",
        "TERM": "dumb",
        "PYTHONUNBUFFERED": "1",
    }
    shell = subprocess.Popen(
        ["bash", "-c", "\n".join(script)], cwd=folder, env=environment, start_new_session=True,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        shell.wait(PATIENCE)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(shell.pid, signal.SIGKILL)  # what still runs in the background
        shell.wait()
    back = {mine: page for page, mine in ports.items()}
    for i, step in enumerate(steps):
        if isinstance(step, Command) and (kept / f"code{i}").exists():
            step.code = int((kept / f"code{i}").read_text())
            text = replaced((kept / f"printed{i}").read_text(), back)
            step.printed = [line.rstrip() for line in text.strip("\n").splitlines()]


def replaced(text: str, names: dict[str, str]) -> str:
    """Return a text with these words in the place of others."""
    return re.sub("|".join(names), lambda found: names[found[0]], text)


def free_port() -> int:
    """Return a port of this machine that nobody listens on."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


def differences_of(steps: list[Command | File]) -> list[str]:
    """Return how what the commands of a page printed differs from what it shows.

    A page that was made on a processor of this kind shows the same models to the bit. Then all its numbers
    are those that are printed here.
    """
    commands = [step for step in steps if isinstance(step, Command)]
    shown = MODEL.findall("\n".join(line for command in commands for line in command.shown))
    printed = MODEL.findall("\n".join(line for command in commands for line in command.printed))
    same_models = bool(shown) and set(shown) <= set(printed)
    return [
        line
        for command in commands
        for line in differences(command, exact=same_models or bool(UNTRAINED.match(command.words)))
    ]


def differences(command: Command, exact: bool = False) -> list[str]:
    """Return how what was printed differs from what the page shows. `exact`: in numbers too."""
    if command.code != 0:
        printed = "\n".join(command.printed)
        return [f"$ {command.words}\nexit code {command.code}:\n{printed}"]
    if not command.shown:
        return []  # the page shows nothing of it
    head, cut, tail = (part.split() for part in plain(command.shown).partition("..."))
    printed = plain(command.printed).split()
    if cut:
        fits = len(printed) >= len(head) + len(tail)
        pairs = [*zip(head, printed), *zip(reversed(tail), reversed(printed))]
    else:
        fits = len(printed) == len(head)
        pairs = list(zip(head, printed))
    wrong = [f"{a} is {b}" for a, b in pairs if a != b and (exact or not alike(a, b))]
    if fits and not wrong:
        return []
    printed_lines = "\n".join(command.printed)
    return [f"$ {command.words}\nprinted something else ({'; '.join(wrong[:5])}):\n{printed_lines}"]


def plain(lines: list[str]) -> str:
    """Return the words of an output, without what differs between two runs."""
    text = VOLATILE.sub(lambda found: f"{found[1]} #", " ".join(" ".join(lines).split()))
    return NOISY.sub("#", text) if "│ epsilon" in text else text


def alike(shown: str, printed: str) -> bool:
    """Return whether two words are the same, except for numbers that differ by a quarter at most.

    The bits of training are the same on one kind of processor, and nearly the same on another.
    """
    if NUMBER.sub("#", shown) != NUMBER.sub("#", printed):
        return bool(BAR.fullmatch(shown) and BAR.fullmatch(printed))
    pairs = zip(NUMBER.findall(shown), NUMBER.findall(printed), strict=True)
    return all(
        math.isclose(float(a.replace(",", "")), float(b.replace(",", "")), rel_tol=0.25, abs_tol=0.1)
        for a, b in pairs
    )


def written(text: str, steps: list[Command | File]) -> str:
    """Return the page with what was printed; output that is shortened by "..." stays."""
    commands = iter([step for step in steps if isinstance(step, Command)])

    def block(found: re.Match[str]) -> str:
        if found[1] != "console" or TITLE.search(found[2]):
            return found[0]
        lines = []
        for line in found[3].splitlines():
            if line.startswith("$ "):
                command = next(commands)
                lines.append("$ " + command.words.replace("\n", "\n> "))
                lines += command.shown if "..." in command.shown else command.printed
        return f"```console{found[2]}\n" + "\n".join(lines) + "\n```"

    return FENCE.sub(block, text)


def main() -> None:
    """Run the pages that are named."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="write what was printed into the pages")
    parser.add_argument("pages", nargs="+", type=Path)
    options = parser.parse_args()
    wrong = []
    for page in options.pages:
        text = page.read_text()
        steps = steps_of(text)
        with tempfile.TemporaryDirectory() as folder:
            follow(steps, Path(folder), str(Path(sys.executable).parent))
        wrong += [f"{page}:\n{line}" for line in differences_of(steps)]
        if options.write and all(step.code == 0 for step in steps if isinstance(step, Command)):
            page.write_text(written(text, steps))
    print("\n\n".join(wrong) or "all as shown")
    sys.exit(bool(wrong) and not options.write)


if __name__ == "__main__":
    main()
