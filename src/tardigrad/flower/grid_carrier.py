"""Carry messages with Flower's grid. This module and `client_half.py` know the types of Flower's messages."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid

from tardigrad.core.upload import Vectors
from tardigrad.flower_grid.carrier import Kind, Order, Reply
from tardigrad.flower_grid.named_arrays import Arrays, BadReply

ARRAYS, CONFIG = "arrays", "config"
"""The keys of the records in messages that Flower's own strategies use."""
VECTORS = "tardigrad.vectors"
"""The key of the record with the vectors of the algorithm, for `ClientHalf`."""
MOST_AT_ONCE = 100
"""Messages whose replies are asked for in one call; each call sends their identities."""
MOST_CHARACTERS = 300
"""The length at which an error's reason is cut; the rest is a traceback."""


class GridCarrier:
    """The nodes of a Flower grid."""

    def __init__(self, grid: Grid, configs: Mapping[Kind, ConfigRecord | None]) -> None:
        self._grid, self._configs = grid, configs
        self._sent: tuple[Arrays, ArrayRecord] | None = None  # the last version, as it is sent

    def nodes(self) -> Sequence[int]:
        return sorted(self._grid.get_node_ids())

    def send(self, order: Order) -> str:
        content = RecordDict(
            {
                ARRAYS: self._record(order),
                CONFIG: ConfigRecord({**(self._configs[order.kind] or {}), **order.config}),
            }
        )
        if order.vectors:
            content[VECTORS] = vectors_record(order.vectors)
        group = str(order.version)
        message = Message(content, order.node, order.kind, ttl=order.seconds, group_id=group)
        sent = [identity for identity in self._grid.push_messages([message]) if identity]
        return str(sent[0]) if sent else ""

    def _record(self, order: Order) -> ArrayRecord:
        """Return the arrays of an order; those of one version are converted once."""
        if self._sent is None or self._sent[0] is not order.arrays:
            self._sent = order.arrays, array_record(order.arrays)
        return self._sent[1]

    def replies(self, messages: Sequence[str]) -> list[Reply]:
        found = []
        for first in range(0, len(messages), MOST_AT_ONCE):
            some = list(messages[first : first + MOST_AT_ONCE])
            found += [reply_of(message) for message in self._grid.pull_messages(some)]
        return found

    def pause(self, seconds: float) -> None:
        time.sleep(seconds)


def array_record(arrays: Arrays) -> ArrayRecord:
    """Return arrays as Flower sends them."""
    return ArrayRecord({name: Array(np.asarray(array)) for name, array in arrays.items()})


def vectors_record(vectors: Vectors) -> ArrayRecord:
    """Return flat vectors as Flower sends them."""
    return array_record({name: vector.detach().numpy() for name, vector in vectors.items()})


def arrays_of(record: ArrayRecord) -> dict[str, np.ndarray]:
    """Return the arrays of a record; raise a `BadReply` if one cannot be read."""
    found = {}
    for name, array in record.items():
        try:
            found[name] = array.numpy()
        except (TypeError, ValueError, EOFError) as error:
            raise BadReply(f"its array {name!r} cannot be read ({error})") from None
    return found


def metrics_of(content: RecordDict) -> dict[str, float]:
    """Return the single numbers of all metric records; lists are left out."""
    found: dict[str, float] = {}
    for record in content.metric_records.values():
        found |= {str(name): float(value) for name, value in record.items() if not isinstance(value, list)}
    return found


def content_of(message: Any) -> tuple[Arrays, Arrays, dict[str, float]]:
    """Return the arrays, the vectors for the algorithm and the metrics of a ClientApp's reply; raise a
    `BadReply` if it has several records of arrays, or one cannot be read."""
    content = message.content
    records = dict(content.array_records)
    vectors = records.pop(VECTORS, None)
    if len(records) > 1:
        raise BadReply(f"it has {len(records)} records of arrays ({', '.join(records)}); return one")
    arrays = [arrays_of(record) for record in records.values()]
    own = {} if vectors is None else arrays_of(vectors)
    return (arrays[0] if arrays else {}), own, metrics_of(content)


def metric_record(metrics: Mapping[str, float]) -> MetricRecord:
    """Return metrics as a record of Flower."""
    return MetricRecord({name: float(value) for name, value in metrics.items()})


def reply_of(message: Any) -> Reply:
    """Return what a ClientApp has answered; `Reply.error` says what is wrong with it, if something is."""
    identity = str(message.metadata.reply_to_message_id)
    if message.has_error():
        reason = " ".join(str(message.error.reason or "").split())[:MOST_CHARACTERS]
        return Reply(identity, error=f"{reason or 'no reason given'} (code {message.error.code})")
    try:
        arrays, vectors, metrics = content_of(message)
    except BadReply as bad:
        return Reply(identity, error=str(bad))
    return Reply(identity, arrays, vectors, metrics)
