"""Checks of an upload's header and body."""

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
"""The largest number of examples or of steps that a client may claim for one trip."""
LARGEST_METRIC = 1e30
"""Weighted by examples, the sum of any number of such metrics is finite."""


@dataclass(frozen=True, slots=True)
class Reported:
    """What a client reports about its trip besides vectors."""

    examples: int = 1
    steps: int = 1
    loss: float = 0.0
    evaluated: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    dropped: tuple[str, ...] = ()
    """Names of metrics that the server does not take."""


def check_header(
    header: v1.UploadHeader,
    layout: Layout,
    settings: ServiceSettings,
    private: bool,
    metrics: frozenset[str],
) -> Reported:
    """Check, before the vectors are received, that they are those of the algorithm and that the numbers are
    possible. Return the numbers that are kept. `metrics`: names of metrics that are taken.

    In a private run nothing is refused because of what a client reports, because that would decide who is in
    a buffer. Nothing of it is kept either, because the privacy guarantee does not cover it.
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
        if name in metrics and abs(value) <= LARGEST_METRIC  # false for NaN
    }
    taken = dict(islice(taken.items(), MOST_METRICS))
    dropped = tuple(name for name in header.metrics if name not in taken)
    evaluated = header.evaluated if taken else 0
    return Reported(header.examples, header.steps, header.loss, evaluated, taken, dropped)


def most_examples(settings: ServiceSettings) -> int:
    """Return how many examples a client may claim."""
    return settings.examples_bound or MOST


def check_body(
    payload: np.ndarray, header: v1.UploadHeader, layout: Layout, private: bool
) -> tuple[Vectors, float]:
    """Return the vectors and their norm; raise `Refused` unless they are those that were signed, and finite.

    In a private run they need not be finite and the norm is 0: the mechanism limits their influence. May be
    called from any thread.
    """
    if digest(payload) != header.digest:
        raise Refused(Cause.BODY, "the vectors are not those that were signed")
    if private:
        return unpacked(payload, layout), 0.0
    norm = float(torch.linalg.vector_norm(torch.from_numpy(payload).view(torch.float32)))
    vectors = unpacked(payload, layout)
    # the norm of finite numbers can overflow; only then each number is checked
    if not math.isfinite(norm) and not all(bool(torch.isfinite(v).all()) for v in vectors.values()):
        raise Refused(Cause.VALUES, "the vectors have numbers that are not finite")
    return vectors, norm
