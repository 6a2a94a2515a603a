"""One entry of a comparison as the subject of tuning."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field

from tardigrad.experiments.config.reading import parse_config
from tardigrad.experiments.config.schema import Config
from tardigrad.experiments.runs.fingerprints import Inputs, named_files, own_code
from tardigrad.experiments.tune.search_space import Space, Value, setting_at, with_settings


@dataclass(frozen=True)
class Subject:
    """One entry to tune: its settings, what may change in them, and how a trial is judged."""

    label: str
    source: str
    """Where the entry is written, for errors."""
    values: dict[str, object]
    """The entry's config as written, with the budget of a trial as its `stop`."""
    space: Space
    seeds: tuple[int, ...]
    trials: int
    pruning: bool
    target: float | None = None
    """Count the trips to this value of the run's metric. If None, its value at the end counts."""
    own_head: bool = False
    """Whether the loss and the metrics are the caller's own, so that the metric need not be an accuracy."""
    inputs: Inputs = field(default_factory=dict)
    """Fingerprints of the caller's own model, data and loss in Python."""

    @property
    def config(self) -> Config:
        """The entry's own config."""
        return parse_config(dict(self.values), self.source)

    def with_settings(self, settings: dict[str, Value], seed: int) -> Config:
        """Return the config of one run of a trial."""
        changed = with_settings(self.values, self.config, settings, self.source)
        return parse_config(changed | {"seed": seed}, self.source)

    def check(self) -> None:
        """Raise a ConfigError unless every value of the space is valid by itself."""
        config = self.config
        for name, dimension in self.space.items():
            for value in dimension.edges():
                parse_config(with_settings(self.values, config, {name: value}, self.source), self.source)

    @property
    def own_settings(self) -> dict[str, Value]:
        """The entry's own values of the settings in the space, if they are in range: the first trial."""
        own = {name: setting_at(self.config, name) for name in self.space}
        return {
            name: value
            for name, value in own.items()
            if isinstance(value, bool | int | float | str) and self.space[name].holds(value)
        }

    @property
    def fingerprint(self) -> str:
        """A digest of everything that the trials depend on. A study is continued only with the same one."""
        space = {name: dimension.model_dump() for name, dimension in self.space.items()}
        values = self.config.model_dump(mode="json")
        own = own_code(self.config) | named_files(self.config) | self.inputs
        parts = [values, space, self.seeds, self.pruning, self.target, *([own] if own else [])]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
