"""The engine: same bits twice, after an interruption, and with trips trained far ahead in any order."""

import functools
import json
from typing import Literal

import numpy as np
import pytest
import torch
from problem import Quadratic, SquaredError

import tardigrad as td
from event_records import records
from tardigrad.core.outcomes import Accepted
from tardigrad.core.snapshot import digest, read_snapshot, write_snapshot
from tardigrad.core.upload import Upload
from tardigrad.experiments.runs.simulation_assembly import build
from tardigrad.simulation.executors.inline import Inline

CLIENTS, SIZE, TRIPS = 20, 4, 45
_random = np.random.default_rng(3)
DATA = {
    f"client {i}": (_random.normal(size=(3 + i % 5, SIZE)), _random.normal(size=3 + i % 5) + i / 10)
    for i in range(CLIENTS)
}
TEST = (_random.normal(size=(10, SIZE)), _random.normal(size=10))


class CountingRule(td.Rule):
    """Uploads its delta times the number of its trip, which it remembers."""

    def finish(self, end, steps, path):
        count = self.memory.get("count", torch.zeros(1)) + 1
        self.memory = {"count": count}
        return {"delta": (self.start - end) * count, "count": count}


class Counting(td.SumOnly):
    """An algorithm with memory, numbers in its state, two vectors in its broadcast, and maybe an opening."""

    kind: Literal["counting"] = "counting"
    remembers = True
    everybody_first: bool = False

    @property
    def opening(self):
        return self.everybody_first

    def start(self, model, situation):
        return {"model": model, "counts": [], "last": torch.zeros(1)}

    def broadcast(self, state):
        return {"model": state["model"], "last": state["last"]}

    def rule(self, task, memory, lr):
        return CountingRule(task, memory, lr)

    def step(self, state, buffer):
        state["model"] = state["model"] - 0.3 * buffer.mean()
        state["last"] = buffer.mean("count")
        state["counts"] = [*state["counts"][-3:], float(buffer.sums["count"])]
        return {"count": float(state["last"])}


class Pulling(td.Individual):
    """Needs every upload and the model that it started from."""

    kind: Literal["pulling"] = "pulling"

    def step(self, state, buffer, version):
        moves = [r.upload.vectors["delta"] + 0.1 * (state["model"] - r.start) for r in buffer]
        state["model"] = state["model"] - 0.3 * sum(moves) / len(moves)
        return {}


ASYNC = td.Asynchronous(concurrency=6)
CASES = {
    "asynchronous": {"algorithm": td.FedBuff(momentum=td.EMA()), "pace": ASYNC},
    "adam": {"algorithm": td.FedBuff(lr=0.05, preconditioner=td.Adam()), "pace": ASYNC},
    "over-selection": {"algorithm": td.FedAvg(), "pace": td.Synchronous(cohort=3, selected=5)},
    "fedasync": {"algorithm": td.FedAsync(), "pace": ASYNC, "buffer": td.Buffer()},
    "individual uploads": {"algorithm": Pulling(), "pace": ASYNC},
    "give up": {
        "algorithm": td.FedBuff(), "pace": ASYNC, "delay": td.HalfNormal(give_up=0.3, device_spread=0.5),
    },
    "model average": {
        "algorithm": td.FedBuff(), "pace": ASYNC,
        "evaluation": td.Evaluation(every_trips=5, model_average=0.9),
    },
    "all limits": {
        "algorithm": td.FedBuff(), "pace": ASYNC,
        "buffer": td.Buffer(size=3, staleness_bound=1, once_per_client=True, weights="examples"),
    },
    "arrivals": {
        "algorithm": td.FedBuff(),
        "pace": td.Arrivals(rate=8.0, process="poisson", concurrency=5),
    },
    "poisson, empty steps": {
        "algorithm": td.FedAvg(), "pace": td.Poisson(probability=0.05), "buffer": td.Buffer(),
        "delay": td.HalfNormal(give_up=0.1),
    },
    "poisson, stale": {"algorithm": td.FedBuff(), "pace": td.Poisson(probability=0.2)},
    "sampled staleness": {"algorithm": td.FedBuff(), "pace": td.SampledStaleness(maximum=3)},
    "queued": {"algorithm": td.FedBuff(), "pace": td.Queued(concurrency=4)},
    "script": {
        "algorithm": td.FedBuff(),
        "pace": td.Scripted(trips=tuple((0.1 * n, 0.1 + n % 7 / 5, n % 20) for n in range(60))),
    },
    "memory": {"algorithm": Counting(), "pace": ASYNC, "delay": td.HalfNormal(give_up=0.1)},
    "memory, stale refused": {
        "algorithm": Counting(), "pace": ASYNC, "buffer": td.Buffer(size=2, staleness_bound=1),
    },
    "memory, queued": {"algorithm": Counting(), "pace": td.Queued(concurrency=4)},
    "memory, opening": {"algorithm": Counting(everybody_first=True), "pace": ASYNC},
}  # fmt: skip


