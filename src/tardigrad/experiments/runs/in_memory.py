"""The caller's own objects for runs in Python, which cannot be sent to the processes of a comparison."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from tardigrad.algorithms.registry import BUILT_IN
from tardigrad.experiments.config.keywords import with_keywords
from tardigrad.experiments.config.schema import Config
from tardigrad.experiments.runs.drive import Observer
from tardigrad.experiments.runs.fingerprints import Inputs
from tardigrad.experiments.runs.result import Result
from tardigrad.experiments.runs.run import model_and_head, run
from tardigrad.experiments.runs.simulation_assembly import assemble_simulation
from tardigrad.learning.heads import Head


@dataclass(frozen=True)
class InMemory:
    """A model, data and a loss that are objects of the calling process; None stands for the config's."""

    model: nn.Module | None = None
    clients: Mapping[Hashable, object] | None = None
    test: object | None = None
    head: Head | None = None
    workers: int | str = 0
    """How many processes train the trips of one run."""

    def needed(self, *configs: Config) -> bool:
        """Return whether the runs of these configs must be made in this process: because of these objects, or
        because the class of an algorithm is defined in Python and not named in the config."""
        own = [type(config.algorithm) for config in configs if not isinstance(config.algorithm, BUILT_IN)]
        here = any(not algorithm.__module__.startswith("tardigrad_own.") for algorithm in own)
        return here or any(part is not None for part in (self.model, self.clients, self.test, self.head))

    def inputs(self, config: Config) -> Inputs:
        """Return fingerprints of these objects, as a run of this config has them."""
        model, head, said = model_and_head(self.model, self.head)
        config = with_keywords(config, **said)
        return assemble_simulation(config, model, self.clients, self.test, head).inputs()

    def run(
        self,
        config: Config,
        out: Path | None = None,
        resume: bool = False,
        observers: tuple[Observer, ...] = (),
    ) -> Result:
        """Make one run."""
        return run(
            config, model=self.model, clients=self.clients, test=self.test, head=self.head,
            out=out, resume=resume, workers=self.workers, observers=observers, progress=False,
        )  # fmt: skip
