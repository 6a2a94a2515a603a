"""Terminals in which the commands of an example's README are typed as they stand."""

import os
import re
import subprocess


def terminal(words, folder):
    """Type these words in a terminal in this folder. `tardigrad` is the one in the folder above it."""
    path = f"{folder.parent}:{os.environ['PATH']}"
    return subprocess.Popen(
        ["bash", "-e", "-c", f"trap : TERM\n{words}"], cwd=folder, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, env=os.environ | {"PATH": path, "OMP_NUM_THREADS": "1"},
        start_new_session=True,
    )  # fmt: skip


def end(process):
    """Kill what still runs in a terminal."""
    if process.poll() is None:
        os.killpg(process.pid, 9)
    process.communicate()


def listening_port(process):
    """Wait until the command of a terminal listens, and return its port."""
    said = []
    for line in process.stdout:
        said.append(line)
        if line.startswith("listening on"):
            return line.split(":")[-1].strip()
    raise AssertionError("".join(said))


def plain_blocks(text):
    """Return the blocks of a document that name no language."""
    return [block for language, block in re.findall(r"```(\w*)\n(.*?)```", text, re.DOTALL) if not language]
