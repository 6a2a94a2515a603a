"""Uploads while they are received: in memory or in a file."""

import json
from collections import deque

import numpy as np
import pytest
import torch

from tardigrad.core.upload import TypedVector
from tardigrad.service.protocol.wire import digest
from tardigrad.service.server.payload_buffers import KEPT, PayloadBuffers
from tardigrad.service.server.upload_body import (
    IN_MEMORY,
    UNDER_WAY,
    BodyInFile,
    BodyInMemory,
    memory_for,
)
from tardigrad.service.server.upload_form import UploadForm
from tardigrad.service.store.sqlite import SqliteStore

FORM = UploadForm((TypedVector("codes", "int8", 5), TypedVector("scales", "float32", 700)))
BYTES = np.random.default_rng(3).integers(0, 256, FORM.size, np.uint8)


@pytest.fixture
def folder(tmp_path):
    """A store of uploads on disk, and its folder."""
    store = SqliteStore(tmp_path)
    yield store, tmp_path / "uploads"
    store.close()


@pytest.fixture(params=["memory", "file"])
def body(request, folder):
    store = folder[0]
    if request.param == "memory":
        return BodyInMemory(FORM, PayloadBuffers(FORM.size), lambda payload: store.write(3, payload))
    return BodyInFile(FORM, lambda: store.receive(3), store.discard)


def filled(body):
    """Give the body its bytes in chunks of several sizes."""

    begin, chunks = 0, deque()
    for size in (1, 2, 3, 1000, len(BYTES)):
        chunks.append(memoryview(BYTES[begin : begin + size].tobytes()))
        begin = min(begin + size, len(BYTES))
        if size > 2:  # two or more at once
            body.put(chunks)
    assert begin == len(BYTES)
    return body


def test_a_body_has_the_bytes_that_were_put_and_they_are_stored(body, folder):
    filled(body)
    assert body.digest() == digest(BYTES)
    found = body.vectors()
    assert torch.equal(found["codes"].view(torch.uint8), torch.from_numpy(BYTES[:5]))
    assert torch.equal(found["scales"].view(torch.uint8), torch.from_numpy(BYTES[8:]))
    together = body.read(lambda vectors: (v.view(torch.uint8).clone() for v in vectors.values()))
    assert torch.equal(torch.cat(list(together)), torch.from_numpy(np.delete(BYTES, [5, 6, 7])))
    name = body.store()
    body.close()
    store, uploads = folder
    assert [file.name for file in uploads.iterdir()] == [name]
    assert (store.read(name, FORM.size, digest(BYTES)) == BYTES).all()


def test_a_body_that_is_dropped_leaves_no_file(body, folder):
    filled(body).drop()
    body.close()
    assert list(folder[1].iterdir()) == []


def test_bytes_that_come_after_a_body_was_dropped_leave_no_file(folder):
    """A call is cancelled while a thread creates the file."""
    store, uploads = folder
    body = BodyInFile(FORM, lambda: store.receive(3), store.discard)
    body.drop()
    filled(body)
    body.drop()
    assert list(uploads.iterdir()) == []


def test_memory_of_a_closed_body_is_used_again_unless_somebody_still_has_it():
    buffers = PayloadBuffers(FORM.size)
    body = filled(BodyInMemory(FORM, buffers, lambda payload: ""))
    kept = body.vectors()
    body.close()
    body.close()  # a second time does nothing
    body = filled(BodyInMemory(FORM, buffers, lambda payload: ""))
    first = body.payload.ctypes.data
    assert first != kept["codes"].data_ptr()
    del kept
    body.close()
    body = filled(BodyInMemory(FORM, buffers, lambda payload: ""))
    assert body.payload.ctypes.data == first
    view = body.payload[3:]  # as of a thread that still copies
    body.close()
    assert buffers.take().ctypes.data != view.ctypes.data - 3


def test_few_unused_buffers_are_kept():
    buffers = PayloadBuffers(KEPT // 2)
    taken = [[buffers.take()] for _ in range(3)]
    places = [one[0].ctypes.data for one in taken]
    for one in taken:
        buffers.give_back(one)
    assert len(buffers._free) == 2
    assert {buffers.take().ctypes.data for _ in range(2)} <= set(places)


def test_memory_of_a_large_upload_does_not_depend_on_its_size():
    most = 2**30
    assert memory_for(1000, most) == 1000
    assert memory_for(IN_MEMORY, most) == IN_MEMORY
    assert memory_for(IN_MEMORY + 1, most) == memory_for(2**40, most) == UNDER_WAY
    assert memory_for(IN_MEMORY, UNDER_WAY) == UNDER_WAY  # more than reception_bytes
    assert memory_for(1000, 999) == 1000  # which is refused before the run


SCRIPT = """
import json, sys
from collections import deque
from pathlib import Path
from tardigrad.core.upload import TypedVector
from tardigrad.service.protocol.wire import CHUNK
from tardigrad.service.server.upload_body import BodyInFile
from tardigrad.service.server.upload_checks import check_body
from tardigrad.service.server.upload_form import UploadForm
from tardigrad.service.store.sqlite import SqliteStore

def now():
    lines = Path("/proc/self/status").read_text().splitlines()
    return sum(int(line.split()[1]) / 1024 for line in lines if line.startswith("Rss"))

chunks = 100
form = UploadForm((TypedVector("delta", "float32", chunks * CHUNK // 4),))
store = SqliteStore(Path(sys.argv[1]))
most = 0.0

class Watching(BodyInFile):
    def read(self, each):
        global most
        for found in super().read(each):
            most = max(most, now())
            yield found

body = Watching(form, lambda: store.receive(1), store.discard)
body.put(deque([bytes(CHUNK)]))
before = now()
for _ in range(chunks - 1):
    body.put(deque([bytes(CHUNK)]))
    most = max(most, now())
assert check_body(body, body.digest(), form, private=False) == 0.0
print(json.dumps(most - before))
body.drop()
"""


def test_receiving_and_checking_takes_little_memory(commands, tmp_path):
    """An upload of 100 MB; what its file has in the page cache is not memory of the server."""
    process = commands.start(tmp_path, program=SCRIPT)
    said, errors = process.communicate()
    assert process.returncode == 0, errors
    assert json.loads(said) < 32
