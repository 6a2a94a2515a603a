"""Private runs: without noise they equal runs without privacy; noise has the stated size and is drawn once;
runs end before the budget is exceeded."""

import itertools
import json
import multiprocessing
import random
import shutil
import stat
import time

import numpy as np
import pytest
import torch

import tardigrad as td
from event_records import read_records, records
from tardigrad.algorithms.algorithm import SumOnly
from tardigrad.algorithms.registry import BUILT_IN
from tardigrad.experiments.runs.private_run import Secrets
from tardigrad.experiments.runs.simulation_assembly import build
from tardigrad.privacy.blt import BLT
from tardigrad.privacy.clipping import AdaptiveClip
from tardigrad.privacy.independent import Independent
from tardigrad.privacy.keys import NoiseKeys
from tardigrad.privacy.settings import LocalPrivacy, Participation, PoissonSampling
from tardigrad.privacy.tree import Tree

POPULATION = 24


def data(population=POPULATION):
    random_ = np.random.default_rng(3)
    means = random_.normal(size=(3, 4))
    clients = {}
    for i in range(population):
        y = random_.integers(0, 3, 10)
        clients[i] = (torch.tensor(means[y] + random_.normal(size=(10, 4))).float(), torch.tensor(y))
    return clients


def module():
    torch.manual_seed(0)
    return torch.nn.Linear(4, 3)


def parts(steps=16, size=3, population=POPULATION, **settings):
    """A tiny run; `settings` change it."""
    common = {
        "buffer": td.Buffer(size=size, staleness_bound=5, once_per_client=True),
        "pace": td.Asynchronous(concurrency=9),
        "local": td.Local(batch_size=5, lr=0.1, steps=2),
        "stop": td.Stop(steps=steps),
        "evaluation": td.Evaluation(every_steps=1),
    }
    given = {"model": module(), "clients": data(population), "test": data(1)[0]}
    return given, td.Config(**(common | settings))


def run(privacy, workers=0, out=None, resume=False, **settings):
    given, config = parts(privacy=privacy, **settings)
    return td.run(config, **given, workers=workers, out=out, resume=resume)


def simulation(privacy, secrets=None, **settings):
    given, config = parts(privacy=privacy, **settings)
    return build(config, given["model"], given["clients"], given["test"], secrets=secrets)


def generous(steps=16, **settings):
    return Participation(
        participations=steps, separation=1, noise_multiplier=0.0, clip=1e6, noise_from="seed", **settings
    )


# -- no noise ------------------------------------------------------------------------------------------


def cases():
    for kind in BUILT_IN:
        name = kind.model_fields["kind"].default
        if not issubclass(kind, SumOnly):
            continue
        settings = {"algorithm": kind()}
        if kind.synchronous:
            settings |= {"pace": td.Synchronous(cohort=3, selected=4)}
        elif name == "defedavg":
            settings |= {"pace": td.Queued(concurrency=9)}
        elif name == "rennala":
            settings |= {"buffer": td.Buffer(size=3, once_per_client=True)}
        elif name == "sgd":
            settings |= {"pace": td.Asynchronous(concurrency=1), "size": 1, "population": 1}
        yield pytest.param(settings, id=name)
    for momentum in (td.EMA(), td.Nesterov(), td.Approximation(), td.LightApproximation()):
        yield pytest.param({"algorithm": td.FedBuff(momentum=momentum)}, id=momentum.kind)
    for kind in (td.MasFL, td.AdaMasFL):
        settings = {"algorithm": kind(first_pass=True), "pace": td.Asynchronous(concurrency=9)}
        yield pytest.param(settings, id=f"{kind.__name__}, first pass")


@pytest.mark.parametrize("settings", list(cases()))
def test_without_noise_and_with_a_clip_that_never_binds_it_is_the_run_without_privacy(settings):
    plain, private = run(None, **settings), run(generous(), **settings)
    assert private.model_sha256 == plain.model_sha256
    assert private.history == plain.history
    assert (private.steps, private.epsilon) == (16, None)


@pytest.mark.parametrize("noise", [Tree(), Independent()], ids=repr)
def test_without_noise_the_kind_and_workers_do_not_matter(noise):
    plain = run(None)
    assert run(generous(noise=noise), workers=2).model_sha256 == plain.model_sha256
    binding = generous(noise=noise).model_copy(update={"clip": 0.01})
    assert run(binding).model_sha256 != plain.model_sha256


