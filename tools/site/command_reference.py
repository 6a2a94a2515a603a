"""The reference page of the command line, from the commands themselves."""

from __future__ import annotations

from collections.abc import Iterator

import typer

from markdown_text import table
from tardigrad.cli import app


def page() -> str:
    """Return the page: a section for each command, with its arguments and options."""
    parts = [
        "# Commands",
        "From the commands themselves: `tardigrad COMMAND --help` prints the same. "
        "[Exit codes](exit-codes.md) have a page of their own.",
    ]
    for words, command in commands(typer.main.get_command(app)):
        parts.extend(section(words, command))
    return "\n\n".join(parts) + "\n"


def commands(command, words: tuple[str, ...] = ("tardigrad",)) -> Iterator[tuple]:
    """Give all commands with the words that call them; groups are not commands."""
    if not hasattr(command, "commands"):
        yield words, command
        return
    for name, inner in command.commands.items():
        if not inner.hidden:
            yield from commands(inner, (*words, name))


def section(words: tuple[str, ...], command) -> Iterator[str]:
    """Give the parts of a command's section."""
    context = typer.Context(command, info_name=" ".join(words))
    yield f"## {' '.join(words)}"
    usage = " ".join(part.strip() for part in command.collect_usage_pieces(context))
    yield f"```text\n{' '.join(words)} {usage}\n```"
    if command.help:
        yield command.help.replace("\b", "").strip()
    rows = []
    for parameter in command.params:
        names = [*parameter.opts, *parameter.secondary_opts]
        if parameter.hidden or "--help" in names:
            continue
        if parameter.param_type_name == "argument":
            names = [parameter.metavar or parameter.name.upper()]
        named = ", ".join(f"`{name}`" for name in names)
        rows.append((named, default_of(parameter), parameter.help or ""))
    yield from table(("argument or option", "default", "meaning"), rows)
    if command.epilog:
        yield command.epilog.replace("\b", "").strip()


def default_of(parameter) -> str:
    """Return the default of a parameter as it is typed, or that it is required."""
    if parameter.required:
        return "required"
    default = parameter.show_default if isinstance(parameter.show_default, str) else parameter.default
    if default is None or default is False or default == () or default == [] or callable(default):
        return ""
    return f"`{getattr(default, 'value', default)}`"
