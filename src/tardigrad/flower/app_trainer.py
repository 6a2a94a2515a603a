"""A ClientApp as the trainer of a simulation of this package."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord
from flwr.clientapp import ClientApp
from torch import Tensor

from tardigrad.core.draws import key
from tardigrad.core.event_log import read_events
from tardigrad.core.events import Event, ModelMoved, UploadReceived
from tardigrad.core.pace import Scripted
from tardigrad.core.stop import Stop
from tardigrad.core.upload import Task, Upload, Vectors
from tardigrad.data.evaluation import Evaluator
from tardigrad.errors import ConfigError, RunError
from tardigrad.experiments.config.keywords import with_keywords
from tardigrad.experiments.config.reading import load_config
from tardigrad.experiments.config.schema import Config
from tardigrad.experiments.runs.assembly import Assembly
from tardigrad.experiments.runs.drive import Drive, one_thread
from tardigrad.experiments.runs.private_run import secrets_in_memory
from tardigrad.experiments.runs.result import Result
from tardigrad.experiments.runs.simulation_assembly import Simulation, training_parts
from tardigrad.flower.app_trips import AppNode, AppTrips, UserConfig
from tardigrad.flower.grid_carrier import arrays_of
from tardigrad.flower.grid_run import assemble_nodes, check_no_statistics_in
from tardigrad.flower_grid.named_arrays import ArraysModule, BadReply
from tardigrad.flower_grid.node_evaluation import CentralEvaluation
from tardigrad.flower_grid.node_trips import NodeTrips
from tardigrad.learning.freed_memory import freed_memory_kept
from tardigrad.learning.local import Examples, Trainer
from tardigrad.learning.profile import Profile


class ClientAppTrainer(Trainer):
    """Trains the trips of a simulation by calling a ClientApp in this process."""

    def __init__(
        self,
        app: ClientApp,
        assembly: Assembly,
        module: ArraysModule,
        nodes: Sequence[UserConfig],
        run_config: UserConfig,
        train_config: ConfigRecord | None,
        numbers: Sequence[int],
    ) -> None:
        """`numbers`: of the trips, if they are those of another run; else none."""
        config = assembly.config
        self._seed, self._numbers = config.seed, numbers
        self.algorithm, self.flat, self.profile = config.algorithm, assembly.flat, Profile(on=False)
        trial = assembly.aggregator(secrets_in_memory(config).noise)
        private, weighs = assembly.guarantee is not None, config.buffer.weights == "examples"
        trips = NodeTrips(module, config.algorithm, trial.empty_upload(), private, weighs)
        self._trips = AppTrips(app, module, trips, run_config, train_config or {})
        self._nodes = [AppNode(number, node) for number, node in enumerate(nodes)]

    @property
    def remembers(self) -> bool:
        """True: an app may keep something in the state of its context."""
        return True

    def train(self, task: Task, memory: Vectors, examples: Examples, seed: int) -> tuple[Upload, Vectors]:
        """Run one trip. `examples` are not used: the app has its own."""
        assert isinstance(task.client, int), "clients are numbered in a simulation"
        if self._numbers:
            seed = key(self._seed, "trip", self._numbers[task.trip])
        try:
            return self._trips.train(task, memory, self._nodes[task.client], seed)
        except BadReply as bad:
            raise RunError(f"trip {task.trip} of node {task.client}: {bad}") from None


class _AppEvaluator(Evaluator):
    """Evaluates versions with a function of the app."""

    def __init__(self, module: ArraysModule, evaluate: CentralEvaluation | None) -> None:
        self._module, self._by_app = module, evaluate

    def __call__(
        self, vector: Tensor, version: int, memories: Mapping[int, Vectors] | None = None
    ) -> dict[str, float]:
        found = None if self._by_app is None else self._by_app(version, self._module.arrays(vector))
        return dict(found or {})


def simulate(
    config: Config,
    app: ClientApp,
    initial_arrays: ArrayRecord,
    nodes: Sequence[UserConfig],
    *,
    run_config: UserConfig | None = None,
    train_config: ConfigRecord | None = None,
    evaluate: CentralEvaluation | None = None,
    names: Sequence[int | str] | None = None,
    examples: Sequence[int] = (),
) -> Result:
    """Simulate a run in virtual time in which a ClientApp trains.

    `nodes`: the node config of each node, such as `{"partition-id": 0, "num-partitions": 2}`. `run_config`,
    `train_config`: as the app is given them. `evaluate`: returns metrics of a version and its arrays by name.
    `names`: of the nodes, in events. `examples`: the numbers of their examples, by which they weigh with
    `buffer.weights = "examples"`.

    >>> simulate(Config(), app, arrays, [{"partition-id": 0}, {"partition-id": 1}])  # doctest: +SKIP
    """
    if config.buffer.weights == "examples" and len(examples) != len(nodes):
        raise ConfigError("examples: nodes weigh by them (buffer.weights); give the number of each node")
    return _simulated(
        config, app, initial_arrays, nodes, names or range(len(nodes)), run_config, train_config, examples,
        evaluate,
    )  # fmt: skip


def _simulated(
    config: Config,
    app: ClientApp,
    initial_arrays: ArrayRecord,
    nodes: Sequence[UserConfig],
    names: Sequence[int | str],
    run_config: UserConfig | None,
    train_config: ConfigRecord | None,
    examples: Sequence[int],
    evaluate: CentralEvaluation | None = None,
    numbers: Sequence[int] = (),
) -> Result:
    module = ArraysModule(arrays_of(initial_arrays))
    check_no_statistics_in(module, "simulate")
    with one_thread(), freed_memory_kept():
        assembly = assemble_nodes(config, module, names, None, examples)
        trainer = ClientAppTrainer(app, assembly, module, nodes, run_config or {}, train_config, numbers)
        parts = training_parts(assembly, 0, trainer, _AppEvaluator(module, evaluate))
        return Drive(Simulation(assembly, parts, secrets_in_memory(assembly.config))).run()


def replay(
    folder: Path | str,
    app: ClientApp,
    initial_arrays: ArrayRecord,
    nodes: Mapping[str, UserConfig],
    *,
    run_config: UserConfig | None = None,
    train_config: ConfigRecord | None = None,
) -> Result:
    """Simulate the arrivals of a run of `AsyncStrategy`, or of a server with a Flower app, again, with the
    ClientApp in this process.

    `folder`: that of the run. `nodes`: the node config of each node, by its name in the events. The model is
    the same to the bit if the app is deterministic, and for a server also if it draws from torch's generator.
    """
    folder = Path(folder)
    config = load_config(folder / "config.toml")
    uploads, trips = _script(list(read_events(folder / "events.jsonl")))
    missing = sorted({str(upload.client) for upload in uploads} - set(nodes))
    if missing:
        raise ConfigError(f"nodes: {missing[0]} took part, and its node config is missing")
    clients = {name: number for number, name in enumerate(nodes)}
    script = tuple(
        (start, end - start, clients[str(upload.client)]) for upload, (start, end) in zip(uploads, trips)
    )
    config = with_keywords(config, pace=Scripted(trips=script), stop=Stop(trips=len(trips)))
    examples = _examples(config, uploads, list(nodes)) if config.buffer.weights == "examples" else ()
    return _simulated(
        config, app, initial_arrays, list(nodes.values()), list(nodes), run_config, train_config, examples,
        numbers=[upload.trip for upload in uploads],
    )  # fmt: skip


def _examples(config: Config, uploads: Sequence[UploadReceived], names: Sequence[str]) -> list[int]:
    """Return the numbers of examples of the nodes, by which their uploads had their weights."""
    found: dict[str, int] = {}
    unknown: set[str] = set()
    for upload in uploads:
        if upload.accepted and upload.staleness is not None:
            discount = config.algorithm.law(upload.staleness)
            if discount > 0:
                found[str(upload.client)] = round(upload.weight / discount)
            else:
                unknown.add(str(upload.client))
    for name in sorted(unknown - set(found)):
        raise ConfigError(
            f"replay: all uploads of node {name} were so late that they weighed nothing "
            f"(algorithm.staleness), so that the run's events do not say how many examples it has; a run "
            "with buffer.staleness_bound below the cutoff can be replayed"
        )
    return [found.get(name, 1) for name in names]


def _script(events: Sequence[Event]) -> tuple[list[UploadReceived], list[tuple[float, float]]]:
    """Return the uploads in the order in which their trips started, and for each the start and the end of its
    trip in a time that counts arrivals. Recorded times are not used: two arrivals may have the same."""
    count, made, last = 0, {0: 0}, dict[str, int]()  # arrivals before each version, and of each client
    found: list[tuple[int, int, UploadReceived]] = []
    for event in events:
        if isinstance(event, ModelMoved):
            made[event.version] = count
        elif isinstance(event, UploadReceived):
            count += 1
            client = str(event.client)
            start = max(made[event.start_version or 0], last.get(client, 0))
            last[client] = count
            found.append((start, count, event))
    found.sort(key=lambda trip: (trip[0], trip[2].trip))
    after = (np.arange(len(found)) + 1) / (len(found) + 1)  # no two trips start at the same time
    trips = [(start + float(part), float(end)) for (start, end, _), part in zip(found, after)]
    return [upload for _, _, upload in found], trips
