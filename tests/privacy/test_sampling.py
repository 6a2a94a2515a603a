"""Poisson sampling: clients are drawn from a secret key of the run, and the same ones after a kill."""

import multiprocessing
import os
import shutil
import stat

import numpy as np
import pytest
import torch

import tardigrad as td
from event_records import read_records
from observers import InterruptAfter
from tardigrad.core.bookkeeping import Bookkeeping
from tardigrad.core.draws import key
from tardigrad.core.events import UploadReceived
from tardigrad.experiments.forecast.forecast import forecast
from tardigrad.privacy.sampling import SamplingKey
from tardigrad.privacy.settings import PoissonSampling
from tardigrad.simulation.starts import PoissonJoining

POPULATION, PROBABILITY = 40, 0.15


def fixed_key(tmp_path, byte=7):
    file = tmp_path / "fixed.key"
    file.write_text(bytes([byte] * 32).hex() + "\n")
    return SamplingKey(file)


def joining(probability, population=POPULATION, bits=None):
    pace = td.Poisson(probability=probability)
    return PoissonJoining(Bookkeeping(pace, td.Buffer()), population, 5, pace, bits)


# -- the draws -----------------------------------------------------------------------------------------


def test_everybody_joins_independently_with_the_same_probability(tmp_path):
    draws, q = 4000, 0.3
    starts = joining(q, bits=fixed_key(tmp_path).bits)
    joined = np.zeros((draws, POPULATION))
    for asked in range(draws):
        joined[asked, starts._joining(asked)] = 1
    error = np.sqrt(q * (1 - q) / draws)
    assert np.abs(joined.mean(axis=0) - q).max() < 4 * error
    correlation = np.corrcoef(joined.T) - np.eye(POPULATION)
    assert np.abs(correlation).max() < 5 / np.sqrt(draws)
    counts = joined.sum(axis=1)
    assert counts.mean() == pytest.approx(POPULATION * q, rel=0.01)
    assert counts.var() == pytest.approx(POPULATION * q * (1 - q), rel=0.08)
    assert abs(np.corrcoef(counts[:-1], counts[1:])[0, 1]) < 4 / np.sqrt(draws)


def test_sampling_probabilities_zero_and_one_are_exact():
    everybody = np.full(POPULATION, 2**64 - 1, dtype=np.uint64)
    assert joining(1.0, bits=lambda asked, count: everybody)._joining(0) == list(range(POPULATION))
    half = np.array([2**63 - 1, 2**63], dtype=np.uint64)
    assert joining(0.5, 2, bits=lambda asked, count: half)._joining(0) == [0]


def test_draw_is_the_output_of_the_cipher(tmp_path):
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    cipher = Cipher(algorithms.AES(bytes([7] * 32)), modes.CTR((9).to_bytes(8) + bytes(8)))
    expected = np.frombuffer(cipher.encryptor().update(bytes(8 * 5)), dtype=np.uint64)
    assert fixed_key(tmp_path).bits(9, 5).tolist() == expected.tolist()


def test_without_a_key_clients_are_drawn_from_the_seed():
    for asked in range(5):
        random = np.random.default_rng(key(5, "join", asked))
        count = int(random.binomial(POPULATION, PROBABILITY))
        expected = random.choice(POPULATION, size=count, replace=False).tolist()
        assert joining(PROBABILITY)._joining(asked) == expected


# -- runs ----------------------------------------------------------------------------------------------


def parts(steps=30, **settings):
    generator = torch.Generator().manual_seed(1)
    clients = {
        i: (torch.randn(4, 3, generator=generator), torch.tensor([0, 1, 0, 1])) for i in range(POPULATION)
    }
    torch.manual_seed(0)
    config = td.Config(
        privacy=PoissonSampling(noise_multiplier=1.0, clip=0.5, **settings), stop=td.Stop(steps=steps),
        pace=td.Poisson(probability=PROBABILITY), evaluation=td.Evaluation(every_steps=1),
    )  # fmt: skip
    return {"config": config, "model": torch.nn.Linear(3, 2), "clients": clients, "test": clients[0]}


def who_joined(folder):
    return [(e["client"], e["step"]) for e in read_records(folder / "events.jsonl") if e["event"] == "upload"]


