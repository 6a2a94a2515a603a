"""Commands about what a config may contain: list, schema."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from tardigrad.cli.options import AsJson, print_json
from tardigrad.core.setting_errors import meant
from tardigrad.errors import ConfigError

app = typer.Typer()


@app.command("list", epilog="Example: `tardigrad list delays`")
def list_kinds(
    what: Annotated[
        str, typer.Argument(metavar="WHAT", help="algorithms, delays, paces, datasets, ...")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """List what a config can name, with its settings and defaults."""
    from rich.table import Table

    from tardigrad.experiments.config.listing import LISTS, entries

    console = Console()
    if what and what not in LISTS:
        hint = meant(what, list(LISTS)) or f"give one of {', '.join(LISTS)}"
        raise ConfigError(f"list {what}: there is no such list; {hint}")
    if as_json:
        print_json(
            [
                {
                    "kind": entry.kind,
                    "about": entry.about,
                    "settings": [
                        {"name": name, "default": default, "meaning": meaning}
                        for name, default, meaning in entry.settings
                    ],
                }
                for entry in entries(what)
            ]
            if what
            else list(LISTS)
        )
        return
    if not what:
        console.print("tardigrad list " + " | ".join(LISTS), highlight=False)
        return
    for entry in entries(what):
        console.print(f"[bold]{entry.kind}[/]  {escape(entry.about)}", highlight=False)
        settings = Table.grid(padding=(0, 2))
        settings.add_column(style="cyan", no_wrap=True)
        settings.add_column(max_width=34)
        settings.add_column(style="dim")
        for name, default, meaning in entry.settings:
            settings.add_row(f"  {name}", escape(default), escape(meaning))
        console.print(settings)


@app.command(epilog="Example: `tardigrad schema > schema.json` (editors check TOML files against it)")
def schema(
    what: Annotated[str, typer.Argument(help="config, or events: a line of events.jsonl.")] = "config",
) -> None:
    """Print the JSON Schema of a config file or of a run's events."""
    if what == "config":
        from tardigrad.experiments.config.schema import Config

        document = Config.model_json_schema()
    elif what == "events":
        from tardigrad.core.event_log import events_schema

        document = events_schema()
    else:
        raise ConfigError(f"schema {what}: there is no such schema; give config or events")
    print(json.dumps(document, indent=2))
