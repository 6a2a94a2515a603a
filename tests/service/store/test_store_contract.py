"""What every store must do; those that are on disk must also do it after a crash.

A store of one's own is one file, and one line in `KINDS`.
"""

import contextlib
import os
import random
import shutil
import signal
import threading
from dataclasses import replace

import numpy as np
import pytest
from json_lines_store import JsonLinesStore

from tardigrad.errors import RunError
from tardigrad.service.protocol.wire import digest
from tardigrad.service.store.contract import ANSWERS, JournalEntry, RecordedAnswer, StoreError
from tardigrad.service.store.memory import MemoryStore
from tardigrad.service.store.sqlite import SqliteStore

KINDS = {
    "memory": lambda folder: MemoryStore(),
    "sqlite": SqliteStore,
    "json lines": JsonLinesStore,
}
ON_DISK = [name for name in KINDS if name != "memory"]
CHECK_IN = JournalEntry("check_in", 0.5, client="ann", epoch=2**62)
UPLOAD = JournalEntry(
    "deliver", 1.0, "ann", 7, "7-upload", examples=3, steps=2, loss=0.25, digest=b"\x00\xff", evaluated=4,
    metrics='{"loss": 1.5}', norm=2.5, refusal="norm", epoch=5,
)  # fmt: skip
END = JournalEntry("end", 2.0, reason="trips")
OFFER = JournalEntry("offer", 1.5, "bob", 8, "8-upload", digest=b"\x01", epoch=5, signed=b"\x00signed\xff")
RELEASE = JournalEntry("release", 1.6, file="9-masks", digest=b"\x02", version=2**40)
RECEIPT = JournalEntry("receipt", 1.7, version=9, signed=b"\xfe", receipts='[["00", "ff"]]')
ANSWER = {"accepted": True, "reason": "", "version": 3, "staleness": 1, "weight": 0.5}
PAYLOAD = np.arange(1000, dtype=np.uint8)


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


@pytest.fixture
def store(kind, tmp_path):
    """An empty store of each kind."""
    with contextlib.closing(KINDS[kind](tmp_path)) as store:
        yield store


@contextlib.contextmanager
def reopened(kind, folder, copy):
    """The store as another process would find it if this one were killed now."""
    shutil.copytree(folder, copy)
    with contextlib.closing(KINDS[kind](copy)) as store:
        yield store


def contents(store):
    """Everything in a store but payloads."""
    return {
        "entries": store.entries(0),
        "last": store.last,
        "forgotten": store.forgotten,
        "answers": [store.answer(trip) for trip in range(60)],
        "run": store.fact("run", "none"),
    }


def answers(client, trips):
    return [RecordedAnswer(trip, client, b"\x01", ANSWER | {"version": trip}, epoch=9) for trip in trips]


# -- journal -------------------------------------------------------------------------------------------


def test_entries_are_read_back_as_they_were_appended(store):
    assert store.entries(0) == []
    assert store.last == store.forgotten == 0
    assert store.append([CHECK_IN]) == 1
    assert store.append([UPLOAD, CHECK_IN, END]) == 4
    assert store.entries(0) == [(1, CHECK_IN), (2, UPLOAD), (3, CHECK_IN), (4, END)]
    assert store.entries(2) == [(3, CHECK_IN), (4, END)]
    assert store.entries(4) == []
    assert store.last == 4


def test_acts_of_operators_are_kept_as_they_were(store):
    acts = [
        JournalEntry("eject", 1.0, client="ann", admin="root", wall=1_700_000_000.125, reason="é"),
        JournalEntry("limits", 1.5, admin="root", wall=1.0, limits='{"concurrency": 3.0}'),
        JournalEntry("export", 2.0, admin="root", wall=2.0, version=7, digest=b"\x00\xff"),
        *(JournalEntry(kind, 3.0, admin="eve") for kind in ("pause", "resume", "stop", "admit")),
    ]
    assert store.append(acts) == 7
    assert [entry for _, entry in store.entries(0)] == acts


def test_entries_of_secure_runs_are_read_back_as_they_were_appended(store):
    withdrawn = replace(OFFER, kind="withdraw", signed=b"")
    assert store.append([OFFER, withdrawn, RELEASE, RECEIPT]) == 4
    assert [entry for _, entry in store.entries(0)] == [OFFER, withdrawn, RELEASE, RECEIPT]


