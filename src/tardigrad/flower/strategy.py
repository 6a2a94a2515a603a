"""`AsyncStrategy`: the algorithms of this package in the place of a strategy of Flower."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result as FlowerResult

from tardigrad.core.events import ModelEvaluated
from tardigrad.core.plural import counted
from tardigrad.core.stop import Stop
from tardigrad.errors import ConfigError
from tardigrad.experiments.config.keywords import with_keywords
from tardigrad.experiments.config.schema import Config
from tardigrad.experiments.runs.drive import Drive, one_thread
from tardigrad.experiments.runs.private_run import check_guard, open_secrets, secrets_in_memory
from tardigrad.experiments.runs.result import Result, result_of
from tardigrad.experiments.runs.run_folder import RunFolder, Snapshot
from tardigrad.experiments.runs.server_defaults import stored_defaults
from tardigrad.flower.grid_carrier import GridCarrier, array_record, arrays_of, metric_record
from tardigrad.flower.grid_run import GridRun, assemble_nodes, check_nodes_can_run
from tardigrad.flower_grid.flower_log import log
from tardigrad.flower_grid.named_arrays import Arrays, ArraysModule
from tardigrad.flower_grid.node_evaluation import CentralEvaluation
from tardigrad.privacy.chosen import CHOSEN, Chosen

WAIT_SECONDS = 1.0
"""Between two looks for nodes at the start."""

EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]


class AsyncStrategy:
    """Trains with an algorithm of this package on the nodes of a Flower grid, for the `main` of a ServerApp.

    >>> strategy = AsyncStrategy(Config(algorithm="fedbuff", buffer={"size": 3}))  # doctest: +SKIP
    >>> result = strategy.start(grid=grid, initial_arrays=arrays, num_rounds=20)  # doctest: +SKIP
    """

    def __init__(
        self,
        config: Config | None = None,
        *,
        out: Path | str | None = None,
        min_available_nodes: int = 2,
        fraction_evaluate: float | None = None,
        snapshot_seconds: float = 30.0,
        guard: Path | str | None = None,
    ) -> None:
        """`config`: the settings of the run, without data, model and local training, which the ClientApps
        bring. `out`: the folder of the run; if it holds one, that goes on. Without it nothing is written.
        `min_available_nodes`: wait for so many nodes. `fraction_evaluate`: the part of the nodes that
        evaluates; default: all, or none if `start` is given an `evaluate_fn`. `snapshot_seconds`: between two
        snapshots; with 0 there is one at every step. `guard`: for a private run, a file outside `out` with
        which a restored backup is noticed.
        """
        if min_available_nodes < 1:
            raise ConfigError(f"min_available_nodes: must be at least 1, not {min_available_nodes}")
        if fraction_evaluate is not None and not 0 <= fraction_evaluate <= 1:
            raise ConfigError(f"fraction_evaluate: must be from 0 to 1, not {fraction_evaluate:g}")
        self._config, self._out = config or Config(), None if out is None else Path(out).expanduser()
        self._nodes, self._fraction = min_available_nodes, fraction_evaluate
        self._snapshot_seconds = snapshot_seconds
        self._guard = None if guard is None else Path(guard)

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int | None = None,
        timeout: float | None = None,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: EvaluateFn | None = None,
    ) -> FlowerResult:
        """Run to the end and return the result, as Flower's own strategies do.

        `num_rounds`: the number of steps after which the run ends, in place of `config.stop`. `timeout`:
        seconds after which nobody waits for a node's reply; default `config.service.ticket_seconds`, an hour.
        `train_config`, `evaluate_config`: sent to the nodes, with `server-round`: in a train message the step
        that is being made, counted from 1, in an evaluate message the version. `evaluate_fn`: evaluates a
        version on central data.

        Raises a ConfigError if the settings are wrong, and a RunError if the run fails.
        """
        config = self._config
        if num_rounds is not None:
            config = with_keywords(config, stop=_stop_after(config, num_rounds))
        module = ArraysModule(arrays_of(initial_arrays))
        log.info("initial arrays: %s", module.described())
        carrier = GridCarrier(grid, {"train": train_config, "evaluate": evaluate_config})
        names = [f"node {number}" for number in range(self._population(carrier, config))]
        begun = self._out is not None and (self._out / "config.toml").exists()
        chosen = Chosen.read(self._out / CHOSEN) if self._out is not None and begun else None
        with one_thread(), ExitStack() as stack:
            assembly = assemble_nodes(config, module, names, chosen)
            check_nodes_can_run(assembly.config)
            service = assembly.config.service
            assert service is not None, "it has the population"
            fraction = self._fraction
            if fraction is None:
                fraction = 1.0 if evaluate_fn is None else 0.0
            folder, snapshot = None, None
            if self._out is not None:
                check_guard(assembly.guarantee, self._out, self._guard)
                folder = RunFolder(self._out, private=assembly.guarantee is not None)
                stack.enter_context(closing(folder))
                snapshot = self._open(folder, assembly.config, assembly.inputs(), begun)
                if folder.summary is not None:
                    log.info("%s holds a finished run; its result is returned", self._out)
                    return _flower_result(result_of(folder), module.names, {})
                version = 0 if snapshot is None else int(snapshot[1]["engine"]["aggregator"]["version"])
                secrets = open_secrets(assembly.config, assembly.guarantee, self._out, version, self._guard)
                stack.enter_context(closing(secrets))
            else:
                secrets = secrets_in_memory(assembly.config)
            run = GridRun(
                assembly, secrets, carrier, module, timeout or service.ticket_seconds,
                _central(evaluate_fn), fraction,
            )  # fmt: skip
            if folder is not None and begun:
                folder.go_on()
            drive = Drive(run, folder, snapshot, self._snapshot_seconds)
            run.engine.save = drive.save
            run.engine.save_steps |= self._snapshot_seconds == 0
            result = drive.run()
            return _flower_result(result, module.names, run.engine.reports.by_version)

    def _open(
        self, folder: RunFolder, config: Config, inputs: dict[str, str], begun: bool
    ) -> Snapshot | None:
        if not begun:
            folder.create(config, inputs)
            return None
        snapshot = folder.reopen(config, inputs)
        if snapshot is not None and "last_accepted" not in snapshot[1].get("engine", {}):
            raise ConfigError(f"out: {folder.path} holds a run of another kind; give another folder")
        return snapshot

    def _population(self, carrier: GridCarrier, config: Config) -> int:
        """Wait for enough nodes, and return how many nodes the run is for."""
        stored = None if self._out is None else stored_defaults(self._out)
        if stored is not None and stored.population is not None:
            needed = 1  # it goes on with those who are there
        else:
            needed = self._nodes
        told = -1
        while len(nodes := carrier.nodes()) < needed:
            if len(nodes) != told:
                log.info("waiting for nodes: %d of %d are connected", len(nodes), needed)
                told = len(nodes)
            time.sleep(WAIT_SECONDS)
        if stored is not None and stored.population is not None:
            return stored.population
        given = None if config.service is None else config.service.population
        log.info("%s connected", counted(len(nodes), "node"))
        return given or len(nodes)


def _stop_after(config: Config, steps: int) -> dict[str, object]:
    if steps < 1:
        raise ConfigError(f"num_rounds: must be at least 1, not {steps}")
    stop = config.stop if "stop" in config.model_fields_set else Stop(steps=steps)
    return stop.model_dump(exclude_none=True) | {"steps": steps}


def _central(evaluate: EvaluateFn | None) -> CentralEvaluation | None:
    """Return the app's evaluation with the driver's types."""
    if evaluate is None:
        return None

    def central(version: int, arrays: Arrays) -> dict[str, float] | None:
        found = evaluate(version, array_record(arrays))
        if found is None:
            return None
        return {str(name): float(value) for name, value in found.items() if not isinstance(value, list)}

    return central


def _flower_result(
    result: Result, names: Sequence[str], train_metrics: Mapping[int, Mapping[str, float]]
) -> FlowerResult:
    """Return a result as Flower's own strategies do. `names`: of the arrays, in the order of the app."""
    found = FlowerResult()
    found.arrays = array_record({name: result.model[name].numpy() for name in names})
    found.train_metrics_clientapp = {
        version: metric_record(metrics) for version, metrics in train_metrics.items() if metrics
    }
    for event in result.history:
        by = found.evaluate_metrics_clientapp if event.federated else found.evaluate_metrics_serverapp
        by[event.version] = metric_record(_finite(event))
    return found


def _finite(event: ModelEvaluated) -> dict[str, float]:
    return {name: float(v) for name, v in event.metrics.items() if isinstance(v, int | float)}
