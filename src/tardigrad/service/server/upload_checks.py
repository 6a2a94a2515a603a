"""Inspection: what an upload must be before it may count."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import islice

import numpy as np
import torch

from tardigrad.core.upload import Vectors
from tardigrad.service.protocol.refusals import Cause, Refused
from tardigrad.service.protocol.v1 import service_pb2 as v1
from tardigrad.service.protocol.wire import Layout, digest, from_wire, unpacked
from tardigrad.service.server.client_evaluations import MOST_METRICS
from tardigrad.service.server.service_settings import ServiceSettings

MOST = 2**31
"""Nobody has more examples, or takes more steps, in one trip."""
LARGEST_METRIC = 1e30
"""Weighted by examples, the sum of any number of such metrics is finite."""


@dataclass(frozen=True, slots=True)
class Reported:
    """What a client tells of its trip besides vectors."""

    examples: int = 1
    steps: int = 1
    loss: float = 0.0
    evaluated: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    dropped: tuple[str, ...] = ()
    """Metrics that the server does not take."""


def check_header(
    header: v1.UploadHeader,
    layout: Layout,
    settings: ServiceSettings,
    private: bool,
    metrics: frozenset[str],
) -> Reported:
    """Check before anything is received that these are the vectors that the algorithm uploads, and that the
    numbers can be true; return what is kept of them. `metrics`: the names that are taken.

    In a private run nothing is refused by what a client says, because that would decide who is in a buffer;
    and nothing of it is kept, because the promise does not cover it.
    """
    given = from_wire(header.vectors)
    if given != layout:
        raise Refused(
            Cause.SHAPE,
            f"the upload has the vectors {dict(given[:8])}, but must have {dict(layout)} (names and lengths)",
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
        if name in metrics and abs(value) <= LARGEST_METRIC  # which NaN is not
    }
    taken = dict(islice(taken.items(), MOST_METRICS))
    dropped = tuple(name for name in header.metrics if name not in taken)
    evaluated = header.evaluated if taken else 0
    return Reported(header.examples, header.steps, header.loss, evaluated, taken, dropped)


def most_examples(settings: ServiceSettings) -> int:
    """How many examples a client may claim."""
    return settings.examples_bound or MOST


def check_body(
    room: np.ndarray, header: v1.UploadHeader, layout: Layout, private: bool
) -> tuple[Vectors, float]:
    """The vectors and their norm, if they are what was signed and finite. In a private run they need not be
    finite and have the norm 0: the mechanism makes them count for no more than others. For any thread."""
    if digest(room) != header.digest:
        raise Refused(Cause.BODY, "the vectors are not those that were signed")
    if private:
        return unpacked(room, layout), 0.0
    norm = float(torch.linalg.vector_norm(torch.from_numpy(room).view(torch.float32)))
    vectors = unpacked(room, layout)
    # the norm of finite numbers can overflow: only then look at each
    if not math.isfinite(norm) and not all(bool(torch.isfinite(v).all()) for v in vectors.values()):
        raise Refused(Cause.VALUES, "the vectors have numbers that are not finite")
    return vectors, norm
