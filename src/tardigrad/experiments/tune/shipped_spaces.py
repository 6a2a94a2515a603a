"""The search spaces that come with the package, by algorithm: what the papers tune, and where."""

from __future__ import annotations

from tardigrad.experiments.config.schema import Config
from tardigrad.experiments.tune.search_space import Dimension, Space, setting_at

LOCAL_LR = Dimension(low=1e-3, high=1.0, log=True)
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
}
STALENESS: dict[str, Space] = {  # by kind of law, for FedAsync, whose paper tunes it
    "linear": {"a": Dimension(low=0.1, high=10.0, log=True)},
    "polynomial": {"a": Dimension(low=0.1, high=2.0)},
    "exponential": {"a": Dimension(low=0.01, high=2.0, log=True)},
    "hinge": {"a": Dimension(low=1.0, high=10.0), "b": Dimension(low=0, high=16)},
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


def shipped_space(config: Config, ranges: str) -> Space:
    """The space of this config's algorithm, with what its momentum, preconditioner and staleness law have to
    tune; empty for an algorithm of one's own, and for one with nothing to tune."""
    kind = getattr(config.algorithm, "kind", "")
    if ranges == "none" or kind not in PRACTICAL:
        return {}
    papers = ranges == "papers"
    space = dict(PAPERS.get(kind, PRACTICAL[kind]) if papers else PRACTICAL[kind])
    if kind in ("fedbuff", "robust_fedbuff", "weight_prediction"):
        momentum = setting_at(config, "algorithm.momentum.kind")
        if momentum in BETA:
            space["algorithm.momentum.beta"] = BETA[momentum]
            if papers and momentum == "heavy_ball":
                space["algorithm.momentum.beta"] = SWEPT_BETA
        if setting_at(config, "algorithm.preconditioner.kind") != "none":
            space["algorithm.lr"] = Dimension(low=0.01, high=0.1, log=True) if papers else ADAPTIVE_LR
    if kind == "fedac" and setting_at(config, "algorithm.momentum") == "none":
        space["algorithm.lr"] = MEAN_LR
        del space["algorithm.beta1"]
    if kind == "fedasync":
        law = setting_at(config, "algorithm.staleness.kind")
        space |= {f"algorithm.staleness.{name}": own for name, own in STALENESS.get(law, {}).items()}
    return space
