"""Runs whose clients do not train with plain SGD: against a torch loop, and the promises of every run."""

from collections import Counter

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import tardigrad as td
from tardigrad.core.draws import key
from tardigrad.core.events import UploadReceived
from tardigrad.core.snapshot import read_snapshot, write_snapshot
from tardigrad.experiments.runs.simulation_assembly import build

EXAMPLES, TRIPS = 22, 4


def module(dtype):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 3)).to(dtype)


def examples(dtype):
    random = torch.Generator().manual_seed(1)
    features = torch.randn(EXAMPLES, 6, generator=random, dtype=torch.float64).to(dtype)
    return features, torch.randint(3, (EXAMPLES,), generator=random)


def by_torch(local, dtype, make, schedule=None):
    """Train as one would in plain PyTorch: the same minibatches, an optimiser of torch.optim, torch's own
    clipping, accumulation, autocast and schedulers. The optimiser is new in each trip unless it is kept."""
    ours, (features, labels) = module(dtype), examples(dtype)
    optimiser = None
    for trip in range(TRIPS):
        if optimiser is None or not local.optimiser.keep:
            optimiser = make(ours.parameters(), lr=local.lr)
        for group in optimiser.param_groups:
            group["lr"] = group["initial_lr"] = local.lr
        scheduler = None if schedule is None else schedule(optimiser, local.steps_for(EXAMPLES))
        order = torch.Generator().manual_seed(key(0, "trip", trip))
        for chosen in local.minibatches(EXAMPLES, order):
            optimiser.zero_grad()
            for part in chosen.split(local.batch_size):
                with torch.autocast("cpu", dtype=torch.bfloat16, enabled=local.autocast):
                    loss = F.cross_entropy(ours(features[part]), labels[part])
                (loss * len(part) / len(chosen)).backward()
            if local.gradient_clip is not None:
                nn.utils.clip_grad_norm_(ours.parameters(), local.gradient_clip)
            optimiser.step()
            if scheduler is not None:
                scheduler.step()
    return nn.utils.parameters_to_vector(ours.parameters()).detach()


def federated(local, dtype):
    """The same with one client and FedAvg with a learning rate of 1."""
    result = td.run(
        model=module(dtype), clients={"ann": examples(dtype)}, test=examples(dtype), algorithm=td.FedAvg(),
        pace=td.Synchronous(cohort=1), local=local, stop=td.Stop(steps=TRIPS),
    )  # fmt: skip
    return torch.cat([value.flatten() for value in result.model.values()])


def sgd(**settings):
    return lambda parameters, lr: torch.optim.SGD(parameters, lr=lr, **settings)


def adamw(**settings):
    return lambda parameters, lr: torch.optim.AdamW(parameters, lr=lr, **settings)


def cosine(optimiser, steps):
    return torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, T_max=steps, eta_min=0.1 * 0.05)


LOOPS = {
    "sgd": (td.Local(lr=0.2, weight_decay=0.01), sgd(weight_decay=0.01), None),
    "momentum": (
        td.Local(lr=0.1, optimiser="momentum", weight_decay=0.01), sgd(momentum=0.9, weight_decay=0.01), None,
    ),
    "nesterov, kept": (
        td.Local(lr=0.1, optimiser=td.LocalMomentum(beta=0.8, nesterov=True, keep=True)),
        sgd(momentum=0.8, nesterov=True), None,
    ),
    "adamw": (td.Local(lr=0.01, optimiser="adamw", weight_decay=0.1), adamw(weight_decay=0.1), None),
    "adamw, kept": (
        td.Local(lr=0.01, optimiser=td.AdamW(betas=(0.8, 0.95), keep=True), weight_decay=0.1),
        adamw(betas=(0.8, 0.95), weight_decay=0.1), None,
    ),
    "clip and accumulate": (
        td.Local(lr=0.3, optimiser="momentum", gradient_clip=0.2, accumulate=2), sgd(momentum=0.9), None,
    ),
    "cosine in each trip": (
        td.Local(lr=0.05, optimiser=td.LocalMomentum(keep=True), trip_schedule=td.CosineInTrip(floor=0.1)),
        sgd(momentum=0.9), cosine,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 2e-6)])
@pytest.mark.parametrize("case", LOOPS)
def test_one_client_equals_a_plain_torch_loop(case, dtype, tolerance):
    local, make, schedule = LOOPS[case]
    local = local.model_copy(update={"batch_size": 4, "epochs": 2})
    expected = by_torch(local, dtype, make, schedule)
    assert torch.allclose(federated(local, dtype), expected, rtol=tolerance, atol=tolerance)
    start = nn.utils.parameters_to_vector(module(dtype).parameters())
    assert (expected - start).norm() > 0.1


def test_autocast_with_one_client_equals_a_plain_torch_loop():
    local = td.Local(lr=0.1, batch_size=4, optimiser="momentum", autocast=True)
    expected = by_torch(local, torch.float32, sgd(momentum=0.9))
    exact = by_torch(local.model_copy(update={"autocast": False}), torch.float32, sgd(momentum=0.9))
    ours = federated(local, torch.float32)
    assert torch.allclose(ours, expected, rtol=2e-6, atol=2e-6)
    assert not torch.allclose(ours, exact, rtol=1e-4, atol=1e-4)


# -- the promises of every run ----------------------------------------------------------------------------