# -- noise -------------------------------------------------------------------------------------------


def private(**settings):
    defaults = {"participations": 4, "separation": 4, "noise_multiplier": 0.3, "clip": 0.5}
    return Participation(**(defaults | settings))


def events_of(result_folder):
    return list(read_records(result_folder / "events.jsonl"))


def test_noise_from_the_seed_has_the_same_bits_with_one_process_and_two(tmp_path):
    privacy = private(noise_from="seed", adaptive=AdaptiveClip())
    one, two = run(privacy, out=tmp_path / "1"), run(privacy, out=tmp_path / "2", workers=2)
    assert one.model_sha256 == two.model_sha256
    assert (tmp_path / "1/events.jsonl").read_bytes() == (tmp_path / "2/events.jsonl").read_bytes()
    assert run(private(noise_from="seed")).model_sha256 == run(private(noise_from="seed")).model_sha256
    assert run(private()).model_sha256 != run(private()).model_sha256, "the system's cannot be repeated"
    steps = [event for event in events_of(tmp_path / "1") if event["event"] == "step"]
    assert all(event["training_loss"] is None for event in steps), "nobody gave it noise"


WAYS = {
    "blt": private(),
    "tree": private(noise=Tree()),
    "independent": private(noise=Independent(), adaptive=AdaptiveClip()),
    "local": LocalPrivacy(participations=16, noise_multiplier=0.3, clip=0.5),
}


@pytest.mark.parametrize("way", WAYS)
def test_resumed_run_repeats_steps_with_the_same_noise(tmp_path, way):
    file = tmp_path / "noise.keys"

    def alive():
        return simulation(WAYS[way], Secrets(NoiseKeys(file)))

    first = alive()
    released = []
    for position, events in enumerate(records(first.engine.run())):
        released += events
        if position == 30:
            before = len(released)
            tensors, document = first.engine.snapshot()
            tensors = {name: tensor.clone() for name, tensor in tensors.items()}
            document = json.loads(json.dumps(document))
            first.secrets.noise.forget()
        if position == 60:
            break  # here it dies
    assert sum(event["event"] == "evaluation" for event in released[before:]) > 2
    second = alive()
    second.engine.restore(tensors, document)
    again = []
    for position, events in enumerate(records(second.engine.run())):
        again += events
        if position == 10:  # a snapshot of a run that has not come as far as the dead one
            second.secrets.noise.forget()
            assert file.exists()
    assert again[: len(released) - before] == released[before:]
    second.secrets.noise.forget()
    assert not file.exists()
    third = alive()  # if the keys were lost
    third.engine.restore(tensors, document)
    assert [event for events in records(third.engine.run()) for event in events] != again


CONFIG = """
seed = 2
local = { lr = 0.05, batch_size = 16 }
stop = { steps = 90 }
evaluation = { every_steps = 1, examples = 50 }
pace = { kind = "asynchronous", concurrency = 20 }
buffer = { size = 4 }
privacy = { kind = "participation", participations = 10, separation = 12, noise_multiplier = 0.5 }
"""


class HoldAt:
    """Waits, when the record is so long, until the process is killed."""

    def __init__(self, file, size):
        self.file, self.size = file, size

    def begin(self, config, history):
        pass

    def see(self, events):
        while self.file.stat().st_size > self.size:
            time.sleep(1)

    def end(self):
        pass


