"""A store of one's own: everything in one file, a JSON object a line, and the contents in memory."""

import fcntl
import json
import os
import threading
from dataclasses import asdict

import numpy as np

from tardigrad.service.protocol.wire import digest as digest_of
from tardigrad.service.store.contract import JournalEntry, RecordedAnswer, StoreError
from tardigrad.service.store.memory import MemoryStore
from tardigrad.service.store.payload_file import as_array


class JsonLinesStore(MemoryStore):
    """Each change is one line, written and synced before it is applied to the contents in memory."""

    durable = True

    def __init__(self, folder):
        super().__init__()
        self._changing = threading.RLock()
        self._payloads, self._number = {}, 0
        self._file = (folder / "store.jsonl").open("a+b", buffering=0)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._replay()
        except OSError:
            self._file.close()
            raise StoreError(f"{folder} is in use by another server") from None
        except (ValueError, TypeError, KeyError) as error:
            self._file.close()
            raise StoreError(f"{folder}/store.jsonl is damaged ({error})") from None

    def _replay(self):
        self._file.seek(0)
        whole, _, torn = self._file.read().rpartition(b"\n")
        for line in whole.splitlines():
            self._apply(*json.loads(line))
        if torn:  # the process died while it wrote this line
            self._file.truncate(len(whole) + 1 if whole else 0)

    def _change(self, method, *given):
        with self._changing:
            if self._file.closed:
                raise StoreError("store.jsonl is closed")
            end = self._file.seek(0, os.SEEK_END)
            line = json.dumps([method, *given]).encode() + b"\n"
            try:
                if self._file.write(line) != len(line):
                    raise OSError("the disk is full")
                os.fsync(self._file.fileno())
            except OSError as error:
                self._file.truncate(end)
                raise StoreError(f"store.jsonl: {error}") from None
            return self._apply(method, *given)

    def _apply(self, method, *given):
        base = super()
        if method == "append":
            return base.append(JournalEntry(**_with_bytes(entry)) for entry in given[0])
        if method == "remember":
            return base.remember([RecordedAnswer(**_with_bytes(one)) for one in given[0]])
        if method == "write":
            self._number += 1
            self._payloads[given[0]] = bytes.fromhex(given[1])
        elif method == "keep_only":
            self._payloads = {name: kept for name, kept in self._payloads.items() if name in given[0]}
        else:
            return getattr(base, method)(*given)
        return None

    def append(self, entries):
        return self._change("append", [_as_json(entry) for entry in entries])

    def remember(self, answers):
        self._change("remember", [_as_json(one) for one in answers])

    def forget(self, last):
        self._change("forget", last)

    def restart_after(self, position):
        self._change("restart_after", position)

    def adopt(self, run):
        self._change("adopt", run)

    def fact(self, name, default):
        with self._changing:
            return self._facts[name] if name in self._facts else self._change("fact", name, default)

    def write(self, trip, payload):
        with self._changing:
            name = f"{trip}-{self._number}"
            self._change("write", name, payload.tobytes().hex())
            return name

    def write_together(self, payloads):
        return [self.write(-1, payload) for payload in payloads]

    def receive(self, trip):
        return ReceivedPayload(self.temporary(), lambda payload: self.write(trip, payload))

    def read(self, name, size, digest):
        payload = np.frombuffer(self._payloads.get(name, b""), np.uint8).copy()
        if len(payload) != size or digest_of(payload) != digest:
            raise StoreError(f"upload {name} is not what was acknowledged")
        return payload

    def recycle(self, names):
        names = set(names)
        self.keep_only({name for name in self._payloads if name not in names})

    def discard(self, name):
        self.recycle([name])

    def keep_only(self, names):
        with self._changing:
            self._change("keep_only", sorted(names))

    def close(self):
        self._file.close()


class ReceivedPayload:
    """A temporary file that becomes a line of the store when it is synced."""

    def __init__(self, file, write):
        self._file, self._write, self.name = file, write, ""

    def __getattr__(self, name):
        return getattr(self._file, name)

    def sync(self):
        self.name = self._write(as_array(self._file.mapping()))


def _as_json(record):
    return {name: v.hex() if isinstance(v, bytes) else v for name, v in asdict(record).items()}


def _with_bytes(document):
    return document | {
        name: bytes.fromhex(document[name]) for name in ("digest", "signed") if name in document
    }
