"""`tardigrad privacy`: plan a budget, audit a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from tardigrad.cli.options import AsJson, DataDir, File, Settings, look_in, print_json
from tardigrad.core.plural import counted
from tardigrad.errors import ConfigError

if TYPE_CHECKING:
    from rich.table import Table

    from tardigrad.experiments.runs.audit_run import Audit
    from tardigrad.privacy.planning import PlanAnswer

app = typer.Typer(
    help="Plan what privacy costs, and check what a run gives away.",
    epilog="Example: `tardigrad privacy plan --epsilon 8 --steps 2000 --participations 4 --separation 400`",
    no_args_is_help=True,
)


PLAN_EXAMPLES = """Examples:

- noise for a budget: `tardigrad privacy plan --epsilon 8 --steps 2000 --participations 4 --separation 400`

- what noise costs: `tardigrad privacy plan --noise-multiplier 6 --steps 2000 --noise tree --no-honaker`

- which noise: `tardigrad privacy plan --epsilon 8 --steps 2000 --compare`

- enough clients? `tardigrad privacy plan --epsilon 8 --steps 2000 --buffer-size 100 --population 250000`

- Poisson sampling: `tardigrad privacy plan --epsilon 2 --steps 2000 --sampling-rate 5e-4 --by pld`
"""


@app.command(epilog=PLAN_EXAMPLES)
def plan(
    epsilon: Annotated[float | None, typer.Option(help="The budget.")] = None,
    noise_multiplier: Annotated[float | None, typer.Option(help="Noise over the clip.")] = None,
    steps: Annotated[int | None, typer.Option(help="Server steps.")] = None,
    delta: Annotated[
        float | None, typer.Option(help="The chance that epsilon does not hold.", show_default="1e-7")
    ] = None,
    participations: Annotated[
        int | None, typer.Option(help="Contributions of one client, at most.", show_default="1")
    ] = None,
    separation: Annotated[
        int | None,
        typer.Option(help="Steps between them, at least.", show_default="steps / participations"),
    ] = None,
    noise: Annotated[str | None, typer.Option(help="blt, tree or independent.", show_default="blt")] = None,
    no_honaker: Annotated[bool, typer.Option("--no-honaker", help="Tree: plain sums of nodes.")] = False,
    restart_every: Annotated[int | None, typer.Option(help="Tree: steps of one tree.")] = None,
    compare: Annotated[bool, typer.Option("--compare", help="All kinds of noise side by side.")] = False,
    adaptive_overhead: Annotated[
        float | None, typer.Option(help="Adaptive clipping: its noise, as 1.02 (privacy.adaptive.overhead).")
    ] = None,
    version_overhead: Annotated[
        float | None, typer.Option(help="Private versions: their noise, as 1.1 (privacy.version_overhead).")
    ] = None,
    buffer_size: Annotated[int | None, typer.Option(help="K, to see the noise in the mean.")] = None,
    population: Annotated[
        int | None, typer.Option(help="Clients: can they fill all steps within their limits?")
    ] = None,
    sampling_rate: Annotated[
        float | None, typer.Option(help="Poisson mode: the chance that a client joins a step.")
    ] = None,
    by: Annotated[
        str | None, typer.Option(help="Poisson mode: rdp, or pld (tight, slow).", show_default="rdp")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Give two of --epsilon, --noise-multiplier and --steps; get the third, and what the noise comes to.

    Give all three, and no --delta, to get delta. An option that the plan does not use is an error.
    """
    from tardigrad.privacy.planning import PlanAnswer, Question, answer, compared

    question = Question(
        epsilon=epsilon, noise_multiplier=noise_multiplier, steps=steps, delta=delta,
        participations=participations, separation=separation, noise=noise,
        honaker=False if no_honaker else None, restart_every=restart_every,
        sampling_rate=sampling_rate, by=by, adaptive_overhead=adaptive_overhead,
        version_overhead=version_overhead, population=population, buffer_size=buffer_size,
    )  # fmt: skip
    found: dict[str, PlanAnswer | ConfigError]
    with Console(stderr=True).status("calibrating"):
        found = dict(compared(question)) if compare else {"": answer(question)}
    if as_json:
        summaries = {
            kind: one.summary() if isinstance(one, PlanAnswer) else {"noise": kind, "error": str(one)}
            for kind, one in found.items()
        }
        print_json(summaries if compare else summaries[""])
        return
    Console().print(_comparison(found) if compare else _sheet(found[""]), highlight=False)
    for one in found.values():
        if not isinstance(one, PlanAnswer):
            Console().print(str(one), highlight=False, markup=False)


