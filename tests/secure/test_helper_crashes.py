"""A helper that crashes before or after any write to its disk goes on as if it had not."""

import os
from contextlib import contextmanager

import numpy as np
from blake3 import blake3
from secure_world import World

import tardigrad as td
from tardigrad.core.participation import Limits
from tardigrad.privacy.releases import digest_of
from tardigrad.secure.helper_database import HelperDatabase
from tardigrad.secure.policy import HelperNoise

NOISE = HelperNoise(
    mechanism=td.Tree(), deviation=50_000.0, steps=4, allowed=4, noise_multiplier=1.0, epsilon=1e6, delta=1e-5
)  # fmt: skip


class CrashError(BaseException):
    """The process ends here."""


class Moments:
    """Counts the moments before and after each write, and crashes at one of them."""

    def __init__(self, monkeypatch):
        self.count, self.crash_at = 0, -1
        synced, committed = os.fsync, HelperDatabase.transaction

        def fsync(descriptor):
            self.pass_by()
            synced(descriptor)
            self.pass_by()

        @contextmanager
        def transaction(database):
            with committed(database):
                yield
                self.pass_by()  # everything is rolled back
            self.pass_by()

        monkeypatch.setattr(os, "fsync", fsync)
        monkeypatch.setattr(HelperDatabase, "transaction", transaction)

    def pass_by(self):
        self.count += 1
        if self.count == self.crash_at:
            raise CrashError


class CrashingHelper:
    """A helper that is opened again after a crash, and asked the same again."""

    def __init__(self, world, folder):
        self.world, self.folder, self.state, self.crashed = world, folder, None, False
        self.state = self._survive(lambda: world.reopened(folder)) or self.state

    def _survive(self, call):
        try:
            return call()
        except CrashError:
            self.crashed = True
            if self.state is not None:
                self.state.__exit__()
            self.state = self.world.reopened(self.folder)
            return None

    def ask(self, call):
        """The answer of the helper; if it crashed, what it says when it is asked again."""
        answer = self._survive(lambda: call(self.state))
        return call(self.state) if answer is None else answer


def whole_run(world, folder, moments):
    """Two batches, and one that is abandoned between them. Return the noise of both."""
    helper = CrashingHelper(world, folder)
    last = helper.ask(lambda state: state.begin(world.policy.to_bytes(), world.version(0)))
    noises = []
    for version, starts in enumerate(([0, 0, 0], [0, 0, 1], [2, 2, 2])):
        offers = [
            world.offer([helper.state], name, start) for name, start in zip(("ann", "bob", "eve"), starts)
        ]
        places = helper.ask(lambda state, these=offers: state.admit(these))
        assert [one.place for one in places] == [0, 1, 2]
        trips = [one.trip for one in offers]
        batch, hidden = version + 1, world.masked_sum(version + 1, trips)
        if version == 1:
            signed = helper.ask(lambda state: state.abandon(2))
            world.models[2] = world.models[1]
        else:
            request = batch, blake3(hidden.tobytes()).digest()
            release = helper.ask(lambda state, request=request: state.close(*request))
            assert np.array_equal(helper.state.close(*request), release)
            total = hidden - release
            new = world.stepped(version, total, 3)
            asked = batch, digest_of(new), total, new
            signed = helper.ask(lambda state, asked=asked: state.publish(*asked))
            noises.append(total.view(np.int32) - world.code_sum(batch, trips))
        assert signed.receipt.follows(last.receipt)
        last = signed
    helper.state.__exit__()
    moments.crash_at = -1
    with world.reopened(folder) as state:
        assert state.receipt == last
        assert [file.name for file in (folder / "values").iterdir() if "release" in file.name] == []
    return noises, helper.crashed


def test_helper_that_crashes_at_any_write_goes_on(tmp_path, monkeypatch):
    moments = Moments(monkeypatch)
    limits = {"norm": 100.0, "limits": Limits(4, 1), "staleness": td.Exponential(a=5.0)}
    for crash_at in range(1, 1000):
        moments.count, moments.crash_at = 0, crash_at
        noises, crashed = whole_run(World(noise=NOISE, **limits), tmp_path / str(crash_at), moments)
        assert not np.array_equal(*noises)
        if not crashed:
            break
    assert 40 < crash_at < 200
