"""Trackers: observers that send the events of a run to TensorBoard, MLflow or Weights & Biases.

The step axis is the number of client trips. A tracker sends only what is in the events. When a run goes on,
it reads the recorded events from the beginning and leaves out those that it has sent already.
"""

from __future__ import annotations

import json
import time
import uuid
from abc import abstractmethod
from collections.abc import Iterator
from pathlib import Path

from tardigrad.core.event_log import read_events, to_record
from tardigrad.core.events import Event, ModelEvaluated, ModelMoved, RunEnded
from tardigrad.core.extras import pip_install
from tardigrad.core.files import write_text
from tardigrad.errors import ConfigError
from tardigrad.experiments.config.schema import Config

PROJECT = "tardigrad"
AXES = ("event", "trips")
"""Fields of an event that are not curves."""


class Tracker:
    """An observer that draws all numbers of steps and evaluations over client trips."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self._last: dict[str, float] = {}

    def begin(self, config: Config, history: list[ModelEvaluated]) -> None:
        """Open the tracker and draw the events that are recorded already."""
        self._open(config)
        record = self.out / "events.jsonl"
        if record.exists():
            self.see(list(read_events(record)))

    def see(self, events: list[Event]) -> None:
        """Draw these events."""
        for event in events:
            if isinstance(event, ModelMoved | ModelEvaluated):
                values = {f"{event.kind}/{name}": value for name, value in _numbers(event)}
                self._last |= values
                self._draw(values, event.trips)
            elif isinstance(event, RunEnded):
                self._summarise({"stopped_by": event.reason, "client_trips": event.trips} | self._last)

    def end(self) -> None:
        """Close the tracker."""
        self._close()

    @abstractmethod
    def _open(self, config: Config) -> None: ...

    @abstractmethod
    def _draw(self, values: dict[str, float], trips: int) -> None: ...

    @abstractmethod
    def _summarise(self, summary: dict[str, object]) -> None: ...

    @abstractmethod
    def _close(self) -> None: ...


class TensorBoard(Tracker):
    """Event files in the run's folder, which are written again when the run goes on."""

    def __init__(self, out: Path) -> None:
        super().__init__(out)
        try:
            import torch.utils.tensorboard  # noqa: F401
        except ImportError:
            raise ConfigError(
                f"--track tensorboard needs TensorBoard: {pip_install('tensorboard')}"
            ) from None

    def _open(self, config: Config) -> None:
        from torch.utils.tensorboard import SummaryWriter
        from torch.utils.tensorboard.summary import hparams

        folder = self.out / "tensorboard"
        for old in folder.glob("events.out.tfevents.*"):  # the recorded events have all of it
            old.unlink()
        self._writer = SummaryWriter(str(folder))
        metrics = {"evaluation/accuracy": 0.0, "evaluation/loss": 0.0}
        for part in hparams(dict(_flat(config)), metrics):
            self._writer._get_file_writer().add_summary(part)
        self._writer.add_text("config", _code(config.to_toml()))

    def _draw(self, values: dict[str, float], trips: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, trips)

    def _summarise(self, summary: dict[str, object]) -> None:
        self._writer.add_text("summary", _code(json.dumps(summary, indent=2)))

    def _close(self) -> None:
        self._writer.close()


