"""Checks of an upload's header and body."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import islice

from tardigrad.service.protocol.refusals import Cause, Refused
from tardigrad.service.protocol.v1 import service_pb2 as v1
from tardigrad.service.protocol.wire import described, from_wire
from tardigrad.service.server.client_evaluations import MOST_METRICS
from tardigrad.service.server.service_settings import ServiceSettings
from tardigrad.service.server.upload_body import UploadBody
from tardigrad.service.server.upload_form import UploadForm

MOST = 2**31
"""The largest number of examples or of steps that a client may claim for one trip."""
LARGEST_METRIC = 1e30
"""Weighted by examples, the sum of any number of such metrics is finite."""


@dataclass(frozen=True, slots=True)
class Reported:
    """A client's report about its trip, besides vectors."""

    examples: int = 1
    steps: int = 1
    loss: float = 0.0
    evaluated: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    dropped: tuple[str, ...] = ()
    """Names of metrics that the server does not take."""


def check_header(
    header: v1.UploadHeader,
    form: UploadForm,
    settings: ServiceSettings,
    private: bool,
    metrics: frozenset[str],
) -> Reported:
    """Check, before the vectors are received, that they are those of the algorithm and that the numbers are
    possible. Return the numbers that are kept. `metrics`: names of metrics that are taken.

    In a private run nothing is refused because of what a client reports, because that would decide who is in
    a buffer. Nothing of it is kept either, because the privacy guarantee does not cover it.
    """
    if header.encoding != form.kind:
        raise Refused(Cause.ENCODING, wrong_encoding(header.encoding, form.kind))
    given = from_wire(header.vectors)
    if given != form.layout:
        raise Refused(
            Cause.SHAPE,
            f"the upload has the vectors {described(given)}, but must have {described(form.layout)}",
        )
    if private:
        return Reported()
    most = most_examples(settings)
    if not (1 <= header.examples <= most and 1 <= header.steps <= MOST and header.evaluated <= most):
        raise Refused(
            Cause.NUMBERS,
            f"{header.examples} examples, {header.steps} steps and {header.evaluated} evaluated are claimed; "
            f"examples must be 1 to {most}, steps 1 to {MOST}",
        )
    if not math.isfinite(header.loss):
        raise Refused(Cause.VALUES, f"the training loss is {header.loss}; it must be finite")
    taken = {
        name: value
        for name, value in header.metrics.items()
        if name in metrics and abs(value) <= LARGEST_METRIC  # false for NaN
    }
    taken = dict(islice(taken.items(), MOST_METRICS))
    dropped = tuple(name for name in header.metrics if name not in taken)
    evaluated = header.evaluated if taken else 0
    return Reported(header.examples, header.steps, header.loss, evaluated, taken, dropped)


def most_examples(settings: ServiceSettings) -> int:
    """Return how many examples a client may claim."""
    return settings.examples_bound or MOST


def wrong_encoding(given: str, wanted: str) -> str:
    """Return the sentence for a client whose upload has another encoding than its task asked for."""
    if wanted and not given:
        return f"this run takes uploads that are encoded as {wanted!r}, not plain ones; upgrade this client"
    want = f"encoded as {wanted!r}" if wanted else "without an encoding"
    return f"the upload is encoded as {given!r}, but its task asked for one {want}; fetch the task again"


def check_body(body: UploadBody, digest: bytes, form: UploadForm, private: bool) -> float:
    """Return the norm of the decoded vectors; raise `Refused` unless the bytes are those that were signed,
    and the numbers finite.

    In a private run nothing is refused by its values and the norm is 0: the mechanism limits their influence.
    May be called from any thread.
    """
    if body.digest() != digest:
        raise Refused(Cause.BODY, "the vectors are not those that were signed")
    if private:
        return 0.0
    objection = form.objection(body.vectors())
    if objection is not None:
        raise Refused(Cause.CODES, objection)
    norm = math.hypot(*body.read(form.norms))
    # the norm of finite numbers can overflow; only then each number is checked
    if not math.isfinite(norm) and not all(body.read(form.finite)):
        raise Refused(Cause.VALUES, "the vectors have numbers that are not finite")
    return norm
