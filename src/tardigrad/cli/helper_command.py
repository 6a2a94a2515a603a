"""The commands of a helper of secure runs: helper, identity."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tardigrad.cli.service_options import say
from tardigrad.core.plain_json import plain_json


def identity(
    keys: Annotated[Path, typer.Option(metavar="DIR", help="The folder of keys.")] = Path("keys"),
    as_json: Annotated[bool, typer.Option("--json", help="Print a line of JSON.")] = False,
) -> None:
    """Print the identity of the server or the helper whose folder of keys this is; make it if it is missing.

    A secure run needs those of both before it starts: the server's config names its helpers' identities, a
    helper is told that of its server, and clients are told those of the helpers.
    """
    from tardigrad.service.access.enrolment import public_text
    from tardigrad.service.access.identity import own_identity

    public = public_text(own_identity(keys))
    say(plain_json({"identity": public}) if as_json else public)