def test_run_killed_at_random_moments_never_changes_the_noise_of_a_step(tmp_path):
    file, out = tmp_path / "config.toml", tmp_path / "run"
    file.write_text(CONFIG)
    config = td.load_config(file)
    moments = random.Random(4)
    seen = {}
    events, keys = out / "events.jsonl", out / "noise.keys"
    past_the_snapshot = 0
    for kill in range(2):
        process = multiprocessing.get_context("fork").Process(
            target=td.run,
            args=(config,),
            kwargs={
                "out": out,
                "resume": kill > 0,
                "snapshot_seconds": 0.2 if kill else 1e6,
                "observers": (HoldAt(events, 90_000),),
            },
        )
        process.start()
        enough = 25_000 * (kill + 1)  # of 110,000 bytes
        while process.is_alive() and not (events.exists() and events.stat().st_size > enough):
            time.sleep(0.005)
        time.sleep(moments.uniform(0.0, 0.1))
        assert process.is_alive(), "it was through before it could be killed"
        process.kill()
        process.join()
        for event in read_records(events):
            if event["event"] in ("evaluation", "step"):
                told = seen.setdefault((event["event"], event["version"]), event)
                assert told == event
        if keys.exists():
            past_the_snapshot += len(keys.read_bytes().splitlines())
            assert stat.S_IMODE(keys.stat().st_mode) == 0o600
            if kill == 0:
                damaged = tmp_path / "damaged"
                shutil.copytree(out, damaged)
                with (damaged / "noise.keys").open("ab") as more:
                    more.write(b"7 nothing\n")
                with pytest.raises(td.RunError, match="damaged; going on would add noise twice"):
                    td.run(config, out=damaged, resume=True, moved=True)
    assert past_the_snapshot > 0, "no step had to be made again: this shows nothing"
    result = td.run(config, out=out, resume=True)
    assert result.steps == 90
    assert not keys.exists()
    finally_told = {(e["event"], e.get("version")): e for e in read_records(events)}
    assert len(seen) > 20
    assert all(finally_told[key] == event for key, event in seen.items())
    check_limits(events, 10, 12)


def check_limits(events, participations, separation):
    by_client = {}
    for event in read_records(events):
        if event["event"] == "upload" and event["accepted"]:
            by_client.setdefault(event["client"], []).append(event["step"])
    assert max(len(steps) for steps in by_client.values()) > 1
    for steps in by_client.values():
        assert len(steps) <= participations
        assert all(later - earlier >= separation for earlier, later in itertools.pairwise(steps))


@pytest.mark.parametrize("noise", [BLT(), Tree(), Independent()], ids=lambda noise: noise.kind)
def test_run_ends_before_the_step_that_exceeds_the_budget(tmp_path, noise):
    privacy = private(noise=noise, noise_multiplier=2.0, noise_from="seed")
    whole = simulation(privacy).guarantee
    budget = (whole.epsilon(9) + whole.epsilon(8)) / 2 if noise.kind != "tree" else whole.epsilon(8)
    limited = privacy.model_copy(update={"epsilon": budget})
    result = run(limited, out=tmp_path / "run")
    assert result.stopped_by == "privacy budget"
    guarantee = simulation(limited).guarantee
    told = [event["epsilon"] for event in events_of(tmp_path / "run") if event["event"] == "step"]
    assert told == [guarantee.spent(after) for after in range(1, result.steps + 1)]
    assert told == sorted(told)
    assert 0 < told[0] <= told[-1] <= budget < guarantee.spent(result.steps + 1)
    assert result.epsilon == told[-1]
    check_limits(tmp_path / "run/events.jsonl", 4, 4)
    enough = run(privacy.model_copy(update={"epsilon": whole.epsilon() + 1e-9}))
    assert (enough.stopped_by, enough.steps) == ("steps", 16)


def test_noise_is_chosen_for_the_budget():
    result = run(Participation(participations=4, separation=4, epsilon=3.0))
    assert result.epsilon == pytest.approx(3.0)
    sampled = PoissonSampling(epsilon=3.0, noise_from="seed")
    poisson = run(sampled, pace=td.Poisson(probability=0.1), buffer=td.Buffer())
    assert poisson.epsilon == pytest.approx(3.0, rel=1e-4)
    assert poisson.epsilon <= 3.0


# -- local -------------------------------------------------------------------------------------------

INDIVIDUAL = {
    "fedasync": {"algorithm": td.FedAsync(), "size": 1},
    "fedac": {"algorithm": td.FedAC(), "size": 3},
}