class AtOnce(Inline):
    """Trains a trip as soon as it is submitted, with many planned ahead."""

    ahead = 50

    def __init__(self, trainer, clients):
        super().__init__(trainer, clients)
        self.done = {}
        self.most = 0

    def submit(self, job):
        super().submit(job)
        self.train([job.task.trip])

    def train(self, trips):
        for trip in trips:
            self.done[trip] = super().result(trip)
        self.most = max(self.most, len(self.done))

    def result(self, trip):
        return self.done.pop(trip)


class Reversed(AtOnce):
    """Trains all that is there, the last first, when a result is asked for that is not."""

    def submit(self, job):
        Inline.submit(self, job)

    def order(self):
        return list(reversed(self._jobs))

    def result(self, trip):
        if trip not in self.done:
            self.train(self.order())
        return self.done.pop(trip)


class Shuffled(Reversed):
    """The same in a random order."""

    def order(self):
        return np.random.default_rng(len(self._jobs)).permutation(list(self._jobs)).tolist()


class Strict(Shuffled):
    """Holds to the letter of the contract: a version is gone once it is withdrawn, an upload once the next
    is asked for."""

    def __init__(self, trainer, clients):
        super().__init__(trainer, clients)
        self.published = {}
        self.last = {}

    def publish(self, version, vectors):
        assert version not in self.published
        self.published[version] = {name: vector.clone() for name, vector in vectors.items()}
        return self.published[version]

    def withdraw(self, version):
        self.spoil(self.published.pop(version))

    def result(self, trip):
        self.spoil(self.last)
        upload, memory = super().result(trip)
        self.last = upload.vectors
        return upload, {name: vector.clone() for name, vector in memory.items()}

    def spoil(self, vectors):
        for vector in vectors.values():
            vector.fill_(float("nan"))


def make(case, executor=None, seed=0, **settings):
    """A simulation, with another executor if asked."""
    options = {
        "buffer": td.Buffer(size=3) if "Synchronous" not in repr(CASES[case]["pace"]) else td.Buffer(),
        "local": td.Local(epochs=1, batch_size=4, lr=0.02),
        "stop": td.Stop(trips=TRIPS),
        "evaluation": td.Evaluation(every_steps=4),
        "seed": seed,
    }
    config = td.Config(**(options | CASES[case] | settings))
    start = torch.linspace(-1, 1, SIZE)
    simulation = build(config, model=Quadratic(start), clients=DATA, test=TEST, head=SquaredError())
    if executor is not None:
        inline, engine = simulation.executor, simulation.engine
        simulation.executor = executor(inline._trainer, inline._clients)
        for part in (engine, engine._versions, engine._submissions):
            part._executor = simulation.executor
        for version, vectors in engine._versions.items():
            engine._versions.publish(version, vectors)
    return simulation


@functools.cache
def uninterrupted(case):
    """What a case comes to with the inline executor."""
    return finish(make(case))


def finish(simulation):
    """All events to the end, and a fingerprint of the whole state."""
    events = [event for events in records(simulation.engine.run()) for event in events]
    return events, fingerprint(simulation)


def fingerprint(simulation):
    """All that is left at the end: the state to the bit, and what was counted."""
    state, engine = simulation.aggregator.state, simulation.engine
    tensors = {name: value for name, value in state.items() if isinstance(value, torch.Tensor)}
    numbers = {name: value for name, value in state.items() if name not in tensors}
    counted = [
        engine.version,
        engine.trips,
        engine.time,
        engine.given_up,
        dict(engine.refused),
        engine.metrics,
    ]
    return digest(tensors), numbers, counted


def frozen(snapshot):
    """A snapshot as it would come back from disk: nothing in it is anybody else's."""
    tensors, document = snapshot
    return {name: t.clone() for name, t in tensors.items()}, json.loads(json.dumps(document))


def interrupted(simulation, commits):
    """A snapshot after so many commits, and how many events there were before."""
    seen = 0
    for number, events in enumerate(records(simulation.engine.run())):
        seen += len(events)
        if number == commits:
            return seen, frozen(simulation.engine.snapshot())
    raise AssertionError("the run was over before")


