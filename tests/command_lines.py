"""Command lines of `tardigrad` in documents and files, and whether our command understands them."""

import re
import shlex

import typer
from typer._click.exceptions import ClickException, NoArgsIsHelpError

from tardigrad.cli import app

COMMANDS = typer.main.get_command(app)
COMMAND = re.compile(r"(?:^|[;&|(]|\bdo|\bthen|\|\||&&)\s*((?:\.venv/bin/|\S*/bin/)?tardigrad\s.*)$")
"""A line of a shell that calls the command, perhaps after another one."""


def command_lines(text):
    """Return the command lines in a shell text; lines that a backslash joins are one."""
    joined = re.sub(r"\\\n\s*(?:> )?", " ", text)
    lines = [re.sub(r"^\s*\w*[$>] ", "", line) for line in joined.splitlines()]
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


def parsed(words):
    """Read the words of a command as the CLI does, without running it; return the context of the command.

    Values are not used: files need not exist, and NAME may stand for a name.
    """
    command, context, name = COMMANDS, None, "tardigrad"
    while True:
        context = command.make_context(name, list(words), parent=context)
        if not hasattr(command, "commands"):
            return context
        name, command, words = command.resolve_command(context, [*context._protected_args, *context.args])


def wrong_with(line, partial=False):
    """Return what the command would say to the words of a line, or None if it understands them.

    With `partial`, arguments and values may be missing, as in a sentence that speaks of `tardigrad serve`.
    """
    words = words_of(line)[1:]
    if {"--help", "-h", "--version", "--install-completion", "--show-completion"} & set(words):
        return None
    try:
        parsed(words)
    except NoArgsIsHelpError as error:  # the bare name of a group
        return None if partial else f"a command of {error.ctx.command.name} is missing"
    except ClickException as error:
        said = error.format_message()
        missing = said.startswith("Missing ") or said.endswith(" requires an argument.")
        return None if partial and missing else said
    return None
