"""The search spaces of the built-in algorithms (what the papers tune), and of algorithms of one's own."""

from __future__ import annotations

from pydantic import ValidationError

from tardigrad.errors import ConfigError
from tardigrad.experiments.config.schema import Config
from tardigrad.experiments.tune.search_space import Dimension, Space, setting_at

LOCAL_LR = Dimension(low=1e-3, high=1.0, log=True)
ADAMW_LR = Dimension(low=1e-5, high=0.1, log=True)
"""The learning rate of clients whose steps are divided by the root of v."""
MEAN_LR = Dimension(low=0.1, high=10.0, log=True)
"""For a step along the mean delta: 1 replaces the model by the mean of the clients'."""
ADAPTIVE_LR = Dimension(low=1e-3, high=0.1, log=True)
"""For a step divided by the root of v, which moves every coordinate by about this much."""

PRACTICAL: dict[str, Space] = {
    "fedbuff": {"local.lr": LOCAL_LR, "algorithm.lr": MEAN_LR},
    "robust_fedbuff": {"local.lr": LOCAL_LR, "algorithm.lr": MEAN_LR},
    "weight_prediction": {"local.lr": LOCAL_LR, "algorithm.lr": MEAN_LR},
    "fedasync": {"local.lr": LOCAL_LR, "algorithm.alpha": Dimension(low=0.05, high=1.0, log=True)},
    "fedac": {
        "local.lr": LOCAL_LR,
        "algorithm.lr": Dimension(low=1e-4, high=0.1, log=True),
        "algorithm.beta1": Dimension(low=0.0, high=0.95),
    },
    "masfl": {
        "local.lr": LOCAL_LR,
        "algorithm.beta": Dimension(low=0.05, high=1.0, log=True),
        "algorithm.gamma": Dimension(low=1e-3, high=1.0, log=True),
    },
    "adamasfl": {},  # its step sizes follow from the length of the run
    "fedbuff_corollary": {},  # the same
    "ca2fl": {"local.lr": LOCAL_LR, "algorithm.lr": MEAN_LR},
    "fadas": {"local.lr": LOCAL_LR, "algorithm.lr": Dimension(low=1e-4, high=0.1, log=True)},
    "defedavg": {"local.lr": LOCAL_LR, "algorithm.lr": MEAN_LR},
    "fedavg": {"local.lr": LOCAL_LR, "algorithm.lr": MEAN_LR},
    "fedavgm": {
        "local.lr": LOCAL_LR,
        "algorithm.lr": MEAN_LR,
        "algorithm.beta": Dimension(low=0.0, high=0.95),
    },
    "fedprox": {
        "local.lr": LOCAL_LR,
        "algorithm.lr": MEAN_LR,
        "algorithm.mu": Dimension(choices=(0.001, 0.01, 0.1, 1.0)),
    },
    "fedadam": {"local.lr": LOCAL_LR, "algorithm.lr": ADAPTIVE_LR},
    "fedadagrad": {"local.lr": LOCAL_LR, "algorithm.lr": ADAPTIVE_LR},
    "fedyogi": {"local.lr": LOCAL_LR, "algorithm.lr": ADAPTIVE_LR},
    "scaffold": {"local.lr": LOCAL_LR, "algorithm.lr": MEAN_LR},
    "sgd": {"local.lr": LOCAL_LR},
}

BETA: Space = {  # by kind of momentum; asynchronous training may want it negative
    "ema": Dimension(low=-0.9, high=0.95),
    "heavy_ball": Dimension(low=-0.9, high=0.95),
    "nesterov": Dimension(low=0.0, high=0.95),
    "approximation": Dimension(low=0.0, high=0.95),
    "light_approximation": Dimension(low=0.0, high=0.95),
    "minimum_norm_approximation": Dimension(low=0.0, high=0.95),
}
STALENESS: dict[str, Space] = {  # by kind of law, for FedAsync, whose paper tunes it
    "linear": {"a": Dimension(low=0.1, high=10.0, log=True)},
    "polynomial": {"a": Dimension(low=0.1, high=2.0)},
    "exponential": {"a": Dimension(low=0.01, high=2.0, log=True)},
    "hinge": {"a": Dimension(low=1.0, high=10.0), "b": Dimension(low=0, high=16)},
    "cosine_gate": {
        "a": Dimension(low=0.01, high=1.0, log=True),
        "cutoff": Dimension(low=2.0, high=64.0, log=True),
    },
}