def test_entries_that_cannot_all_be_appended_are_not_appended_at_all(store):
    def interrupted():
        yield CHECK_IN
        raise KeyboardInterrupt

    store.append([CHECK_IN])
    with pytest.raises(KeyboardInterrupt):
        store.append(interrupted())
    assert store.entries(0) == [(1, CHECK_IN)]
    assert store.append([UPLOAD]) == 2


def test_forgotten_entries_are_gone_and_their_positions_are_not_used_again(store):
    store.append([CHECK_IN, UPLOAD, CHECK_IN])
    store.forget(2)
    assert store.entries(0) == [(3, CHECK_IN)]
    assert (store.forgotten, store.last) == (2, 3)
    store.forget(3)
    assert store.entries(0) == []
    assert (store.forgotten, store.last) == (3, 3)
    assert store.append([END]) == 4


def test_positions_are_never_used_again_after_a_restart_of_the_journal(store):
    store.append([CHECK_IN, UPLOAD])
    store.restart_after(10)
    assert store.entries(0) == []
    assert store.last == store.forgotten == 10
    assert store.append([UPLOAD, END]) == 12
    assert store.entries(0) == [(11, UPLOAD), (12, END)]
    store.restart_after(12)
    store.restart_after(12)
    assert store.append([CHECK_IN]) == 13


# -- answers and facts ---------------------------------------------------------------------------------


def test_answers_are_read_back_as_they_were_remembered(store):
    assert store.answer(3) is None
    first, second = answers("ann", [3]) + answers("bob", [4])
    store.remember([first, second])
    assert store.answer(3) == first
    assert store.answer(4) == second
    changed = replace(first, client="bob", digest=b"")
    store.remember([changed])
    assert store.answer(3) == changed
    store.remember([])
    assert store.answer(4) == second


def test_only_the_last_answers_of_each_client_are_kept(store):
    for start in range(0, 100, 10):
        store.remember(answers("ann", range(start, start + 10)))
    store.remember(answers("bob", [200]))
    kept = [trip for trip in range(300) if store.answer(trip) is not None]
    assert kept == [*range(100 - ANSWERS, 100), 200]


def test_a_fact_keeps_its_first_value_until_the_run_is_adopted(store):
    assert store.fact("run", "first") == "first"
    assert store.fact("run", "second") == "first"
    assert store.fact("other", "1") == "1"
    store.adopt("another run")
    assert store.fact("run", "third") == "another run"
    assert store.fact("other", "2") == "1"


# -- payloads ------------------------------------------------------------------------------------------


def names_of(store, count):
    """The names of so many payloads, each with its own values."""
    names = [store.write(trip, PAYLOAD + trip) for trip in range(count)]
    store.sync()
    return names


def is_stored(store, name, trip):
    try:
        return bool((store.read(name, 1000, digest(PAYLOAD + trip)) == PAYLOAD + trip).all())
    except StoreError:
        return False


def test_a_store_that_is_not_durable_keeps_no_payloads(kind, store):
    assert store.durable == (kind in ON_DISK)
    assert bool(store.write(0, PAYLOAD)) == store.durable
    assert [bool(name) for name in store.write_together([PAYLOAD, PAYLOAD])] == [store.durable] * 2
    for change in (store.sync, store.checkpoint, lambda: store.recycle([]), lambda: store.keep_only(set())):
        change()
    with pytest.raises(StoreError):
        store.read("unknown", 1000, digest(PAYLOAD))


@pytest.mark.parametrize("kind", ON_DISK, indirect=True)
def test_payloads_are_read_back_and_checked_against_size_and_digest(store):
    names = names_of(store, 3)
    assert len(set(names)) == 3
    for trip, name in enumerate(names):
        payload = store.read(name, 1000, digest(PAYLOAD + trip))
        assert payload.dtype == np.uint8
        assert payload.flags.writeable  # tensors share its memory
        assert (payload == PAYLOAD + trip).all()
    with pytest.raises(StoreError, match="not what was acknowledged"):
        store.read(names[0], 1000, digest(PAYLOAD + 1))
    with pytest.raises(StoreError, match="not what was acknowledged"):
        store.read(names[0], 999, digest(PAYLOAD))


