"""The privacy statement of a run: what is guaranteed, under which assumptions, and what is not protected."""

from __future__ import annotations

from dataclasses import dataclass

from tardigrad.privacy.accounting import BySampling
from tardigrad.privacy.guarantee import Guarantee
from tardigrad.privacy.settings import LocalPrivacy, Privacy

NOTHING_PROMISED = """# Privacy statement

**Nothing is promised.** This run had no `[privacy]` table: uploads were not clipped and no noise was added,
so each model may reveal what single clients contributed. docs/privacy.md says what can be promised.
"""
VOID = """> **This is a simulation: the guarantee is void.** The noise came from the run's seed
> (`privacy.noise_from = "seed"`), so anybody who knows the config can subtract it.
"""
NO_NOISE = """> **Nothing is private: no noise was added** (`privacy.noise_multiplier = 0`).
"""
EMULATED = """> **The guarantee is that of another run.** The noise is scaled to what a cohort of {cohort:,}
> would need (`privacy.emulated_cohort`); this run, with a cohort of {own:g}, is not private.
"""
NOT_SAMPLED = """> **The sampling is assumed, not made.** This run did not sample each client with probability
> {rate:g} in each step. The numbers below are those of a run that does; this one's guarantee is void.
"""
SUMS = (
    "Sums are sums of real numbers, except for the rounding of floating-point additions, which epsilon does "
    "not include. Sums and noise are then rounded to one grid of whole numbers, so that no bit of a released "
    "number is without noise; epsilon includes the effect of this rounding (see docs/privacy.md)."
)
EXACT_SUMS = (
    "Sums are sums of integers, and exact. Noise has whole cells and a part that is uniform within a cell, "
    "so that no bit of a released number is without noise; epsilon includes the effect of the cells (see "
    "docs/privacy.md)."
)


@dataclass(frozen=True)
class Aggregation:
    """The statement's facts about a run whose server does not see uploads."""

    rows: dict[str, str]
    """Rows of the table of numbers, by what they are about."""
    trusted: tuple[str, ...]
    """The assumptions in place of the trust in a server that sees uploads."""
    unprotected: tuple[str, ...]
    section: str
    """Who learns what."""


def statement(
    guarantee: Guarantee,
    privacy: Privacy,
    algorithm: str,
    population: int,
    made: int | None = None,
    personal: bool = False,
    aggregation: Aggregation | None = None,
) -> str:
    """Return the statement as Markdown: of the plan, or of the run if the number of `made` steps is given.

    `personal`: whether parts of the model stay with their clients. `aggregation`: of a secure run.
    """
    g = guarantee
    after = "when all planned steps are made" if made is None else f"after {_count(made, 'step')}"
    if isinstance(privacy, LocalPrivacy):
        after, made = "for a client that contributes as often as it may", None
    epsilon = g.epsilon(made) if g.noise_multiplier > 0 else float("inf")
    warnings = []
    if g.noise_from == "seed":
        warnings.append(VOID)
    if g.noise_multiplier == 0:
        warnings.append(NO_NOISE)
    if g.emulated != 1.0:
        warnings.append(EMULATED.format(cohort=round(g.divisor / g.emulated), own=g.divisor))
    if isinstance(g.mode, BySampling) and not g.sampling_made:
        warnings.append(NOT_SAMPLED.format(rate=g.mode.rate))
    rows = {
        "epsilon": f"{epsilon:.4f} {after}" + ("" if g.void is None else " (VOID: see above)"),
        "delta": f"{g.delta:g}" + _delta_remark(g.delta, population),
        "adjacency": _adjacency(privacy),
        "mode": _mode(g, privacy),
        "accounting": _accounting(g),
        "noise multiplier": f"{g.noise_multiplier:.6g} (standard deviation over the norm of a payload)",
        "rounding to the grid": f"adds {g.mode.rounding:.3g} to 1 / noise multiplier (counted in epsilon)",
        "clip": f"{g.clip:g}" + (" at first, then adaptive" if g.adaptive else ""),
        "payload norm": f"{g.overhead:.4g} times the clip" + _payload(g),
        "divisor": f"{g.divisor:g}, fixed",
        "steps": f"planned for {g.steps:,}, the budget allows {g.allowed:,}"
        + ("" if made is None else f", made {made:,}"),
        "noise from": "a cryptographic generator" if g.noise_from == "system" else "the run's seed (VOID)",
        "algorithm": algorithm,
        "clients": f"{population:,}",
    }
    if isinstance(privacy, LocalPrivacy):
        for name in ("divisor", "payload norm", "steps"):
            del rows[name]
    if aggregation is not None:
        rows |= aggregation.rows
    table = "\n".join(f"| {name} | {value} |" for name, value in rows.items())
    return "\n".join(
        [
            "# Privacy statement",
            "",
            *warnings,
            _promise(g, privacy, epsilon),
            "",
            "| what | value |",
            "| --- | --- |",
            table,
            "",
            *([] if aggregation is None else [aggregation.section]),
            "## Assumptions",
            "",
            *(f"- {line}" for line in _assumptions(g, privacy, aggregation)),
            "",
            "## What is not protected",
            "",
            *(f"- {line}" for line in _unprotected(g, privacy, personal)),
            *(f"- {line}" for line in (() if aggregation is None else aggregation.unprotected)),
            "",
        ]
    )


