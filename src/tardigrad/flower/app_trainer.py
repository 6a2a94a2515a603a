"""A ClientApp as the trainer of a simulation of this package."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, Metadata, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor

from tardigrad.core.event_log import read_events
from tardigrad.core.events import UploadReceived
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
from tardigrad.flower.grid_carrier import ARRAYS, CONFIG, array_record, arrays_of, content_of
from tardigrad.flower.grid_run import assemble_nodes
from tardigrad.flower_grid.carrier import Reply
from tardigrad.flower_grid.named_arrays import ArraysModule, BadReply
from tardigrad.flower_grid.node_evaluation import CentralEvaluation
from tardigrad.flower_grid.node_trips import NodeTrips
from tardigrad.learning.local import Examples, Trainer
from tardigrad.learning.profile import Profile

NodeConfig = Mapping[str, int | float | str | bool]


def app_message(kind: str, content: RecordDict, node: int, version: int, trip: int = 0) -> Message:
    """Return a message as a SuperNode gives it to a ClientApp. Outside of a run of Flower a message needs
    all its metadata."""
    metadata = Metadata(
        run_id=0, message_id=str(trip), src_node_id=1, dst_node_id=node, reply_to_message_id="",
        group_id=str(version), created_at=time.time(), ttl=3600.0, message_type=kind,
    )  # fmt: skip
    return Message(content=content, metadata=metadata)


class ClientAppTrainer(Trainer):
    """Trains trips by calling a ClientApp in this process. Each node has its own context, whose state stays
    from trip to trip; torch's generator has the seed of the trip."""

    def __init__(
        self,
        app: ClientApp,
        assembly: Assembly,
        module: ArraysModule,
        nodes: Sequence[NodeConfig],
        run_config: NodeConfig,
        train_config: ConfigRecord | None,
    ) -> None:
        config = assembly.config
        self.algorithm, self.flat, self.profile = config.algorithm, assembly.flat, Profile(on=False)
        self._app, self._module, self._train_config = app, module, train_config or ConfigRecord()
        trial = assembly.aggregator(secrets_in_memory(config).noise)
        private, weighs = assembly.guarantee is not None, config.buffer.weights == "examples"
        self._trips = NodeTrips(module, config.algorithm, trial.empty_upload(), private, weighs)
        self._contexts = [
            Context(0, number, dict(node), RecordDict(), dict(run_config))
            for number, node in enumerate(nodes)
        ]

    @property
    def remembers(self) -> bool:
        return self.algorithm.remembers

    def train(self, task: Task, memory: Vectors, examples: Examples, seed: int) -> tuple[Upload, Vectors]:
        """Run one trip. `examples` are not used: the app has its own."""
        assert isinstance(task.client, int), "clients are numbered in a simulation"
        config = ConfigRecord({**self._train_config, "server-round": task.version + 1})
        arrays = array_record(self._module.arrays(task.vectors["model"]))
        content = RecordDict({ARRAYS: arrays, CONFIG: config})
        message = app_message("train", content, task.client, task.version, task.trip)
        try:
            with torch.random.fork_rng(devices=[]), torch.enable_grad():
                torch.manual_seed(seed)
                answer = self._app(message, self._contexts[task.client])
            found, vectors, metrics = content_of(answer)
            return self._trips.upload(Reply("", found, vectors, metrics), task, memory)
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
    nodes: Sequence[NodeConfig],
    *,
    run_config: NodeConfig | None = None,
    train_config: ConfigRecord | None = None,
    evaluate: CentralEvaluation | None = None,
    names: Sequence[int | str] | None = None,
) -> Result:
    """Simulate a run in virtual time in which a ClientApp trains.

    `nodes`: the node config of each node, such as `{"partition-id": 0, "num-partitions": 2}`. `run_config`,
    `train_config`: as the app is given them. `evaluate`: returns metrics of a version and its arrays by name.
    `names`: of the nodes, in events.

    >>> simulate(Config(), app, arrays, [{"partition-id": 0}, {"partition-id": 1}])  # doctest: +SKIP
    """
    module = ArraysModule(arrays_of(initial_arrays))
    if config.algorithm.changes_training or module.statistics:
        what = f"{config.algorithm.name} changes how clients train"
        if module.statistics:
            what = f"{module.statistics[0]!r} are running statistics"
        raise ConfigError(f"simulate: {what}, which a simulated ClientApp cannot have; use AsyncStrategy")
    with one_thread():
        assembly = assemble_nodes(config, module, names or range(len(nodes)))
        trainer = ClientAppTrainer(app, assembly, module, nodes, run_config or {}, train_config)
        parts = training_parts(assembly, 0, trainer, _AppEvaluator(module, evaluate))
        return Drive(Simulation(assembly, parts, secrets_in_memory(assembly.config))).run()


def replay(
    folder: Path | str,
    app: ClientApp,
    initial_arrays: ArrayRecord,
    nodes: Mapping[str, NodeConfig],
    *,
    run_config: NodeConfig | None = None,
    train_config: ConfigRecord | None = None,
) -> Result:
    """Simulate the arrivals of a run of `AsyncStrategy` again, with the ClientApp in this process.

    `folder`: that of the run. `nodes`: the node config of each node, by its name in the events. The model is
    the same to the bit if the app is deterministic.
    """
    folder = Path(folder)
    config = load_config(folder / "config.toml")
    uploads = [event for event in read_events(folder / "events.jsonl") if isinstance(event, UploadReceived)]
    missing = sorted({str(upload.client) for upload in uploads} - set(nodes))
    if missing:
        raise ConfigError(f"nodes: {missing[0]} took part, and its node config is missing")
    numbers = {name: number for number, name in enumerate(nodes)}
    trips = [(u.start_time or 0.0, u.time - (u.start_time or 0.0), numbers[str(u.client)]) for u in uploads]
    config = with_keywords(config, pace=Scripted(trips=tuple(sorted(trips))), stop=Stop(trips=len(trips)))
    return simulate(
        config, app, initial_arrays, list(nodes.values()),
        run_config=run_config, train_config=train_config, names=list(nodes),
    )  # fmt: skip
