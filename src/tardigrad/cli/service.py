"""The commands of the real thing: serve, join, enroll."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from tardigrad.cli.options import look_in
from tardigrad.errors import ConfigError

Keys = Annotated[
    Path, typer.Option(metavar="DIR", help="Where keys, certificates and the list of clients are.")
]


def serve(
    file: Annotated[Path, typer.Argument(metavar="FILE.toml", show_default=False)],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder of the run; goes on if it holds one.")],
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any that is free.")] = 7433,
    keys: Keys = Path("keys"),
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a setting. Repeatable.")
    ] = None,
    data_dir: Annotated[Path | None, typer.Option(metavar="DIR", help="Where data sets lie.")] = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="FILE.py:NAME", help="A torch module of one's own, or a function that makes it."
        ),
    ] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Without TLS; on this machine only.")] = False,
    durability: Annotated[
        bool,
        typer.Option("--durability/--no-durability", help="Whether uploads are on disk when acknowledged."),
    ] = True,
) -> None:
    """Serve a run to real clients: the same config, the same algorithm."""
    from tardigrad.experiments.config import load_config
    from tardigrad.experiments.serve import serve as serve_run
    from tardigrad.service.serving import Place

    _log_to_stderr()
    look_in(data_dir)
    place = Place(host, port, keys, insecure, durability)
    result = serve_run(load_config(file, settings or ()), out=out, place=place, model=model, say=_say)
    if result is not None:
        _say(f"the run is over ({result.stopped_by}): tardigrad show {out}")
    else:
        _say("stopped; the same command goes on" if durability else "stopped")


def join(
    address: Annotated[str, typer.Argument(metavar="HOST:PORT", show_default=False)],
    app: Annotated[str, typer.Option(metavar="FILE.py:NAME", help="The client's own model and examples.")],
    key: Annotated[Path, typer.Option(metavar="FILE", help="The client's key, from `tardigrad enroll`.")],
    name: Annotated[str | None, typer.Option(help="The client's name (default: that of the key).")] = None,
    ca: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The authority of the server (default: beside the key)."),
    ] = None,
    state: Annotated[
        Path | None, typer.Option(metavar="DIR", help="What the client remembers (default: beside the key).")
    ] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Without TLS; for tests.")] = False,
    patience: Annotated[float, typer.Option(min=0, help="Seconds to try for when nobody answers.")] = 600.0,
) -> None:
    """Take part in a run that is served, until it is over."""
    import torch

    from tardigrad.service.app import load_app
    from tardigrad.service.certificates import AUTHORITY
    from tardigrad.service.claims import Signer
    from tardigrad.service.client import Participant
    from tardigrad.service.keys import check_name, read_key
    from tardigrad.service.trainee import Trainee

    _log_to_stderr()
    torch.set_num_threads(1)
    client = check_name(name or key.stem)
    signer = Signer(client, read_key(key))
    authority = None
    if not insecure:
        file = ca or key.parent / AUTHORITY
        try:
            authority = file.read_bytes()
        except OSError as error:
            raise ConfigError(f"--ca {file}: cannot be read ({error}); give the server's ca.pem") from None
    trainee = Trainee(client, load_app(app, client))
    folder = state or key.parent / f"{client}.state"
    participant = Participant(address, signer, authority, trainee, folder, patience, _say)
    try:
        reason = asyncio.run(participant.take_part())
    except KeyboardInterrupt:
        _say("stopped; the same command goes on")
        raise typer.Exit(130) from None
    _say(f"the run is over ({reason})")


def enroll(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", show_default=False)],
    keys: Keys = Path("keys"),
    public: Annotated[
        str | None, typer.Option(metavar="KEY", help="The public key of a client that made its own.")
    ] = None,
    host: Annotated[
        list[str] | None, typer.Option(help="Names of the server, for a first certificate. Repeatable.")
    ] = None,
) -> None:
    """Make keys for clients and enter them in the server's list; the first time, certificates too."""
    from tardigrad.service.certificates import AUTHORITY, make_certificates
    from tardigrad.service.keys import LIST, check_name, enter, make_key, public_text

    if public is not None and len(names) != 1:
        raise ConfigError("--public: is the key of one client; give one name")
    for name in names:
        check_name(name)
    for name in names:
        text = public
        if text is None:
            text = public_text(make_key(keys / f"{name}.key"))
        enter(keys / LIST, name, text)
        _say(f"{name} {text}")
    if not (keys / AUTHORITY).exists():
        make_certificates(keys, host or ["localhost", "127.0.0.1"])
        _say(f"wrote {keys / AUTHORITY} for the clients, and the server's certificate")


def _say(line: str) -> None:
    Console().print(line, highlight=False, markup=False, soft_wrap=True)


def _log_to_stderr() -> None:
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("tardigrad").setLevel(logging.INFO)
