"""Inspection: what an upload must be before it may count."""

from __future__ import annotations

import math

import numpy as np
import torch

from tardigrad.core.upload import Vectors
from tardigrad.service.layout import Layout, digest, from_wire, unpacked
from tardigrad.service.refused import Refused, Why
from tardigrad.service.reports import MOST_METRICS
from tardigrad.service.settings import Service
from tardigrad.service.v1 import service_pb2 as v1

MOST = 2**31
"""Nobody has more examples, or takes more steps, in one trip."""


def check_header(header: v1.UploadHeader, layout: Layout, settings: Service) -> None:
    """Before anything is received: are these the vectors that the algorithm uploads, and can it be true?"""
    given = from_wire(header.vectors)
    if given != layout:
        raise Refused(
            Why.SHAPE,
            f"the upload has the vectors {dict(given[:8])}, but must have {dict(layout)} (names and lengths)",
        )
    most = settings.examples_bound or MOST
    if not (1 <= header.examples <= most and 1 <= header.steps <= MOST and header.evaluated <= most):
        raise Refused(
            Why.NUMBERS,
            f"{header.examples} examples, {header.steps} steps and {header.evaluated} evaluated are claimed; "
            f"examples must be 1 to {most}, steps 1 to {MOST}",
        )
    metrics = header.metrics
    if len(metrics) > MOST_METRICS or any(
        len(name) > 64 or not math.isfinite(value) for name, value in metrics.items()
    ):
        raise Refused(Why.NUMBERS, f"metrics must be at most {MOST_METRICS} finite numbers with short names")
    if not math.isfinite(header.loss):
        raise Refused(Why.VALUES, f"the training loss is {header.loss}; it must be finite")


def check_body(room: np.ndarray, header: v1.UploadHeader, layout: Layout, settings: Service) -> Vectors:
    """The vectors, if they are what was signed, finite and not too large. For any thread."""
    if digest(room) != header.digest:
        raise Refused(Why.BODY, "the vectors are not those that were signed")
    norm = float(torch.linalg.vector_norm(torch.from_numpy(room).view(torch.float32)))
    vectors = unpacked(room, layout)
    # the norm of finite numbers can overflow: only then look at each
    if not math.isfinite(norm) and not all(bool(torch.isfinite(v).all()) for v in vectors.values()):
        raise Refused(Why.VALUES, "the vectors have numbers that are not finite")
    if settings.norm_bound is not None and norm > settings.norm_bound:
        raise Refused(Why.NORM, f"the upload's norm is {norm:g}; at most {settings.norm_bound:g} is allowed")
    return vectors
