"""Command lines of `tardigrad` in documents and files, and whether our command understands them."""

import re
import shlex

import typer
from typer._click.exceptions import ClickException

from tardigrad.cli import app

COMMAND = re.compile(r"(?:^|[;&|(]|\bdo|\bthen|\|\||&&)\s*((?:\.venv/bin/|\S*/bin/)?tardigrad\s.*)$")
"""A line of a shell that calls the command, perhaps after another one."""


def command_lines(text):
    """Return the command lines in a shell text; lines that a backslash joins are one."""
    joined = re.sub(r"\\\n\s*(?:> )?", " ", text)
    lines = [re.sub(r"^\s*[$>] ", "", line) for line in joined.splitlines()]
    return [found[1] for line in lines if (found := COMMAND.search(line))]


def words_of(line):
    """Return the words of the first command in a line, without redirections, comments and what follows."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="();<>|&")
    lexer.whitespace_split = True
    lexer.commenters = "#"
    words = []
    for word in lexer:
        if word and set(word) <= set("();<>|&"):
            break
        words.append(word)
    return words[:-1] if words[-1] == "2" else words


def wrong_with(line, partial=False):
    """Return what the command would say to the words of a line, or None if it understands them.

    Values are not used: files need not exist, and NAME may stand for a name. With `partial`, arguments and
    values may be missing, as in a sentence that speaks of `tardigrad serve`.
    """
    words = words_of(line)[1:]
    command = typer.main.get_command(app)
    context = command.make_context("tardigrad", [], resilient_parsing=True)
    while hasattr(command, "commands"):
        if not words or words[0] in (
            "--help",
            "-h",
            "--version",
            "--install-completion",
            "--show-completion",
        ):
            return None
        name, *words = words
        if name not in command.commands:
            return f"there is no command {name!r}"
        command = command.commands[name]
    if "--help" in words:
        return None
    try:
        command.make_context(command.name, words, parent=context)
    except ClickException as error:
        said = error.format_message()
        missing = said.startswith("Missing ") or said.endswith(" requires an argument.")
        return None if partial and missing else said
    return None