@pytest.mark.parametrize("kind", INDIVIDUAL)
def test_algorithms_with_individual_uploads_need_local_privacy(kind):
    for privacy in (private(), PoissonSampling(epsilon=2.0, sampling_rate=0.1)):
        with pytest.raises(td.ConfigError, match=rf"privacy.kind: {kind} looks at every upload .*'local'"):
            run(privacy, **INDIVIDUAL[kind])
    result = run(LocalPrivacy(noise_multiplier=5.0, participations=4), **INDIVIDUAL[kind])
    assert result.steps == 16
    mode, dimension = Independent(), {"fedasync": 15, "fedac": 30}[kind]
    assert result.epsilon == pytest.approx(
        private(noise=mode, noise_multiplier=5.0, separation=1).guarantee(
            16, POPULATION, td.Asynchronous(), td.Buffer(size=3), dimension
        ).epsilon(),
        rel=1e-12,
    )  # fmt: skip


def test_local_privacy_without_noise_and_without_clipping_changes_nothing():
    for settings in INDIVIDUAL.values():
        privacy = LocalPrivacy(noise_multiplier=0.0, clip=1e6, participations=16)
        assert run(privacy, **settings).model_sha256 == run(None, **settings).model_sha256


# -- Poisson -----------------------------------------------------------------------------------------


def poisson_noise(steps=200, probability=0.05, **settings):
    """The steps of the model, whether anybody joined, and the promise: clients upload next to nothing."""
    privacy = PoissonSampling(noise_multiplier=0.8, clip=0.5, noise_from="seed", **settings)
    one = simulation(
        privacy, steps=steps, pace=td.Poisson(probability=probability), buffer=td.Buffer(),
        algorithm=td.FedBuff(), local=td.Local(lr=1e-9), evaluation=td.Evaluation(every_steps=1000),
    )  # fmt: skip
    models, joined, count = [one.model.clone()], [], 0
    for events in records(one.engine.run()):
        for event in events:
            count += event["event"] == "upload"
            if event["event"] == "step":
                models.append(one.model.clone())
                joined.append(count)
                count = 0
    return torch.stack(models).diff(dim=0), np.array(joined), one.guarantee


def test_every_poisson_step_gets_noise_also_if_nobody_joined():
    moves, joined, guarantee = poisson_noise()
    assert (joined == 0).sum() > 30
    assert (joined > 1).sum() > 30
    assert guarantee.divisor == pytest.approx(0.05 * POPULATION)
    expected = 0.8 * 0.5 / (0.05 * POPULATION)
    for how_many in (joined == 0, joined == 1, joined > 1):  # not by the number that joined
        assert float(moves[how_many].std()) == pytest.approx(expected, rel=0.1)


def test_the_noise_of_an_emulated_cohort_is_that_of_its_mean():
    moves, _, guarantee = poisson_noise(emulated_cohort=12)
    assert guarantee.emulated == pytest.approx(0.1)
    assert float(moves.std()) == pytest.approx(0.8 * 0.5 / 12, rel=0.03)


# -- private versions ----------------------------------------------------------------------------------

MOMENTA = [td.Approximation(beta=0.5), td.LightApproximation(beta=0.5)]


@pytest.mark.parametrize("momentum", MOMENTA, ids=lambda momentum: momentum.kind)
def test_without_noise_private_versions_are_the_true_ones(momentum):
    settings = {"algorithm": td.FedBuff(momentum=momentum, lr=0.5)}
    public = run(generous(), **settings).model
    hidden = run(generous(versions="private"), **settings).model
    for name in public:
        torch.testing.assert_close(hidden[name], public[name], rtol=1e-4, atol=1e-5)


def test_private_versions_with_a_staleness_bound_of_zero():
    settings = {"buffer": td.Buffer(size=3, staleness_bound=0), "pace": td.Asynchronous(concurrency=3)}
    settings |= {"algorithm": td.FedBuff(momentum=td.Approximation()), "delay": td.ConstantDelay()}
    assert run(private(versions="private"), **settings).steps == 16


def test_finished_run_leaves_no_keys_or_snapshots(tmp_path):
    out = tmp_path / "run"
    privacy = {"kind": "participation", "epsilon": 8.0, "participations": 2, "separation": 2}
    result = run(privacy, out=out)
    assert result.epsilon > 0
    assert not (out / "noise.keys").exists()
    assert not (out / "snapshot.safetensors").exists()
    (out / "noise.keys").write_text("0 " + "00" * 32 + "\n")  # as if it was killed at the very end
    assert run(privacy, out=out, resume=True).model_sha256 == result.model_sha256
    assert not (out / "noise.keys").exists()