class Look(InterruptAfter):
    """Sees the key before anything happens."""

    def __init__(self, file):
        super().__init__(10**9)
        self.file, self.mode, self.first = file, None, b""

    def begin(self, config, history):
        self.mode = stat.S_IMODE(self.file.stat().st_mode)
        self.first = self.file.read_bytes()

    def see(self, events):
        assert self.file.read_bytes() == self.first


def test_the_key_is_on_disk_before_the_first_draw_and_gone_after_the_last(tmp_path):
    file = tmp_path / "run/sampling.key"
    look = Look(file)
    td.run(**parts(), out=tmp_path / "run", observers=(look,))
    assert look.mode == 0o600
    assert len(bytes.fromhex(look.first.decode())) == 32
    assert not file.exists()


def test_the_seed_does_not_reveal_who_joined(tmp_path):
    for name in ("a", "b"):
        td.run(**parts(), out=tmp_path / name)
        td.run(**parts(noise_from="seed"), out=tmp_path / f"seed {name}")
    assert who_joined(tmp_path / "a") != who_joined(tmp_path / "b")
    assert who_joined(tmp_path / "seed a") == who_joined(tmp_path / "seed b")
    assert who_joined(tmp_path / "a") != who_joined(tmp_path / "seed a")


class Die:
    """Writes down what is told, and dies after so many commits as if killed."""

    def __init__(self, commits, file):
        self.left, self.file = commits, file

    def begin(self, config, history):
        pass

    def see(self, events):
        with self.file.open("a") as told:
            told.writelines(f"{e.client} {e.step}\n" for e in events if isinstance(e, UploadReceived))
        self.left -= 1
        if self.left == 0:
            os._exit(1)

    def end(self):
        pass


@pytest.mark.parametrize("snapshot_seconds", [1e6, 0.0], ids=["before any snapshot", "after snapshots"])
def test_killed_and_resumed_the_same_clients_join(tmp_path, snapshot_seconds):
    options = {"out": tmp_path / "run", "observers": (Die(150, tmp_path / "told"),)}
    process = multiprocessing.get_context("fork").Process(
        target=td.run, kwargs=parts() | options | {"snapshot_seconds": snapshot_seconds}
    )
    process.start()
    process.join()
    assert process.exitcode == 1
    told = [tuple(map(int, line.split())) for line in (tmp_path / "told").read_text().splitlines()]
    assert len(told) > 50
    assert (tmp_path / "run/snapshot.safetensors").exists() == (snapshot_seconds == 0.0)
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    for name, workers in (("run", 0), ("copy", 2)):
        assert (
            td.run(**parts(), out=tmp_path / name, resume=True, workers=workers, moved=name != "run").steps
            == 30
        )
        assert not (tmp_path / name / "sampling.key").exists()
    joined = who_joined(tmp_path / "run")
    assert joined[: len(told)] == told
    assert len(joined) > len(told)
    assert joined == who_joined(tmp_path / "copy")


def test_missing_or_damaged_key_is_an_error(tmp_path):
    out = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        td.run(**parts(), out=out, observers=(InterruptAfter(60),))
    whole = (out / "sampling.key").read_bytes()
    for text in (b"", whole[:-9], b"nothing\n", b"\xff\xfe"):
        (out / "sampling.key").write_bytes(text)
        with pytest.raises(td.RunError, match=r"sampling\.key is damaged; .* start a new run"):
            td.run(**parts(), out=out, resume=True)
    (out / "sampling.key").unlink()
    with pytest.raises(td.RunError, match=r"sampling\.key is gone; .* start a new run"):
        td.run(**parts(), out=out, resume=True)
    (out / "sampling.key").write_bytes(whole)
    assert td.run(**parts(), out=out, resume=True).steps == 30


def test_runs_that_are_not_sampled_have_no_key(tmp_path):
    seen = []

    class Listing(InterruptAfter):
        def begin(self, config, history):
            seen.append((tmp_path / "run/sampling.key").exists())

    td.run(**parts(noise_from="seed"), out=tmp_path / "run", observers=(Listing(10**9),))
    assert seen == [False]


def test_a_forecast_needs_no_key():
    config = td.Config(
        privacy=PoissonSampling(noise_multiplier=1.0), pace=td.Poisson(probability=PROBABILITY),
        stop=td.Stop(steps=30), data={"kind": "synthetic", "clients": POPULATION},
    )  # fmt: skip
    assert forecast(config, trips=100) == forecast(config, trips=100)