def _promise(g: Guarantee, privacy: Privacy, epsilon: float) -> str:
    """Return the guarantee in one paragraph."""
    who = (
        "An observer of all uploads as they leave the clients"
        if isinstance(privacy, LocalPrivacy)
        else "An observer who sees every model of the run and knows the data of all other clients"
    )
    void = ""
    if g.void is not None:
        void = (
            f"**This run promises nothing, because {g.void}.** The rest of this page describes what it would "
            "promise otherwise: "
        )
        who = who[0].lower() + who[1:]
    return (
        f"{void}{who} can hardly tell whether one client made its contributions or contributed nothing: any "
        f"conclusion is at most e^{epsilon:.3g} times as likely in one case as in the other, except with "
        f"probability {g.delta:g}. The unit of privacy is a client with all its examples."
    )


def _count(number: int, thing: str) -> str:
    """Return a number with its noun in the singular or plural.

    >>> _count(1, "step"), _count(2000, "step")
    ('1 step', '2,000 steps')
    """
    return f"{number:,} {thing}" + ("" if number == 1 else "s")


def _delta_remark(delta: float, population: int) -> str:
    """Return a warning if delta is too large for the number of clients."""
    return (
        "" if delta * population < 0.1 else f" (**too large** for {population:,} clients: keep it far below)"
    )


def _adjacency(privacy: Privacy) -> str:
    if privacy.kind == "poisson":
        return "add or remove one client"
    return "zero-out: all contributions of one client are replaced by zeros"


def _mode(g: Guarantee, privacy: Privacy) -> str:
    if isinstance(g.mode, BySampling):
        return f"Poisson sampling, rate {g.mode.rate:g} a step (amplification is assumed)"
    assert g.limits is not None
    most = g.limits.participations
    if isinstance(privacy, LocalPrivacy):
        return f"local: noise on each upload; at most {_count(most, 'upload')} of one client"
    apart = f", at least {_count(g.limits.separation, 'step')} apart" if most > 1 else ""
    return (
        f"participation: at most {_count(most, 'contribution')} of one client{apart} "
        "(no amplification is assumed)"
    )


def _accounting(g: Guarantee) -> str:
    if isinstance(g.mode, BySampling):
        names = {
            "rdp": "Renyi divergences (dp-accounting)",
            "pld": "privacy loss distribution (dp-accounting)",
        }
        return names[g.mode.by]
    return f"exact, as one Gaussian release; {g.noise.kind} noise, sensitivity " + (
        f"{g.noise.sensitivity(g.steps, g.mode.participations, g.mode.separation):.6g} payload norms"
    )


