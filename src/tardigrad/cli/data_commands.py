"""`tardigrad data`: show how examples are distributed over clients, and fetch data sets."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from tardigrad.cli.options import AsJson, DataDir, File, Settings, look_in, print_json, say_written
from tardigrad.cli.table_report import fit_table
from tardigrad.errors import ConfigError

if TYPE_CHECKING:
    from tardigrad.data.catalogue import Source
    from tardigrad.data.sets.own_files import Files
    from tardigrad.data.tables.preparation import Preparation

app = typer.Typer(
    help="Look at data sets, and fetch them.",
    epilog="Example: `tardigrad data get fashion_mnist`",
    no_args_is_help=True,
)


@app.command("show", epilog="Example: `tardigrad data show run.toml --plot partition.png`")
def data_show(
    file: File,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE.png", help="Also draw how examples and labels are distributed."),
    ] = None,
    settings: Settings = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Show how examples and labels are distributed among clients; for tables, also each column."""
    from tardigrad.core.draws import key
    from tardigrad.data.partition_pictures import draw_partition, holdings
    from tardigrad.data.sets.own_files import Files
    from tardigrad.data.tables.table_fit import declared_columns
    from tardigrad.experiments.config.reading import load_config
    from tardigrad.experiments.runs.run_metrics import chosen_head

    look_in(data_dir)
    config = load_config(file, settings or ())
    if config.data is None:
        raise ConfigError(f"{file}: names no data set; `tardigrad list datasets`")
    console = Console(stderr=as_json)
    if isinstance(config.data, Files) and config.data.remote:
        declared = config.data.declared(chosen_head(config))
        console.print(fit_table(declared_columns(declared)))
        console.print("a client must bring these columns; the server has no data", highlight=False)
        if as_json:
            print_json({"preparation": declared.model_dump(mode="json", exclude_none=True)})
        return
    federation = config.data.federation_for(chosen_head(config), key(config.seed, "data"))
    held = holdings(federation)
    console.print(held.table(), highlight=False)
    columns: dict[str, object] = {}
    if isinstance(config.data, Files):
        columns = _show_columns(config.data, federation.preparation, console)
    if plot is not None:
        draw_partition(held, plot, title=_title(config.data))
        say_written(plot, console)
    if as_json:
        print_json(
            {
                "clients": len(held.sizes),
                "examples": held.sizes.tolist(),
                "labels": None if held.counts is None else held.counts.sum(axis=0).tolist(),
                "test_examples": held.test,
            }
            | columns
        )


def _title(data: Source) -> str:
    """Return the title of a picture: the file of a table, or the kind of other data."""
    path = getattr(data, "path", None)
    return str(data.kind if path is None else Path(path).name)


def _show_columns(data: Files, preparation: Preparation | None, console: Console) -> dict[str, object]:
    """Print the columns of tables and how they are prepared; return the same for JSON."""
    from tardigrad.data.tables.table_fit import describe_columns

    tables, test_tables = data.tables()
    fits = describe_columns([*tables, *test_tables], data.kinds(tables), preparation, data.decimal or ".")
    console.print(fit_table(fits))
    separators = sorted({table.table.separator for table in tables if table.table.separator is not None})
    if separators:
        console.print(f"separator of the CSV files: {', '.join(map(repr, separators))}", highlight=False)
    found: dict[str, object] = {"columns": [fit.record() for fit in fits], "separators": separators}
    if preparation is None:
        console.print("prepare: nothing; the model gets these numbers as they are", highlight=False)
        return found
    origin = "are given"
    if preparation.clients is not None:
        passed = f"{preparation.clients:,} clients, {preparation.bytes:,} bytes in all"
        origin = f"are combined from statistics of {passed}"
    sentence = f"prepare: the model gets {preparation.width} numbers for each row; the constants {origin}"
    console.print(sentence, highlight=False, soft_wrap=True)
    return found | {"preparation": preparation.model_dump(mode="json", exclude_none=True)}


@app.command("prepare", epilog="Example: `tardigrad data prepare run.toml public.csv --out preparation.json`")
def data_prepare(
    file: File,
    tables: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[TABLE...]", help="Tables, each of one client, in place of the config's."),
    ] = None,
    out: Annotated[Path, typer.Option(metavar="FILE.json", help="The file to write.")] = Path(
        "preparation.json"
    ),
    settings: Settings = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Find the constants of `data.prepare` in tables at hand, for a private run or a server without data."""
    from tardigrad.core.files import write_text
    from tardigrad.data.sets.own_files import Files
    from tardigrad.experiments.config.reading import load_config
    from tardigrad.experiments.runs.run_metrics import chosen_head
    from tardigrad.experiments.runs.site_declared import preparation_in

    look_in(data_dir)
    config = load_config(file, settings or ())
    data = config.data
    if not isinstance(data, Files) or data.prepare is None:
        raise ConfigError(f"{file}: data.kind must be 'files' and data.prepare 'standard'")
    data = data.model_copy(update={"prepare": data.prepare.model_copy(update={"constants": None})})
    if tables:
        found = data.preparation_of(tables, chosen_head(config))
    elif data.remote:
        raise ConfigError(
            f"{file}: has no data.path; name the tables: tardigrad data prepare {file} public.csv"
        )
    else:
        found = preparation_in(config.model_copy(update={"data": data}))
    write_text(out, found.to_json())
    say_written(out, Console(stderr=as_json))
    if as_json:
        print_json(found.model_dump(mode="json", exclude_none=True))


@app.command("apply", epilog="Example: `tardigrad data apply runs/a/preparation.json new.csv --out new.npz`")
def data_apply(
    preparation: Annotated[
        Path, typer.Argument(metavar="PREPARATION.json", help="That of the run's folder.", show_default=False)
    ],
    table: Annotated[
        Path, typer.Argument(metavar="TABLE", help="CSV, Parquet or Arrow.", show_default=False)
    ],
    out: Annotated[Path, typer.Option(metavar="FILE.npz", help="The file to write: arrays x and names.")],
    separator: Annotated[
        str | None, typer.Option(help="The separator of the CSV file (default: as its heading has it).")
    ] = None,
    decimal: Annotated[str, typer.Option(help="The decimal point of the CSV file: . or ,")] = ".",
    as_json: AsJson = False,
) -> None:
    """Turn a new table into the numbers that the model of a run gets."""
    import numpy as np

    from tardigrad.data.tables.preparation import read_preparation
    from tardigrad.data.tables.reading_tables import read_columns
    from tardigrad.data.tables.table_features import apply_to_table

    if out.suffix != ".npz":
        raise ConfigError(f"--out {out}: the file's name must end in .npz")
    constants = read_preparation(preparation)
    features = apply_to_table(constants, read_columns(table, separator), decimal)
    np.savez(out, x=features, names=np.array(constants.outputs))
    say_written(out, Console(stderr=as_json))
    if as_json:
        print_json({"file": str(out), "rows": len(features), "names": list(constants.outputs)})


@app.command("get", epilog="Example: `tardigrad data get fashion_mnist --data-dir data`")
def data_get(
    name: Annotated[str, typer.Argument(metavar="NAME", help="cifar10, mnist, fashion_mnist, emnist")],
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Fetch a data set from its publisher, and check it."""
    from tardigrad.data.get import get

    look_in(data_dir)
    folder = get(name)
    Console(stderr=as_json).print(f"{name} is in {folder}", highlight=False)
    if as_json:
        print_json({"name": name, "folder": str(folder)})
