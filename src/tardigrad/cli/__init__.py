"""The `tardigrad` command: a file for each group of commands. They import the packages only when needed."""

from tardigrad.cli.command import app, main

__all__ = ["app", "main"]