def _payload(g: Guarantee) -> str:
    parts = ["the delta"]
    if g.adaptive:
        parts.append("whether it was within the clip")
    if g.version_gamma:
        parts.append("its version")
    return f" ({', '.join(parts)})"


def _assumptions(g: Guarantee, privacy: Privacy, aggregation: Aggregation | None) -> list[str]:
    """Return what must be true for the guarantee to hold."""
    lines = []
    if isinstance(privacy, LocalPrivacy):
        lines.append(
            "Each client clips and adds its noise by itself, with a generator of its own. With a server, "
            "clients take the clip, the noise multiplier and the number of uploads from the server's "
            "settings and write them to their log. A client that does not trust the server with these "
            "settings must check its log."
        )
        lines.append(
            "No client makes more uploads than stated above. In a simulation, uploads that would be refused "
            "are never made. With a server, each client counts every upload that it sends, also those that "
            "the server refuses."
        )
    elif aggregation is not None:
        lines += aggregation.trusted
    else:
        lines.append(
            "The server is trusted to clip, to sum and to add the noise. It is trusted not to disclose the "
            "uploads, the sums before noise is added, its snapshots (they contain the state of correlated "
            "noise) or its keys."
        )
    if isinstance(g.mode, BySampling):
        lines.append(
            f"Each client really joins each step independently with probability {g.mode.rate:g}, and who "
            "joined stays secret. For real devices, which join when they can, this assumption is false."
        )
        if g.noise_from == "system" and g.sampling_made:
            lines.append(
                "A cryptographic generator draws who joins. Its key, sampling.key, is kept until the run is "
                "over and then deleted. The key reveals who joined when, so it must stay secret."
            )
    else:
        lines.append(
            "The participation ledger is right: a client that appears under two names counts as two clients."
        )
    lines.append(
        "A client's contribution depends only on its own data and on the models that it received. An upload "
        "that is not finite counts as zeros, so that its participation does not depend on its values."
    )
    lines.append(SUMS if aggregation is None else EXACT_SUMS)
    if g.noise_from == "system" and g.noise_multiplier > 0:
        lines.append(
            "The run was made once: it was not continued from a backup or in two places. releases.log has a "
            "digest of each released version, and no version is released again with other values. A copied "
            "folder is refused unless somebody confirms with --moved that it was moved. A folder that the "
            "file system rolled back as a whole is detected only if the run has a guard (--guard). A backup "
            "of the folder is for reading only."
        )
    if g.limits is not None and not isinstance(privacy, LocalPrivacy):
        lines.append(
            "The schedule (who took part when, from which version) does not depend on any client's data."
        )
    return lines


def _unprotected(g: Guarantee, privacy: Privacy, personal: bool) -> list[str]:
    """Return what the guarantee does not cover."""
    lines = [
        "The fact that a client takes part at all, when, and for how long. events.jsonl, metrics.csv, "
        "summary.json and inputs.json (a checksum of data) contain such facts without noise. Keep these "
        "files on the server; publish only the models and what is measured of them on public data.",
        "Facts about the population that do not depend on one client.",
        "Several runs on the same clients: their epsilons add up (at most), and this statement is for "
        "one run.",
        "Settings that were chosen with these clients' data, such as tuned learning rates.",
        "Evaluations on examples that clients hold out (evaluation.held_out), and a stop that depends on "
        "them (stop.accuracy, stop.target): no noise is added to them.",
    ]
    if not g.version_gamma and not isinstance(privacy, LocalPrivacy):
        lines.append("The version that an upload started from (privacy.versions = 'public').")
    if personal:
        lines.append(
            "Personal parts of the model (local.personal, local.batch_norm): they stay with their clients, "
            "are in no released model, and get no noise. A client that passes its own model on passes on "
            "what it has learnt from its examples."
        )
    return lines