@pytest.mark.parametrize("kind", ON_DISK, indirect=True)
def test_discarded_payloads_are_gone_and_the_others_stay(store):
    names = names_of(store, 4)
    store.discard(names[0])
    store.discard(names[0])
    store.discard("unknown")
    assert [is_stored(store, name, trip) for trip, name in enumerate(names)] == [False, True, True, True]
    store.keep_only({names[2]})
    assert [is_stored(store, name, trip) for trip, name in enumerate(names)] == [False, False, True, False]


@pytest.mark.parametrize("kind", ON_DISK, indirect=True)
def test_recycled_payloads_make_room_for_others_and_the_rest_stays(store):
    names = names_of(store, 4)
    store.recycle(names[:2])
    new = [store.write(trip, PAYLOAD + trip) for trip in range(10, 14)]
    assert len({*new, *names[2:]}) == 6
    assert all(is_stored(store, name, trip) for trip, name in enumerate(new, start=10))
    assert all(is_stored(store, names[trip], trip) for trip in (2, 3))
    store.recycle(new)  # so that there is a longer file to write into
    shorter = store.write(20, PAYLOAD[:10])
    assert (store.read(shorter, 10, digest(PAYLOAD[:10])) == PAYLOAD[:10]).all()


def together(store, trips):
    """The names of payloads that are written together, by trip."""
    names = store.write_together([PAYLOAD + trip for trip in trips])
    store.sync()
    return dict(zip(trips, names, strict=True))


@pytest.mark.parametrize("kind", ON_DISK, indirect=True)
def test_payloads_that_are_written_together_are_released_one_by_one(store):
    names = together(store, range(3)) | together(store, range(10, 12))
    assert len(set(names.values())) == 5
    assert all(is_stored(store, name, trip) for trip, name in names.items())
    with pytest.raises(StoreError, match="not what was acknowledged"):
        store.read(names[1], 999, digest(PAYLOAD + 1))
    for _ in range(3):  # as often as there are payloads: a second time changes nothing
        store.discard(names[0])
    store.recycle([names[1], names[10]])
    assert all(is_stored(store, names[trip], trip) for trip in (2, 11))
    store.recycle([names[2]])
    new = together(store, range(20, 24))  # in the space of the first three
    assert all(is_stored(store, name, trip) for trip, name in ({11: names[11]} | new).items())


@pytest.mark.parametrize("kind", ON_DISK, indirect=True)
def test_payloads_that_were_written_together_are_kept_for_each_other(store):
    """As after a restart: what is kept is released one by one, and the rest is gone with the last of it."""
    names, others = together(store, range(3)), together(store, range(5, 7))
    store.keep_only({names[0], names[2]})
    assert all(is_stored(store, names[trip], trip) for trip in (0, 2))
    assert not any(is_stored(store, name, trip) for trip, name in others.items())
    store.discard(names[2])
    assert is_stored(store, names[0], 0)
    store.discard(names[0])
    assert not any(is_stored(store, name, trip) for trip, name in names.items())


def test_a_payload_can_be_written_piece_by_piece(store):
    file = store.receive(3)
    for begin in range(0, 1000, 300):
        file.append(PAYLOAD[begin : begin + 300].tobytes())
    assert file.size == 1000
    assert bytes(file.mapping()) == PAYLOAD.tobytes()
    file.sync()
    store.sync()
    mapping, name = file.mapping(), file.name
    file.close()
    file.close()
    assert bytes(mapping) == PAYLOAD.tobytes()  # also after it was closed
    assert bool(name) == store.durable
    if store.durable:
        assert is_stored(store, name, 0)
        store.discard(name)
        assert not is_stored(store, name, 0)


def test_a_temporary_file_has_no_name_and_is_gone_when_it_is_closed(store, tmp_path):
    before = sorted(tmp_path.rglob("*"))
    file = store.temporary()
    file.append(b"old version")
    mapping = file.mapping()
    assert file.name == ""
    assert sorted(tmp_path.rglob("*")) == before
    file.close()
    assert bytes(mapping) == b"old version"


# -- threads -------------------------------------------------------------------------------------------


