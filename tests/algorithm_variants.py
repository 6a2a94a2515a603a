"""Algorithms with other settings than the default ones, for tests of what must hold with all of them."""

import tardigrad as td

ASYNCHRONOUS = {"pace": td.Asynchronous(concurrency=4)}
VARIANTS = {
    "fedbuff, sums": (td.FedBuff(lr=0.2, combine="sum", momentum="minimum_norm_approximation"), {}),
    "weight_prediction, sums": (td.WeightPrediction(lr=0.1, combine="sum", expected_staleness=1.5), {}),
    "fedasync, inverse_sqrt": (td.FedAsync(alpha_schedule="inverse_sqrt"), {}),
    "fedac, signed": (
        td.FedAC(lr=0.02, weights="signed", momentum="none", control_scale="population"), {},
    ),
    "fedac, absolute": (td.FedAC(lr=0.02, weights="absolute", correction=False), {}),
    "fedac, shifted": (td.FedAC(lr=0.02, weights="shifted"), {}),
    "fedac, fresh_at_mean": (td.FedAC(lr=0.02, weights="fresh_at_mean"), {}),
    "fedac, softmax": (td.FedAC(lr=0.02, weights="softmax"), {}),
    "fedac, uniform": (td.FedAC(lr=0.02, weights="uniform"), {}),
    "masfl, first pass": (td.MasFL(beta=0.5, gamma=0.05, first_pass=True), ASYNCHRONOUS),
    "masfl, theorem": (
        td.MasFL(eta="theorem"),
        ASYNCHRONOUS
        | {"buffer": td.Buffer(size=2, staleness_bound=0), "local": td.Local(steps=1, batch_size=2)},
    ),
    "adamasfl, first pass": (td.AdaMasFL(first_pass=True), ASYNCHRONOUS),
    "fadas, cap": (td.FADAS(lr=0.05, stale_lr="cap", bias_correction=False), {}),
    "fadas, keep": (td.FADAS(lr=0.05, stale_lr="keep"), {}),
    "fedprox, late": (td.FedProx(staleness="polynomial"), ASYNCHRONOUS),
    "fedyogi, v0": (td.FedYogi(v0=0.1), {}),
    "momentum_look_ahead, ahead": (td.MomentumLookAhead(start_ahead=True), {}),
    "heloco, continuous": (td.HeLoCo(turn="continuous"), {}),
    "ace, first pass": (td.ACE(lr=0.2, first_pass=True), ASYNCHRONOUS),
    "dc_asgd, constant": (td.DCASGD(adaptive=False), {}),
}  # fmt: skip
"""By name: the algorithm, and the tables of a config that it needs besides."""