def _sheet(found: PlanAnswer | ConfigError) -> Table:
    """Return a table of one plan, with a line for each number."""
    from rich.table import Table

    assert not isinstance(found, ConfigError)
    table = Table(show_header=False)
    table.add_column(style="cyan")
    table.add_column()
    table.add_row("mode", f"{found.mode}, {found.noise} noise")
    for name in ("epsilon", "delta", "noise_multiplier", "steps"):
        mark = "  (worked out)" if name == found.worked_out else ""
        table.add_row(name.replace("_", " "), f"{getattr(found, name):.6g}{mark}")
    if found.sensitivity is not None:
        table.add_row("sensitivity", f"{found.sensitivity:.6g}")
    if found.overhead > 1:
        table.add_row("overhead", f"{found.overhead:.6g} times the noise")
    table.add_row(
        "largest prefix noise", f"{found.prefix_noise:.6g} clips a coordinate, after step {found.prefix_step}"
    )
    if found.mean_prefix_noise is not None:
        table.add_row(
            f"in the mean of {found.buffer_size}", f"{found.mean_prefix_noise:.4g} clips a coordinate"
        )
    table.add_row("memory", f"{found.memory} times the model")
    if found.population is not None:
        table.add_row("population", f"{found.population:,} clients are enough")
    return table


def _comparison(found: dict[str, PlanAnswer | ConfigError]) -> Table:
    """Return a table of all kinds of noise; "-" for one that cannot do it."""
    from rich import box
    from rich.table import Table

    from tardigrad.privacy.planning import PlanAnswer

    names = ["noise_multiplier", "sensitivity", "prefix_noise", "memory"]
    open_ = {one.worked_out for one in found.values() if isinstance(one, PlanAnswer)} - {"noise_multiplier"}
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    table.add_column("noise", style="cyan", no_wrap=True)
    heads = {"prefix_noise": "largest\nprefix noise\n(clips)", "memory": "memory\n(models)"}
    answers = [one for one in found.values() if isinstance(one, PlanAnswer)]
    if any(one.mean_prefix_noise is not None for one in answers):
        names.insert(3, "mean_prefix_noise")
        heads["prefix_noise"] = "largest\nprefix\nnoise\n(clips)"
        heads["mean_prefix_noise"] = f"in the\nmean of\n{answers[0].buffer_size}\n(clips)"
    if answers and answers[0].population is not None:
        table.caption = f"{answers[0].population:,} clients are enough."
    if open_:  # the multiplier was given, and is the same for all
        names.remove("noise_multiplier")
    names = [*open_, *names]
    for name in names:
        table.add_column(heads.get(name, name.replace("_", "\n")), justify="right")
    for kind, one in found.items():
        digits = {"mean_prefix_noise": 4}
        values = [
            f"{getattr(one, name):.{digits.get(name, 6)}g}" if isinstance(one, PlanAnswer) else "-"
            for name in names
        ]
        table.add_row(kind, *values)
    return table


def _from_models(found: Audit) -> str:
    if found.public_bound is None:
        return ""
    return f"from the first and the last model alone: at least {found.public_bound:.4g}\n"


@app.command(epilog="Example: `tardigrad privacy audit experiments/private.toml --canaries 500`")
def audit(
    file: File,
    canaries: Annotated[int, typer.Option(min=2, help="Clients that the auditor plays.")] = 1000,
    confidence: Annotated[float, typer.Option(help="Of the bound.")] = 0.95,
    settings: Settings = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Run a config once with canaries among its clients, and bound epsilon from below by what it reveals.

    Also tests whether noise, clip and participations are those that were promised. Exits with 3 if they are
    not, or if the bound is above the accountant's epsilon: then something is broken. If so many canaries
    cannot show the accountant's epsilon, it says "no power".
    """
    from tardigrad.experiments.config.reading import load_config
    from tardigrad.experiments.runs.audit_run import AuditRun
    from tardigrad.experiments.runs.progress import Bar, Lines

    look_in(data_dir)
    config = load_config(file, settings or ())
    console = Console(stderr=as_json)
    run = AuditRun(config, canaries, confidence)
    display = Bar(console) if console.is_terminal else Lines(console)
    display.begin(config, [])
    try:
        for events in run.events():
            display.see(events)
    finally:
        display.end()
    found = run.result()
    console.print(
        f"accountant: epsilon {found.accountant_epsilon:.4g} at delta {found.delta:g}\n"
        f"audit: epsilon is at least {found.lower_bound:.4g} with {found.confidence:.0%} confidence; "
        f"at most {found.largest_bound:.4g} can be shown ({found.canaries} canaries, "
        f"{counted(found.steps, 'step')})\n"
        f"{_from_models(found)}{found.verdict()}",
        highlight=False,
        markup=False,
    )
    if as_json:
        print_json(found.summary())
    if not found.holds:
        raise typer.Exit(3)