# -- same config and seed: same bits ------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
def test_same_seed_gives_the_same_events_and_bits(case):
    events, bits = uninterrupted(case)
    np.random.seed(7)  # noqa: NPY002
    torch.manual_seed(7)
    before = torch.get_rng_state()
    assert finish(make(case)) == (events, bits)
    assert torch.equal(torch.get_rng_state(), before)
    assert sum(e["event"] == "upload" for e in events) == TRIPS
    assert sum(e["event"] == "step" for e in events) >= 5


@pytest.mark.parametrize("case", CASES)
def test_another_seed_gives_other_bits(case):
    assert finish(make(case, seed=1))[1] != uninterrupted(case)[1]


def test_cases_contain_what_their_names_say():
    def events(case, kind):
        return [event for event in uninterrupted(case)[0] if event["event"] == kind]

    assert events("give up", "give_up")
    assert "too stale" in {e["reason"] for e in events("all limits", "upload")}
    assert "too stale" in {e["reason"] for e in events("memory, stale refused", "upload")}
    assert "round closed" in {e["reason"] for e in events("over-selection", "upload")}
    assert events("arrivals", "turned_away")
    assert any(e["training_loss"] is None for e in events("poisson, empty steps", "step"))
    assert max(e["count"] for e in events("memory", "step")) > 1.5
    assert max(e["staleness"] for e in events("asynchronous", "upload")) >= 3
    assert max(e["staleness"] for e in events("poisson, stale", "upload")) >= 1


# -- interrupted and resumed --------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
def test_run_is_resumed_after_every_seventh_commit(case):
    whole, bits = uninterrupted(case)
    simulation, snapshots, seen = make(case), [], 0
    for number, events in enumerate(records(simulation.engine.run())):
        seen += len(events)
        if number % 7 == 0 and events[-1:] != whole[-1:]:
            snapshots.append((seen, frozen(simulation.engine.snapshot())))
    assert len(snapshots) > 5
    for seen, snapshot in snapshots:
        resumed = make(case)
        resumed.engine.restore(*snapshot)
        assert finish(resumed) == (whole[seen:], bits)


@pytest.mark.parametrize("case", CASES)
def test_run_is_resumed_with_another_executor(case):
    whole, bits = uninterrupted(case)
    for before, after in [(Reversed, None), (None, Strict), (Strict, AtOnce)]:
        seen, snapshot = interrupted(make(case, before), commits=37)
        resumed = make(case, after)
        resumed.engine.restore(*snapshot)
        assert finish(resumed) == (whole[seen:], bits)


@pytest.mark.parametrize("case", CASES)
def test_run_is_resumed_from_a_file(case, tmp_path):
    whole, bits = uninterrupted(case)
    simulation, seen = make(case), 0
    for number, events in enumerate(records(simulation.engine.run())):
        seen += len(events)
        if number == 50:
            break
    write_snapshot(tmp_path / "s", *simulation.engine.snapshot())
    resumed = make(case)
    resumed.engine.restore(*read_snapshot(tmp_path / "s"))
    assert finish(resumed) == (whole[seen:], bits)


def test_run_is_interrupted_many_times():
    whole, bits = uninterrupted("give up")
    simulation, events = make("give up"), []
    while not events or events[-1]["event"] != "end":
        for number, more in enumerate(records(simulation.engine.run())):
            events += more
            if number == 4:
                break
        snapshot = frozen(simulation.engine.snapshot())
        bits_now = fingerprint(simulation)
        simulation = make("give up")
        simulation.engine.restore(*snapshot)
        assert fingerprint(simulation) == bits_now
    assert (events, bits_now) == (whole, bits)


# -- trips trained ahead, in any order ------------------------------------------------------------------


@pytest.mark.parametrize("executor", [AtOnce, Reversed, Shuffled, Strict])
@pytest.mark.parametrize("case", CASES)
def test_the_order_of_training_does_not_matter(case, executor):
    simulation = make(case, executor)
    assert finish(simulation) == uninterrupted(case)
    assert simulation.executor.most >= 2, "nothing was trained ahead"


def test_many_trips_are_submitted_at_once():
    # 15 are at work and 2 make a step: whatever starts from an existing version can be trained now
    simulation = make("asynchronous", AtOnce, pace=td.Asynchronous(concurrency=15), buffer=td.Buffer(size=2))
    finish(simulation)
    assert simulation.executor.most >= 10


def test_plan_error_far_ahead_does_not_stop_a_run_that_ends_before():
    def five_trips(executor):
        simulation = make("asynchronous", executor, stop=td.Stop(trips=5))
        advance, advances = simulation.planner.advance, iter(range(40))

        def dead_end():
            if next(advances, None) is None:
                raise td.RunError("nobody is left to train")
            return advance()

        simulation.planner.advance = dead_end
        return finish(simulation)

    assert five_trips(AtOnce) == five_trips(Inline)


