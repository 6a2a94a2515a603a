"""A run on a Flower grid, put together from a config and the arrays of an app."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from tardigrad.core.pace import Asynchronous, Synchronous
from tardigrad.data.clients import Clients, Examples
from tardigrad.errors import ConfigError
from tardigrad.experiments.config.keywords import with_keywords
from tardigrad.experiments.config.schema import Config
from tardigrad.experiments.runs.assembly import Assembly, assemble
from tardigrad.experiments.runs.private_run import Secrets
from tardigrad.experiments.runs.server_assembly import check_no_adversaries
from tardigrad.flower_grid.carrier import Carrier
from tardigrad.flower_grid.driver import Driver
from tardigrad.flower_grid.named_arrays import ArraysModule
from tardigrad.flower_grid.node_evaluation import CentralEvaluation
from tardigrad.learning.local import Local
from tardigrad.learning.profile import Profile
from tardigrad.privacy.chosen import Chosen
from tardigrad.privacy.settings import LocalPrivacy, PoissonSampling


class NodeClients(Clients):
    """Nodes of which the server knows no examples."""

    def __init__(self, names: Sequence[int | str], examples: Sequence[int]) -> None:
        self._names, self._examples = names, examples

    def __len__(self) -> int:
        return len(self._names)

    def examples(self, client: int) -> int:
        """Return 1 if the number is not known. Step sizes that depend on it need local.steps."""
        return self._examples[client] if self._examples else 1

    def load(self, client: int) -> Examples:
        """Return no examples: only the node has its own."""
        return torch.empty(0), torch.empty(0)

    def name(self, client: int) -> int | str:
        return self._names[client]


def assemble_nodes(
    config: Config,
    module: ArraysModule,
    names: Sequence[int | str],
    chosen: Chosen | None = None,
    examples: Sequence[int] = (),
) -> Assembly:
    """Return the assembly of a run whose ClientApps train. `names`: of the nodes, whose number is what the
    config is resolved for. `examples`: their numbers of examples, if they are known.

    Raises a ConfigError for what the config says of things that nodes decide, or that they would have to be
    told.
    """
    _check_config(config)
    config = config.model_copy(update={"data": None, "model": None})
    config = with_keywords(config, service=_service(config) | {"population": len(names)})
    config = config.resolved(len(names))
    if config.algorithm.uses_local_steps and config.local.steps is None:
        raise ConfigError(
            f"local.steps: the step sizes of {config.algorithm.name} follow from it; give the number of "
            "steps that the ClientApp makes"
        )
    if config.buffer.weights == "examples" and config.algorithm.averages_memories:
        raise ConfigError(
            f"buffer.weights: {config.algorithm.name} keeps a mean over all clients, and the examples of "
            "all nodes together are not known; use 'equal'"
        )
    if config.privacy is not None and module.statistics:
        raise ConfigError(
            f"privacy: {module.statistics[0]!r} follows the nodes' data and would be released without noise; "
            "use layers without running statistics, such as GroupNorm"
        )
    return assemble(config, None, module, NodeClients(names, examples), len(names), chosen, served=True)


def check_nodes_can_run(config: Config) -> None:
    """Raise a ConfigError if a resolved config needs virtual time, or simulated clients."""
    check_no_adversaries(config)
    if config.algorithm.oracle:
        raise ConfigError(
            f"algorithm.kind: {config.algorithm.name} as it is set uses what only a simulation can know (the "
            "staleness to come); set algorithm.expected_staleness"
        )
    assert config.pace is not None
    if not isinstance(config.pace, Asynchronous | Synchronous):
        raise ConfigError(
            f"pace.kind: {config.pace.kind!r} decides when nodes turn up, or gives them several messages at "
            "a time; Flower's nodes take 'asynchronous' or 'synchronous'"
        )


def _service(config: Config) -> dict[str, object]:
    return {} if config.service is None else config.service.model_dump(exclude_unset=True)


def _check_config(config: Config) -> None:
    check_app_brings(config)
    if config.encoding.kind != "float32" or config.broadcast.kind != "float32":
        raise ConfigError(
            "encoding, broadcast: ClientApps take and return whole arrays; leave both out, or serve the run "
            "with `tardigrad serve`"
        )
    if config.secure is not None:
        raise ConfigError(
            "secure: ClientApps do not mask what they return; leave it out, or serve the run with `tardigrad "
            "serve`"
        )
    if isinstance(config.privacy, PoissonSampling):
        raise ConfigError(
            "privacy.kind: 'poisson' rests on clients that are sampled at random, which real ones are not; "
            "use 'participation', which assumes nothing about who comes when"
        )
    if isinstance(config.privacy, LocalPrivacy):
        raise ConfigError(
            "privacy.kind: 'local' has clients add noise, which ClientApps are not told to do; use "
            "'participation', or Flower's LocalDpMod in the ClientApp"
        )
    if config.device.torch_device().type != "cpu":
        raise ConfigError("device: a ServerApp adds up on the CPU; leave it out")


def check_app_brings(config: Config) -> None:
    """Raise a ConfigError for what the config says of data, model and local training, which ClientApps
    bring."""
    for name in ("data", "model", "head"):
        if name in config.model_fields_set and getattr(config, name) is not None:
            raise ConfigError(f"{name}: the ClientApp brings its own; leave it out of the config")
    usual = Local()
    own = [n for n in Local.model_fields if n != "steps" and getattr(config.local, n) != getattr(usual, n)]
    if own:
        raise ConfigError(
            f"local.{own[0]}: the ClientApp trains, and takes its settings from train_config; leave it out"
        )


def check_no_statistics_in(module: ArraysModule, option: str) -> None:
    """Raise a ConfigError if an app's model has running statistics. `option`: what was asked for."""
    if module.statistics:
        raise ConfigError(
            f"{option}: {module.statistics[0]!r} are running statistics, which only AsyncStrategy can "
            "average; use layers without them, such as GroupNorm"
        )


class GridRun:
    """A run on a grid that is ready to be driven."""

    def __init__(
        self,
        assembly: Assembly,
        secrets: Secrets,
        carrier: Carrier,
        module: ArraysModule,
        ticket_seconds: float,
        evaluate: CentralEvaluation | None = None,
        fraction_evaluate: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        config = assembly.config
        self.assembly, self.secrets, self.profile = assembly, secrets, Profile(on=False)
        self.aggregator = assembly.aggregator(secrets.noise)
        self.engine = Driver(
            carrier, assembly.bookkeeping(), self.aggregator, module, config.evaluation, config.stop,
            config.seed, assembly.trip_bytes.up, ticket_seconds, assembly.guarantee is not None, evaluate,
            fraction_evaluate, clock,
        )  # fmt: skip
        self.engine.release = secrets.release

    @property
    def model(self) -> Tensor:
        """The model that is evaluated and saved."""
        return self.aggregator.evaluated_model

    def worker_seconds(self) -> dict[str, float]:
        """Return nothing: the nodes do not say how long they worked."""
        return {}
