"""The state of a ClientApp's context in a client's memory."""

import pytest

pytest.importorskip("flwr")

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from tardigrad.core.snapshot import read_snapshot, write_snapshot
from tardigrad.errors import RunError
from tardigrad.flower.app_state import DOCUMENT, state_in, vectors_of, without_state


def test_every_kind_of_record_comes_back_from_disk_as_it_was(tmp_path):
    state = RecordDict(
        {
            "b": ArrayRecord({"z": Array(np.float16([[1, 2]])), "a": Array(np.array([], np.int64))}),
            "empty": ArrayRecord(),
            "c": ConfigRecord(
                {"bytes": b"\x00\xff", "list": [1.5, 2.0], "raw": [b"x"], "flag": True, "n": 1, "x": 1.0}
            ),
            "m": MetricRecord({"loss": float("nan"), "many": [1, 2]}),
        }
    )
    write_snapshot(tmp_path / "memory.safetensors", vectors_of(state, 7), {})
    found, trip = state_in(read_snapshot(tmp_path / "memory.safetensors")[0])
    assert trip == 7
    assert list(found) == list(state)
    assert list(found["b"]) == ["z", "a"]
    assert found["b"]["z"].numpy().tolist() == [[1.0, 2.0]]
    assert found["b"]["z"].dtype == "float16"
    assert found["b"]["a"].numpy().shape == (0,)
    assert dict(found["c"]) == dict(state["c"])
    assert [type(value) for value in found["c"].values()] == [type(value) for value in state["c"].values()]
    assert np.isnan(found["m"]["loss"])
    assert type(found["m"]) is MetricRecord
    assert vectors_of(found, 7).keys() == vectors_of(state, 7).keys()


def test_a_memory_without_state_is_an_empty_state():
    memory = {"drift": torch.zeros(2)}
    assert state_in(memory) == (RecordDict(), -1)
    assert without_state(memory | vectors_of(RecordDict(), 3)).keys() == {"drift"}


def test_a_damaged_state_is_said_in_one_sentence():
    memory = vectors_of(RecordDict({"a": ArrayRecord({"x": Array(np.zeros(2))})}), 0)
    with pytest.raises(RunError, match="state of the ClientApp in this client's memory is damaged"):
        state_in({DOCUMENT: memory[DOCUMENT]})