WIDE = Dimension(low=1e-8, high=1e4, log=True)
SWEPT_BETA = Dimension(choices=(0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.99))
PAPERS: dict[str, Space] = {
    # "Federated Learning with Buffered Asynchronous Aggregation", appendix B.3.1
    "fedbuff": {"local.lr": WIDE, "algorithm.lr": WIDE},
    "fedasync": {"local.lr": WIDE, "algorithm.alpha": Dimension(low=1e-8, high=1.0, log=True)},
    "fedavg": {"local.lr": WIDE, "algorithm.lr": WIDE},
    "fedavgm": {"local.lr": WIDE, "algorithm.lr": WIDE, "algorithm.beta": SWEPT_BETA},
    "fedprox": PRACTICAL["fedprox"] | {"local.lr": WIDE, "algorithm.lr": WIDE},
    # "Momentum Approximation in Asynchronous Private Federated Learning", appendix B.1
    "fedadam": {"local.lr": LOCAL_LR, "algorithm.lr": Dimension(low=0.01, high=0.1, log=True)},
}
"""Where a paper names the ranges that it searched; otherwise `PRACTICAL` holds."""


def search_space(config: Config, ranges: str) -> Space:
    """Return the shipped space of the config's algorithm, and what the algorithm declares itself in its class
    variable `tuning_space`: by key, such as "algorithm.lr", a dict of low, high and log, or of choices."""
    if ranges == "none":
        return {}
    space = shipped_space(config, ranges)
    if space.get("local.lr") == LOCAL_LR and config.local.optimiser.kind == "adamw":
        space["local.lr"] = ADAMW_LR
    return space | _declared_space(config)


def _declared_space(config: Config) -> Space:
    declared = config.algorithm.tuning_space
    where = f"{type(config.algorithm).__name__}.tuning_space"
    if not isinstance(declared, dict):
        raise ConfigError(
            f'{where}: must be a dict, such as {{"algorithm.lr": {{"low": 0.1, "high": 10.0, "log": True}}}}'
        )
    space: Space = {}
    for name, values in declared.items():
        try:
            space[str(name)] = Dimension.model_validate(values)
        except ValidationError as error:
            said = error.errors()[0]["msg"].removeprefix("Value error, ")
            raise ConfigError(f"{where}: {name}: {said}") from None
    return space


def shipped_space(config: Config, ranges: str) -> Space:
    """Return the space of the config's algorithm, with that of its momentum, preconditioner and staleness
    law. An algorithm of one's own has `local.lr`; one with nothing to tune has an empty space."""
    kind = getattr(config.algorithm, "kind", "")
    if ranges == "none":
        return {}
    if kind not in PRACTICAL:
        return {"local.lr": LOCAL_LR}
    papers = ranges == "papers"
    space = dict(PAPERS.get(kind, PRACTICAL[kind]) if papers else PRACTICAL[kind])
    if kind in ("fedbuff", "robust_fedbuff", "weight_prediction"):
        momentum = str(setting_at(config, "algorithm.momentum.kind"))
        if momentum in BETA:
            space["algorithm.momentum.beta"] = BETA[momentum]
            if papers and momentum == "heavy_ball":
                space["algorithm.momentum.beta"] = SWEPT_BETA
        if setting_at(config, "algorithm.preconditioner.kind") != "none":
            space["algorithm.lr"] = Dimension(low=0.01, high=0.1, log=True) if papers else ADAPTIVE_LR
    if kind == "fedac" and setting_at(config, "algorithm.momentum") == "none":
        space["algorithm.lr"] = MEAN_LR
        del space["algorithm.beta1"]
    if kind == "masfl" and setting_at(config, "algorithm.eta") == "theorem":
        del space["local.lr"]  # it has no effect
        del space["algorithm.beta"]  # the theorem has a step for few betas; its own is one of them
    if kind == "fedasync":
        law = str(setting_at(config, "algorithm.staleness.kind"))
        space |= {f"algorithm.staleness.{name}": own for name, own in STALENESS.get(law, {}).items()}
    return space
