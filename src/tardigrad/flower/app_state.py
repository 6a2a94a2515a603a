"""The state of a ClientApp's context as part of a client's memory.

The arrays of the records are kept as bytes, in the form that Flower gave them, and all else as one JSON
document. So nothing is rounded, and every kind of array that Flower knows can be kept.
"""

from __future__ import annotations

import json

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from torch import Tensor

from tardigrad.core.upload import Vectors
from tardigrad.errors import RunError

PREFIX = "flower/"
"""Begins the names in a client's memory; names without a slash belong to the rule of the algorithm."""
DOCUMENT = PREFIX + "state"
KINDS = {"config": ConfigRecord, "metrics": MetricRecord}


def vectors_of(state: RecordDict, trip: int) -> Vectors:
    """Return a state as vectors. `trip`: the one that it is the state after."""
    records: dict[str, object] = {}
    found: Vectors = {}
    for name, record in state.items():
        if isinstance(record, ArrayRecord):
            arrays = []
            for key, array in record.items():
                arrays.append([key, array.dtype, list(array.shape), array.stype])
                found[f"{PREFIX}{len(found)}"] = _bytes(array.data)
            records[name] = {"arrays": arrays}
        else:
            kind = "metrics" if isinstance(record, MetricRecord) else "config"
            records[name] = {kind: {key: _plain(value) for key, value in record.items()}}
    document = json.dumps({"trip": trip, "records": records})
    return {DOCUMENT: _bytes(document.encode()), **found}


def state_in(memory: Vectors) -> tuple[RecordDict, int]:
    """Return the state in a client's memory, and the trip that it is the state after, or -1."""
    if DOCUMENT not in memory:
        return RecordDict(), -1
    state, count = RecordDict(), 0
    try:
        document = json.loads(memory[DOCUMENT].numpy().tobytes())
        for name, record in document["records"].items():
            if "arrays" not in record:
                ((kind, values),) = record.items()
                state[name] = KINDS[kind]({key: _value(value) for key, value in values.items()})
                continue
            arrays = ArrayRecord()
            for key, dtype, shape, stype in record["arrays"]:
                data = memory[f"{PREFIX}{count}"].numpy().tobytes()
                arrays[key], count = Array(dtype, tuple(shape), stype, data), count + 1
            state[name] = arrays
        return state, int(document["trip"])
    except (KeyError, TypeError, ValueError) as error:
        raise RunError(f"the state of the ClientApp in this client's memory is damaged ({error})") from None


def without_state(memory: Vectors) -> Vectors:
    """Return the memory without the state of a ClientApp."""
    return {name: vector for name, vector in memory.items() if not name.startswith(PREFIX)}


def _bytes(content: bytes) -> Tensor:
    return torch.from_numpy(np.frombuffer(content, np.uint8).copy())


def _plain(value: object) -> object:
    """Return a value of a record as JSON has it."""
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return {"bytes": value.hex()} if isinstance(value, bytes) else value


def _value(plain: object) -> object:
    if isinstance(plain, list):
        return [_value(one) for one in plain]
    return bytes.fromhex(plain["bytes"]) if isinstance(plain, dict) else plain