def test_population_that_is_too_small_is_reported_before_any_training():
    # up to 36 clients would be at work, and there are 20
    with pytest.raises(td.ConfigError, match=r"pace\.maximum: .* keeps up to 36 clients at work"):
        make("sampled staleness", AtOnce, pace=td.SampledStaleness(maximum=11))


# -- memory -------------------------------------------------------------------------------------------


class Idle(Inline):
    """Trains nothing: uploads zeros at once."""

    def result(self, trip):
        job = self._jobs.pop(trip)
        model = job.task.vectors["model"]
        return Upload({"delta": torch.zeros_like(model), "model": model}, 1, 1, 0.0), {}


class IdleAhead(Idle):
    ahead = 50


@pytest.mark.parametrize("executor", [Idle, IdleAhead])
@pytest.mark.parametrize("case", ["asynchronous", "fedasync", "over-selection", "give up", "poisson, stale"])
def test_kept_versions_do_not_grow_with_trips(case, executor):
    simulation = make(case, executor, stop=td.Stop(trips=1500))
    engine = simulation.engine
    kept, held = [], []
    for number, _ in enumerate(engine.run()):
        if number % 10 == 0:
            tensors, document = engine.snapshot()
            versions = {name.split("/")[1] for name in tensors if name.startswith("broadcast/")}
            under_way = len(document["planner"]["book"]["in_flight"])
            planned = sum(row[0] in ("Accepted", "Rejected") for row in document["plan"])
            assert len(versions) <= under_way + planned + 5  # and those of the uploads in the buffer
            kept.append(len(versions))
            parts = [*vars(engine).values(), *vars(engine._versions).values()]
            parts += vars(engine._submissions).values()
            held.append(sum(len(part) for part in parts if hasattr(part, "__len__")))
    assert engine.version >= 300
    half = len(kept) // 2
    assert max(kept[half:]) <= max(kept[:half]) + 3
    assert max(held[half:]) <= max(held[:half]) + 20


def test_refused_uploads_are_never_trained():
    trained = []

    class Counted(Inline):
        def result(self, trip):
            trained.append(trip)
            return super().result(trip)

    events, _ = finish(make("over-selection", Counted))
    accepted = [e["trip"] for e in events if e["event"] == "upload" and e["accepted"]]
    assert trained == accepted
    assert len(accepted) < TRIPS


# -- events -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
def test_events_are_consistent_with_each_other(case):
    events, _ = uninterrupted(case)
    assert events[0]["event"] == "evaluation"
    assert events[0]["version"] == events[0]["trips"] == events[0]["time"] == 0
    assert [e["event"] for e in events].count("end") == 1
    assert events[-1]["event"] == "end"
    json.dumps(events)
    version = trips = 0
    now = 0.0
    buffer = []
    for event in events:
        if "time" in event:
            assert event["time"] >= now
            now = event["time"]
        if event["event"] == "upload":
            trips += 1
            assert event["version"] == version
            assert event["client"] in DATA
            assert event["staleness"] == version - event["start_version"]
            if event["accepted"]:
                assert event["step"] == version + 1
                buffer.append(event["trip"])
        if event["event"] == "step":
            version += 1
            assert (event["version"], event["trips"]) == (version, trips)
            buffer = []
        if event["event"] in ("evaluation", "end"):
            assert (event["version"], event["trips"]) == (version, trips)
    accepted = [e["trip"] for e in events if e["event"] == "upload" and e["accepted"]]
    assert len(accepted) == len(set(accepted))


def test_evaluation_at_every_so_many_steps_and_once_at_the_end():
    events, _ = finish(make("asynchronous", stop=td.Stop(steps=10)))
    assert [e["version"] for e in events if e["event"] == "evaluation"] == [0, 4, 8, 10]
    events, _ = finish(make("asynchronous", stop=td.Stop(steps=8)))
    assert [e["version"] for e in events if e["event"] == "evaluation"] == [0, 4, 8]


def test_evaluation_at_every_so_many_trips():
    events, _ = finish(make("asynchronous", stop=td.Stop(trips=24), evaluation=td.Evaluation(every_trips=7)))
    assert [e["trips"] for e in events if e["event"] == "evaluation"] == [0, 7, 14, 21, 24]