def test_methods_may_be_called_from_several_threads_at_once(store):
    """As a server does: it appends while another thread remembers answers and forgets entries."""
    positions, failures = [], []

    def appending():
        positions.extend(store.append([CHECK_IN, CHECK_IN]) for _ in range(150))

    def remembering():
        for trip in range(60):
            store.remember(answers("ann", [trip]))
            store.forget(min(trip, store.last))
            assert store.answer(trip).trip == trip

    def uploading():
        for trip in range(40):
            name = store.write(trip, PAYLOAD)
            store.sync()
            assert not name or is_stored(store, name, 0)

    def guarded(work):
        try:
            work()
        except BaseException as error:
            failures.append(error)

    works = [appending, appending, remembering, uploading, uploading]
    threads = [threading.Thread(target=guarded, args=[work]) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert sorted(positions) == list(range(2, 602, 2))
    assert store.last == 600
    assert [position for position, _ in store.entries(0)] == list(range(store.forgotten + 1, 601))


# -- crashes -------------------------------------------------------------------------------------------


def random_changes(seed, count):
    """Changes to a store, drawn at random; each takes the store and does the same to any of them."""
    print(f"seed {seed}")
    chance, last, forgotten = random.Random(seed), 0, 0
    yield lambda store: store.fact("run", "first")
    for number in range(count):
        what = chance.choice(["append", "append", "append", "remember", "forget", "restart", "adopt"])
        if what == "append":
            entries = [chance.choice([CHECK_IN, UPLOAD, END]) for _ in range(chance.randint(1, 4))]
            last += len(entries)
            yield lambda store, entries=entries: store.append(entries)
        elif what == "remember":
            client, start = chance.choice(["ann", "bob"]), chance.randrange(50)
            yield lambda store, c=client, s=start: store.remember(answers(c, range(s, s + 10)))
        elif what == "forget":
            forgotten = chance.randint(forgotten, last)
            yield lambda store, position=forgotten: store.forget(position)
        elif what == "restart":
            last = forgotten = last + chance.randint(0, 3)
            yield lambda store, position=last: store.restart_after(position)
        else:
            yield lambda store, run=f"run {number}": store.adopt(run)


@pytest.mark.parametrize("kind", ON_DISK, indirect=True)
def test_a_crash_between_any_two_writes_loses_nothing(kind, tmp_path):
    """After each change the files are copied; a store that opens the copy has all changes until then, and
    goes on like one that was never interrupted."""
    (tmp_path / "live").mkdir()
    reference = MemoryStore()
    with contextlib.closing(KINDS[kind](tmp_path / "live")) as live:
        for number, change in enumerate(random_changes(seed=1, count=40)):
            change(live)
            change(reference)
            with reopened(kind, tmp_path / "live", tmp_path / f"copy {number}") as found:
                assert contents(found) == contents(reference)
                assert found.append([CHECK_IN, END]) == reference.last + 2
            if number % 10 == 5:
                live.checkpoint()
        assert reference.last > 20
        assert contents(live) == contents(reference)


@pytest.mark.parametrize("kind", ON_DISK, indirect=True)
def test_payloads_survive_a_crash_and_those_without_an_entry_are_deleted(kind, tmp_path):
    (tmp_path / "live").mkdir()
    with contextlib.closing(KINDS[kind](tmp_path / "live")) as live:
        names = names_of(live, 3)
        live.append([replace(UPLOAD, trip=trip, file=name) for trip, name in enumerate(names[:2])])
        with reopened(kind, tmp_path / "live", tmp_path / "copy") as found:
            kept = {entry.file for _, entry in found.entries(0)}
            found.keep_only(kept)
            assert [is_stored(found, name, trip) for trip, name in enumerate(names)] == [True, True, False]
            new = found.write(2, PAYLOAD + 2)
            assert new not in kept
            assert is_stored(found, new, 2)


@pytest.mark.parametrize("kind", ON_DISK, indirect=True)
def test_a_closed_store_is_read_back_and_can_be_closed_again(kind, tmp_path):
    first = KINDS[kind](tmp_path)
    first.append([CHECK_IN, UPLOAD])
    first.remember(answers("ann", [7]))
    before = contents(first)
    first.close()
    first.close()
    with pytest.raises(StoreError):
        first.append([CHECK_IN])
    with contextlib.closing(KINDS[kind](tmp_path)) as again:
        assert contents(again) == before


# -- a second process ----------------------------------------------------------------------------------

PROCESS = """
import sys
from pathlib import Path
from test_store_contract import KINDS, UPLOAD
from tardigrad.service.store.contract import StoreError
try:
    store = KINDS[sys.argv[1]](Path(sys.argv[2]))
except StoreError as error:
    print("refused", error, flush=True)
    sys.exit()
print("open", store.append([UPLOAD]), flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def second_process(commands, kind, folder):
    """A process that opens the store, appends an entry, and keeps it open."""
    process = commands.start(kind, folder, program=PROCESS)
    try:
        yield process, process.stdout.readline().split(maxsplit=1)
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("kind", ON_DISK, indirect=True)
def test_a_store_that_is_open_cannot_be_opened_by_another_process(commands, kind, store, tmp_path):
    store.append([CHECK_IN])
    with second_process(commands, kind, tmp_path) as (_, said):
        assert said[0] == "refused"
        assert "in use by another server" in said[1]
    with pytest.raises(StoreError, match="in use by another server"):
        KINDS[kind](tmp_path)
    assert store.append([CHECK_IN]) == 2


@pytest.mark.parametrize("kind", ON_DISK, indirect=True)
def test_a_store_whose_process_was_killed_can_be_opened_again(commands, kind, tmp_path):
    with second_process(commands, kind, tmp_path) as (process, said):
        assert said == ["open", "1\n"]
        with pytest.raises(StoreError, match="in use by another server"):
            KINDS[kind](tmp_path)
        process.send_signal(signal.SIGKILL)
        process.wait()
        with contextlib.closing(KINDS[kind](tmp_path)) as again:
            assert again.entries(0) == [(1, UPLOAD)]


# -- disks that fail -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ON_DISK, indirect=True)
def test_on_a_full_disk_nothing_changes_until_there_is_space_again(kind, small_disk, tmp_path):
    filler = small_disk / "filler"
    entry = replace(UPLOAD, metrics="m" * 3000)
    with contextlib.closing(KINDS[kind](small_disk)) as store:
        store.fact("run", "first")
        store.append([CHECK_IN, UPLOAD])
        names = names_of(store, 2)
        left = os.statvfs(small_disk)
        filler.write_bytes(bytes(left.f_bavail * left.f_bsize))
        last, failed = store.last, []
        for _ in range(50):  # the first ones may fit into space that the files have already
            try:
                last = store.append([entry, entry])
            except StoreError as error:
                failed.append(error)
                assert store.last == last
        assert failed
        with pytest.raises(StoreError):
            store.remember(answers("a" * 50_000, range(20, 36)))
        with pytest.raises(StoreError):
            store.write(5, np.zeros(50_000, np.uint8))
        entries = store.entries(0)
        assert [position for position, _ in entries] == list(range(1, last + 1))
        assert store.answer(20) is None
        filler.unlink()
        assert store.append([END]) == last + 1
        assert is_stored(store, store.write(9, PAYLOAD + 9), 9)
        assert all(is_stored(store, name, trip) for trip, name in enumerate(names))
        with reopened(kind, small_disk, tmp_path / "copy") as found:
            assert found.entries(0) == [*entries, (last + 1, END)]
            assert contents(found) == contents(store)


@pytest.mark.parametrize("kind", ON_DISK, indirect=True)
def test_a_damaged_file_is_noticed(kind, tmp_path):
    """Either when the store is opened or when the entries are read, with an error for the user."""
    with contextlib.closing(KINDS[kind](tmp_path)) as store:
        for _ in range(200):
            store.append([UPLOAD, CHECK_IN])
    largest = max((file for file in tmp_path.iterdir() if file.is_file()), key=lambda f: f.stat().st_size)
    body = bytearray(largest.read_bytes())
    middle = len(body) // 2
    body[middle : middle + 5000] = b"\xff" * 5000
    largest.write_bytes(body)

    def read():
        with contextlib.closing(KINDS[kind](tmp_path)) as store:
            store.entries(0)

    for _ in range(2):  # a refusal does not keep it locked
        with pytest.raises(StoreError, match=r"damaged|malformed"):
            read()
    assert issubclass(StoreError, RunError)