class MLflow(Tracker):
    """A run of the experiment "tardigrad" at MLFLOW_TRACKING_URI, or at MLflow's default."""

    def __init__(self, out: Path) -> None:
        super().__init__(out)
        try:
            from mlflow import MlflowClient
        except ImportError:
            raise ConfigError(f"--track mlflow needs MLflow: {pip_install('mlflow')}") from None
        self._client = MlflowClient()
        self._sent: dict[str, set[int]] = {}
        self._waiting: list[object] = []  # not sent yet
        self._status = "KILLED"

    def _open(self, config: Config) -> None:
        from mlflow.entities import Param

        note = self.out / "mlflow.json"
        if note.exists():
            self._run = json.loads(note.read_text())["run"]
            self._client.update_run(self._run, status="RUNNING")
        else:
            found = self._client.get_experiment_by_name(PROJECT)
            experiment = found.experiment_id if found else self._client.create_experiment(PROJECT)
            self._run = self._client.create_run(experiment, run_name=self.out.name).info.run_id
            write_text(note, json.dumps({"run": self._run}) + "\n")
        parameters = [Param(name, str(value)) for name, value in _flat(config)]
        for start in range(0, len(parameters), 100):  # the most that MLflow accepts in one call
            self._client.log_batch(self._run, params=parameters[start : start + 100])

    def _draw(self, values: dict[str, float], trips: int) -> None:
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        for name, value in values.items():
            if name not in self._sent:
                known = self._client.get_metric_history(self._run, name)
                self._sent[name] = {metric.step for metric in known}
            if trips not in self._sent[name]:
                self._sent[name].add(trips)
                self._waiting.append(Metric(name, value, now, trips))
        if len(self._waiting) >= 500:
            self._send()

    def _send(self) -> None:
        self._client.log_batch(self._run, metrics=self._waiting)
        self._waiting = []

    def _summarise(self, summary: dict[str, object]) -> None:
        self._client.set_tag(self._run, "summary", json.dumps(summary))
        self._status = "FINISHED"

    def _close(self) -> None:
        self._send()
        self._client.set_terminated(self._run, self._status)


class WandB(Tracker):
    """A run of the project "tardigrad"; WANDB_MODE=offline keeps it in the run's folder."""

    def __init__(self, out: Path) -> None:
        super().__init__(out)
        try:
            import wandb
        except ImportError:
            raise ConfigError(f"--track wandb needs Weights & Biases: {pip_install('wandb')}") from None
        self._wandb = wandb
        self._note = out / "wandb.json"
        self._finished = False

    def _open(self, config: Config) -> None:
        self._id, self._sent = uuid.uuid4().hex[:8], -1
        if self._note.exists():
            before = json.loads(self._note.read_text())
            self._id, self._sent = before["run"], before["trips"]
        self._until = self._sent
        self._write()
        self._run = self._wandb.init(
            project=PROJECT, id=self._id, resume="allow", name=self.out.name, dir=str(self.out),
            config=config.model_dump(mode="json", exclude_none=True),
        )  # fmt: skip

    def see(self, events: list[Event]) -> None:
        super().see(events)
        if any(isinstance(event, ModelEvaluated) for event in events):
            self._write()

    def _draw(self, values: dict[str, float], trips: int) -> None:
        if trips > self._until:
            self._run.log(values, step=trips)
            self._sent = trips

    def _write(self) -> None:
        """Store up to which trip everything was sent."""
        write_text(self._note, json.dumps({"run": self._id, "trips": self._sent}) + "\n")

    def _summarise(self, summary: dict[str, object]) -> None:
        self._run.summary.update(summary)
        self._finished = True

    def _close(self) -> None:
        self._write()
        self._run.finish(exit_code=0 if self._finished else 1)


TRACKERS: dict[str, type[Tracker]] = {"tensorboard": TensorBoard, "mlflow": MLflow, "wandb": WandB}


def make_tracker(kind: str, out: Path | None) -> Tracker:
    """Return the tracker of this name for a run with this folder."""
    if kind not in TRACKERS:
        raise ConfigError(f"--track {kind}: must be one of {', '.join(TRACKERS)}")
    if out is None:
        raise ConfigError(f"--track {kind} needs --out DIR: what was tracked is told from the run's record")
    return TRACKERS[kind](out)


def _numbers(event: ModelMoved | ModelEvaluated) -> Iterator[tuple[str, float]]:
    for name, value in to_record(event).items():
        if name not in AXES and isinstance(value, int | float):
            yield name, float(value)


def _flat(config: Config) -> Iterator[tuple[str, bool | int | float | str]]:
    """Yield all settings by their dotted keys; lists as JSON."""

    def walk(prefix: str, value: object) -> Iterator[tuple[str, bool | int | float | str]]:
        if isinstance(value, dict):
            for name, inner in value.items():
                yield from walk(f"{prefix}.{name}" if prefix else name, inner)
        else:
            yield prefix, value if isinstance(value, bool | int | float | str) else json.dumps(value)

    yield from walk("", config.model_dump(mode="json", exclude_none=True))


def _code(text: str) -> str:
    """Return the text as a Markdown code block."""
    return "\n".join(f"    {line}" for line in text.splitlines())