@pytest.mark.parametrize(
    ("stop", "reason"),
    [
        (td.Stop(trips=20), "trips"),
        (td.Stop(steps=7), "steps"),
        (td.Stop(trips=20, steps=7), "trips"),
        (td.Stop(trips=21, steps=7), "trips"),
        (td.Stop(trips=50, steps=7), "steps"),
        (td.Stop(virtual_time=1.5), "virtual_time"),
    ],
)
def test_a_run_ends_at_whichever_comes_first(stop, reason):
    simulation = make("asynchronous", stop=stop)
    events, _ = finish(simulation)
    end = events[-1]
    assert end["reason"] == reason
    if reason == "virtual_time":
        assert end["time"] == 1.5
        assert max(e["time"] for e in events if e["event"] == "upload") <= 1.5
    else:
        assert end["trips" if reason == "trips" else "version"] == getattr(stop, reason)


def test_check_ins_after_the_end_are_not_turned_away():
    """Clients turn up every quarter; two may be at work, and take four."""
    pace, delay = td.Arrivals(rate=4.0, concurrency=2), td.ConstantDelay(duration=4.0)
    stop = td.Stop(virtual_time=1.5)
    simulation = make("arrivals", executor=AtOnce, pace=pace, delay=delay, stop=stop)
    events, _ = finish(simulation)
    turned_away = [event for event in events if event["event"] == "turned_away"]
    assert [event["time"] for event in turned_away] == [0.5, 0.75, 1.0, 1.25, 1.5]
    assert simulation.engine.refused == {"full": 5}
    assert (events[-1]["reason"], events[-1]["time"]) == ("virtual_time", 1.5)


def test_a_script_ends_by_itself():
    events, _ = finish(make("script", stop=td.Stop(trips=1000)))
    assert (events[-1]["reason"], events[-1]["trips"]) == ("the script is over", 60)


@pytest.mark.parametrize(
    "settings",
    [
        {"algorithm": td.FedAsync(), "pace": td.SampledStaleness(maximum=4), "buffer": td.Buffer()},
        {"pace": td.Arrivals(rate=100.0), "delay": td.ConstantDelay(duration=9.0)},
        {
            "pace": td.Asynchronous(concurrency=20),
            "buffer": td.Buffer(size=20, once_per_client=True),
        },
    ],
    ids=["sampled staleness", "more arrivals than clients", "once per client"],
)
def test_only_a_script_ends_by_itself(settings):
    events, _ = finish(make("asynchronous", **settings))
    assert (events[-1]["reason"], events[-1]["trips"]) == ("trips", TRIPS)


def test_a_run_that_stops_at_an_accuracy():
    evaluations = []

    class Improving(SquaredError):
        def metrics(self, outputs):
            evaluations.append(1)
            return super().metrics(outputs) | {"accuracy": len(evaluations) / 10}

    config = td.Config(
        algorithm=td.FedBuff(), pace=ASYNC, buffer=td.Buffer(size=3), local=td.Local(lr=0.01),
        stop=td.Stop(trips=500, accuracy=0.4), evaluation=td.Evaluation(every_steps=5),
    )  # fmt: skip
    simulation = build(config, model=Quadratic(torch.zeros(SIZE)), clients=DATA, test=TEST, head=Improving())
    events, _ = finish(simulation)
    assert (events[-1]["reason"], events[-1]["version"]) == ("accuracy", 15)


def test_diverged_evaluation_is_reported_in_one_sentence():
    with pytest.raises(td.RunError, match=r"at version \d+|training loss is not finite") as caught:
        finish(make("asynchronous", local=td.Local(lr=1e6), stop=td.Stop(trips=500)))
    assert "\n" not in str(caught.value)


def test_the_running_average_by_hand():
    plain = make("asynchronous", stop=td.Stop(steps=6))
    models = [plain.aggregator.state["model"].double()]
    for events in records(plain.engine.run()):
        models += [plain.aggregator.state["model"].double() for e in events if e["event"] == "step"]
    average = models[0]
    for model in models[1:]:
        average = 0.75 * average + 0.25 * model
    averaged = make(
        "asynchronous", stop=td.Stop(steps=6), evaluation=td.Evaluation(every_steps=4, model_average=0.75)
    )
    finish(averaged)
    assert torch.equal(averaged.aggregator.state["model"].double(), models[-1])
    assert averaged.model.double() == pytest.approx(average, rel=1e-6)


@pytest.mark.parametrize("case", CASES)
def test_after_a_step_only_versions_that_a_trip_needs_are_kept(case):
    engine = make(case).engine
    for events in records(engine.run()):
        if any(event["event"] == "step" for event in events):
            book = engine._planner.book
            needed = {ticket.version for ticket in book.in_flight.values()}
            needed |= {item.ticket.version for item in engine._plan if isinstance(item, Accepted)}
            needed |= {version for version in engine._versions if version >= book.version}
            assert set(engine._versions) == {version for version in needed if version <= engine.version}
