"""A secure run's promises, against whom, and their limits: its part of the privacy statement."""

from __future__ import annotations

from tardigrad.privacy.statement import Aggregation
from tardigrad.secure.policy_of_run import SecureRun

NO_NOISE = """# Privacy statement

**Single uploads are hidden, and nothing more is promised.** This run had secure aggregation and no noise:
the server knows the sum of each batch and no single upload, but each sum, and each model, may tell something
of single clients. This is not differential privacy.

{section}
## What is not protected

{unprotected}
"""
SIMULATED = """\
> **This was a simulation.** Clients, helpers and server were one program, so that whoever ran it could
> see everything. What follows holds for a server of this run whose helpers are elsewhere.

"""


def secure_aggregation(run: SecureRun, simulated: bool) -> Aggregation:
    """Return the part of the statement that is about secure aggregation. `simulated`: whether the helpers
    were in the same program as the server."""
    rows = {
        "helpers": f"{run.secure.helper_count}, each of which adds the whole noise"
        + (f" (the variance is {run.secure.helper_count} times as large)" if _several(run) else ""),
        "clients in a batch": f"{run.buffer.size}, of which at least {run.secure.least_clients} must count "
        "effectively, (sum of weights)^2 / sum of squared weights",
        "codes": f"{run.grid.bits} bits, {run.grid.step:.3g} apart, weights in multiples of 1 / "
        f"{run.grid.denominator}",
    }
    if run.guarantee is not None:
        rows["payload norm"] = f"{run.guarantee.overhead:.6g} times the clip (the codes of the upload)"
    return Aggregation(rows, _trusted(run), _unprotected(run), _section(run, simulated))


def hidden_only(run: SecureRun, simulated: bool) -> str:
    """Return the whole statement of a secure run that adds no noise."""
    unprotected = "\n".join(f"- {line}" for line in (*_not_noisy(), *_unprotected(run)))
    return NO_NOISE.format(section=_section(run, simulated), unprotected=unprotected)


def _several(run: SecureRun) -> bool:
    return run.secure.helper_count > 1


def _private(run: SecureRun) -> bool:
    return run.guarantee is not None and run.guarantee.noise_multiplier > 0


def _section(run: SecureRun, simulated: bool) -> str:
    """Return who learns what, as a table."""
    noisy, several = _private(run), _several(run)
    exact = "the exact sum of each batch, and no single upload"
    known = "(epsilon, delta) as above" if noisy else exact
    seen = "; who took part and when"
    rows = [
        ("other clients, the public", "(epsilon, delta) as above" if noisy else "all models, without noise"),
        ("the server alone" + (", or with all helpers but one" if several else ""), known + seen),
        ("one helper alone", (known if several else exact) + seen),
        *([("all helpers, without the server", exact + seen)] if several else []),
        (f"the server and {'all helpers' if several else 'the helper'} together", "every upload"),
    ]
    table = "\n".join(f"| {who} | {what} |" for who, what in rows)
    return (
        "## Who learns what\n\n"
        + (SIMULATED if simulated else "")
        + f"| who looks | what can be learnt |\n| --- | --- |\n{table}\n"
    )


def _trusted(run: SecureRun) -> tuple[str, ...]:
    """Return who is trusted with what, in place of the trust in a server that sees uploads."""
    helpers = "the helper" if not _several(run) else f"at least one of {run.secure.helper_count} helpers"
    return (
        f"The server is not trusted with uploads. It is trusted not to work together with "
        f"{'all helpers' if _several(run) else 'the helper'}: {helpers} keeps its seeds and its noise for "
        "itself, releases a batch once, and is run by somebody else than the server.",
        "Each client clips and rounds its own upload. A client that does not hurts its own privacy and the "
        "model, not the privacy of others.",
    )


def _not_noisy() -> tuple[str, ...]:
    return (
        "What a sum tells of single clients. The more parameters a model has, the more that can be.",
        "Whoever knows all other uploads of a batch, such as a server that has invented the other clients, "
        "knows the last one. The helpers have a list of clients of their own against that, and require "
        "several clients in a batch that are not too late to count.",
    )


def _unprotected(run: SecureRun) -> tuple[str, ...]:
    lines = [
        "Metadata: who took part, when, from which version, and in which batch, is known to the server and "
        "to the helpers.",
        "Steering by a malicious server: it can give everybody a model that makes uploads tell more. "
        "Receipts show that all clients had the same one, not that it was an honest one"
        + ("; against that only the noise protects." if _private(run) else "."),
        "Uploads of clients that lie about their clip, or send nonsense: their sum cannot be checked upload "
        "by upload. A sum beyond the bound of honest uploads is reported.",
    ]
    if not (_several(run) and _private(run)):
        lines.append("The exact sum of each batch, against a helper, which knows what noise it has added.")
    return tuple(lines)