ASYNCHRONOUS = {
    "data": td.Digits(partition=td.IID(clients=12)),
    "model": td.MLP(hidden=(8,)),
    "pace": td.Asynchronous(concurrency=8),
    "buffer": td.Buffer(size=3, staleness_bound=3),
    "delay": td.HalfNormal(device_spread=1.0, give_up=0.05),
    "stop": td.Stop(trips=60),
    "evaluation": td.Evaluation(every_steps=5),
}
KEPT = td.Local(batch_size=16, lr=0.01, optimiser=td.AdamW(keep=True), weight_decay=0.01)
LOCALS = {
    "adamw, kept": KEPT,
    "momentum, clipped and accumulated": td.Local(
        batch_size=8, accumulate=2, gradient_clip=0.5, optimiser="momentum", trip_schedule="cosine"
    ),
    "autocast": td.Local(batch_size=16, autocast=True),
}


@pytest.mark.parametrize("case", LOCALS)
def test_workers_give_the_same_bits(case):
    settings = ASYNCHRONOUS | {"local": LOCALS[case]}
    alone, two = td.run(**settings), td.run(workers=2, **settings)
    assert two.model_sha256 == alone.model_sha256
    assert two.history == alone.history
    assert alone.accuracy > 0.2


def test_workers_have_room_for_a_rule_and_a_kept_optimiser_of_a_short_float_model():
    half = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10)).to(torch.bfloat16)
    settings = ASYNCHRONOUS | {"algorithm": td.CA2FL(lr=0.5), "local": KEPT, "stop": td.Stop(trips=30)}
    clients = {n: (torch.rand(20, 64), torch.arange(20) % 10) for n in range(12)}
    settings |= {"model": half, "clients": clients, "test": clients[0]}
    assert td.run(workers=2, **settings).model_sha256 == td.run(**settings).model_sha256


def test_personal_parameters_follow_the_optimiser_and_workers_give_the_same_bits():
    local = KEPT.model_copy(update={"personal": ("2.*",), "gradient_clip": 0.5})
    clients = {n: examples(torch.float32) for n in range(12)}
    settings = ASYNCHRONOUS | {"clients": clients, "local": local}
    settings |= {"model": module(torch.float32), "stop": td.Stop(trips=30)}
    assert td.run(workers=2, **settings).model_sha256 == td.run(**settings).model_sha256
    alone = td.Local(batch_size=4, lr=0.05, optimiser=td.AdamW(keep=True), personal=("2.*",))
    whole = alone.model_copy(update={"personal": None})
    config = td.Config(
        algorithm=td.FedAvg(), pace=td.Synchronous(cohort=1), local=alone, stop=td.Stop(steps=TRIPS)
    )  # one client: it does not matter where a parameter is kept
    simulation = build(config, module(torch.float32), {"ann": examples(torch.float32)})
    for _ in simulation.engine.run():
        pass
    ours = torch.cat([simulation.model, simulation.engine.memories[0]["personal/vector"]])
    assert torch.allclose(ours, federated(whole, torch.float32), rtol=1e-6, atol=1e-6)


def test_resumed_run_has_the_bits_of_an_uninterrupted_one(tmp_path):
    config = td.Config(**ASYNCHRONOUS, local=KEPT)
    whole = build(config)
    expected = list(whole.engine.run())
    final, _ = whole.engine.snapshot()
    kept = {name.split("/", 2)[2] for name in final if name.startswith("memory/")}
    assert kept == {"optimiser/first_moment", "optimiser/second_moment", "optimiser/steps"}
    stopped = build(config)
    seen = [events for _, events in zip(range(40), stopped.engine.run())]
    write_snapshot(tmp_path / "snapshot", *stopped.engine.snapshot())
    resumed = build(config)
    resumed.engine.restore(*read_snapshot(tmp_path / "snapshot"))
    assert seen + list(resumed.engine.run()) == expected
    tensors, _ = resumed.engine.snapshot()
    assert tensors.keys() == final.keys()
    assert all(torch.equal(tensors[name], final[name]) for name in final)


def test_kept_state_is_that_of_accepted_uploads_only():
    config = td.Config(**ASYNCHRONOUS, local=KEPT)
    simulation = build(config)
    events = [event for group in simulation.engine.run() for event in group]
    uploads = [event for event in events if isinstance(event, UploadReceived)]
    assert not all(upload.accepted for upload in uploads)
    accepted = Counter(upload.client for upload in uploads if upload.accepted)
    clients = simulation.assembly.clients
    expected = {client: n * KEPT.steps_for(clients.examples(client)) for client, n in accepted.items()}
    counts = {client: int(memory["optimiser/steps"]) for client, memory in simulation.engine.memories.items()}
    assert counts == expected


def test_config_survives_its_own_file(tmp_path):
    config = td.Config(**ASYNCHRONOUS, local=KEPT)
    file = tmp_path / "config.toml"
    file.write_text(config.to_toml())
    assert td.load_config(file) == config
    changed = td.load_config(file, ["local.optimiser=momentum", "local.trip_schedule.warm_up=3"])
    assert changed.local.optimiser == td.LocalMomentum()
    assert changed.local.trip_schedule == td.ConstantInTrip(warm_up=3)


@pytest.mark.parametrize(
    "privacy",
    [
        td.Participation(epsilon=50.0, clip=1.0, participations=8),
        td.LocalPrivacy(epsilon=50.0, clip=1.0, participations=8),
    ],
)
def test_private_runs_take_any_optimiser(privacy):
    """Privacy rests on the clipped delta, however a client came to it."""
    for optimiser in (td.LocalMomentum(), td.AdamW(keep=True)):
        local = td.Local(batch_size=16, lr=0.01, optimiser=optimiser)
        settings = ASYNCHRONOUS | {"privacy": privacy, "local": local, "stop": td.Stop(steps=8)}
        plain = td.run(**(settings | {"local": td.Local(batch_size=16, lr=0.01)}))
        assert td.run(**settings).epsilon == plain.epsilon
