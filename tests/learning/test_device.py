"""Training on another device, which is simulated here.

Tensors of the simulated device keep their values on the CPU, report another device, and refuse to be mixed
with tensors of the CPU.
"""

import json
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

import tardigrad as td
from observers import InterruptAfter
from tardigrad.core.upload import Task
from tardigrad.experiments.runs.simulation_assembly import build
from tardigrad.learning.evaluate import evaluate
from tardigrad.learning.flat import FlatModule
from tardigrad.learning.heads import MultiClass, MultiLabel
from tardigrad.learning.images import Flip, Images, RandomCrop
from tardigrad.learning.local import Local, Trainer
from tardigrad.simulation.device import Device

ELSEWHERE = torch.device("meta")  # a name that torch knows; unlike real meta tensors, these have values


class MixedError(AssertionError):
    pass


class Far(Tensor):
    """A tensor on the simulated device. Only `.to()` and `.cpu()` move it to the CPU."""

    held: Tensor

    @staticmethod
    def __new__(cls, held):
        with torch.inference_mode(False):  # inference tensors have no views
            far = Tensor._make_wrapper_subclass(
                cls, held.shape, strides=held.stride(), storage_offset=held.storage_offset(),
                dtype=held.dtype, device=ELSEWHERE,
            )  # fmt: skip
        far.held = held
        return far

    @property
    def data(self):
        return Far(self.held)

    @data.setter
    def data(self, value):
        self.held = value.held

    def tolist(self):
        OtherDevice.reads += 1
        return self.held.tolist()

    def new_tensor(self, values):
        return Far(self.held.new_tensor(values))

    @classmethod
    def __torch_dispatch__(cls, operation, types, args=(), kwargs=None):
        return operate(operation, args, kwargs or {})


def operate(operation, args, kwargs):
    """Run an operation on the values; the result is on the operands' device, or on the one requested."""
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    far = [tensor for tensor in tensors if isinstance(tensor, Far)]
    if far and any(not isinstance(tensor, Far) and tensor.dim() > 0 for tensor in tensors):
        raise MixedError(f"{operation}: some of its tensors are on the device and some are not")
    OtherDevice.reads += bool(far) and operation is torch.ops.aten._local_scalar_dense.default
    stays = bool(far)
    if kwargs.get("device") is not None:
        stays = kwargs["device"] == ELSEWHERE
        kwargs = kwargs | {"device": torch.device("cpu")}
    whose = {id(tensor.held): tensor for tensor in far}  # an in-place operation returns the same object
    args, kwargs = tree_map_only(Far, lambda tensor: tensor.held, (args, kwargs))
    result = operation(*args, **kwargs)
    if not stays:
        return result
    return tree_map_only(Tensor, lambda t: whose[id(t)] if id(t) in whose else Far(t), result)


class OtherDevice(TorchDispatchMode):
    """While this mode is active, there is another device."""

    reads = 0
    """How often a number was read, which waits for the device."""
    generator = torch.Generator()

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        return operate(operation, args, kwargs or {})


@pytest.fixture
def device(monkeypatch):
    monkeypatch.setattr(OtherDevice, "reads", 0)
    module = SimpleNamespace(default_generators=(OtherDevice.generator,))
    monkeypatch.setattr(torch, "meta", module, raising=False)
    monkeypatch.setattr(
        Device, "torch_device", lambda self: ELSEWHERE if self.kind == "cuda" else torch.device("cpu")
    )
    with OtherDevice():
        yield ELSEWHERE


# -- the simulated device itself --------------------------------------------------------------------------


def test_simulated_device_refuses_to_mix_devices(device):
    near, far = torch.arange(3.0), torch.arange(3.0).to(device)
    assert far.device == device
    assert near.device != device
    assert torch.equal((2 * far).cpu(), 2 * near)
    far[:2].add_(1)  # through a view
    assert far.cpu().tolist() == [1.0, 2.0, 2.0]
    for mix in (
        lambda: near + far,
        lambda: far.copy_(near),
        lambda: far.index_select(0, torch.tensor([0])),
        lambda: far[torch.tensor([0])],
        lambda: torch.stack([near, far]),
    ):
        with pytest.raises(MixedError):
            mix()
    with pytest.raises((RuntimeError, TypeError)):
        far.numpy()
    assert OtherDevice.reads == 0
    assert far.sum().item() == 5.0
    assert OtherDevice.reads == 1


# -- one trip ---------------------------------------------------------------------------------------------


def trip(device, module=None, seed=7, index=True, **local):
    torch.manual_seed(0)
    flat = FlatModule(module or nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))).on(device)
    trainer = Trainer(flat, MultiClass(), td.FedBuff(), Local(batch_size=4, epochs=2, **local))
    features, labels = torch.randn(40, 6), torch.randint(3, (40,))
    own = torch.arange(0, 40, 2) if index else None
    return trainer.train(Task(0, 0, 0, {"model": flat.vector.clone()}), {}, (features, labels, own), seed)[0]


@pytest.mark.parametrize("index", [True, False])
def test_trip_on_the_device_gives_the_same_upload(device, index):
    here = trip(torch.device("cpu"), index=index, weight_decay=0.1)
    there = trip(device, index=index, weight_decay=0.1)
    assert there.vectors["delta"].device == device
    assert torch.equal(there.vectors["delta"].cpu(), here.vectors["delta"])
    assert (there.loss, there.steps, there.examples) == (here.loss, here.steps, here.examples)


def test_trip_synchronises_with_the_device_once(device):
    assert trip(device).steps == 10
    assert OtherDevice.reads == 1


def test_module_on_the_device_draws_from_the_seed_of_the_trip(device):
    seeds = []

    class Drawing(nn.Linear):
        def forward(self, x):
            seeds.append((torch.initial_seed(), OtherDevice.generator.initial_seed()))
            return super().forward(x)

    before = OtherDevice.generator.manual_seed(3).get_state()
    trip(device, Drawing(6, 3), seed=12)
    assert set(seeds) == {(12 ^ 1, 12 ^ 1)}
    assert torch.equal(OtherDevice.generator.get_state(), before)


def test_module_keeps_its_state_when_moved_to_the_device(device):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(16, 2))
    module.register_buffer("shift", torch.ones(2))
    flat = FlatModule(module)
    assert flat.on(torch.device("cpu")) is flat
    state = flat.state_dict(flat.vector)
    far = flat.on(device)
    assert far.vector.device == far.gradient.device == device
    assert all(p.device == device for p in far.module.parameters())
    back = far.state_dict(far.vector)
    for name, value in state.items():
        assert back[name].device.type == "cpu"
        assert torch.equal(back[name], value)


# -- transforms and evaluation ------------------------------------------------------------------------------


def test_image_augmentation_is_the_same_on_every_device(device):
    images = torch.randint(256, (20, 3, 9, 11), dtype=torch.uint8)
    transform = Images(
        [RandomCrop(side=8, padding=2), Flip()], mean=[0.4, 0.5, 0.6], deviation=[0.2, 0.3, 0.4]
    )
    here = transform.train(images, torch.Generator().manual_seed(1))
    for _ in range(2):  # to the device and back, twice
        there = transform.train(images.to(device), torch.Generator().manual_seed(1))
        assert there.device == device
        assert torch.equal(there.cpu(), here)
        assert torch.equal(transform.evaluate(images.to(device)).cpu(), transform.evaluate(images))


@pytest.mark.parametrize("head", [MultiClass(), MultiLabel()])
def test_evaluation_moves_examples_to_the_device(device, head):
    torch.manual_seed(0)
    flat = FlatModule(nn.Linear(6, 3))
    features = torch.randn(300, 6)
    labels = torch.randint(2, (300, 3)) if isinstance(head, MultiLabel) else torch.randint(3, (300,))
    here = evaluate(flat, head, flat.vector.clone(), features, labels)
    far = flat.on(device)
    assert evaluate(far, head, far.vector.clone(), features, labels) == here


# -- whole runs ----------------------------------------------------------------------------------------------

ASYNCHRONOUS = {"pace": td.Asynchronous(concurrency=10), "buffer": td.Buffer(staleness_bound=20)}
SYNCHRONOUS = {"pace": td.Synchronous(cohort=5)}
CASES = {
    "fedbuff": (td.FedBuff(), ASYNCHRONOUS),
    "approximation, adam": (
        td.FedBuff(lr=0.02, momentum=td.Approximation(), preconditioner=td.Adam()), ASYNCHRONOUS
    ),
    "light approximation": (td.FedBuff(momentum=td.LightApproximation()), ASYNCHRONOUS),
    "weight_prediction": (td.WeightPrediction(), ASYNCHRONOUS),
    "fedasync": (td.FedAsync(rho=0.1), {"pace": td.Asynchronous(concurrency=10)}),
    "fedac": (td.FedAC(), ASYNCHRONOUS | {"buffer": td.Buffer(size=10)}),
    "masfl": (td.MasFL(beta=0.9, gamma=0.25), ASYNCHRONOUS),
    "adamasfl": (td.AdaMasFL(), ASYNCHRONOUS),
    "ca2fl": (td.CA2FL(), ASYNCHRONOUS),
    "fadas": (td.FADAS(), ASYNCHRONOUS),
    "fedprox": (td.FedProx(), SYNCHRONOUS),
    "fedyogi": (td.FedYogi(), SYNCHRONOUS),
    "scaffold": (td.SCAFFOLD(), SYNCHRONOUS),
}  # fmt: skip


def config(case, **more):
    algorithm, options = CASES[case]
    common = {
        "local": td.Local(batch_size=8, lr=0.02),
        "stop": td.Stop(trips=50),
        "evaluation": td.Evaluation(every_steps=3, held_out=0.2, clients=5, model_average=0.5),
    }
    return td.Config(algorithm=algorithm, **(common | options | more))


@pytest.mark.parametrize("case", CASES)
def test_run_on_the_device_gives_the_same_model(device, case):
    here, there = td.run(config(case)), td.run(config(case, device="cuda"), workers="auto")
    assert there.model_sha256 == here.model_sha256  # the simulated device computes on the CPU
    assert there.history == here.history
    assert all(value.device.type == "cpu" for value in there.model.values())


@pytest.mark.parametrize("kind", ["participation", "local"])
def test_noise_is_added_on_the_device(device, kind):
    privacy = {"kind": kind, "noise_multiplier": 0.1, "noise_from": "seed"}
    if kind == "participation":
        privacy |= {"adaptive": {}}
    here = td.run(config("fedbuff", privacy=privacy))
    there = td.run(config("fedbuff", privacy=privacy, device="cuda"))
    assert there.model_sha256 == here.model_sha256


@pytest.mark.parametrize("case", ["fedbuff", "fedasync", "scaffold"])
def test_several_clients_at_once_train_on_the_device(device, case):
    here = td.run(config(case))
    there = td.run(config(case, device={"kind": "cuda", "clients_at_once": 4}))
    for name, value in here.model.items():
        assert torch.allclose(there.model[name], value, rtol=1e-4, atol=1e-6)


MODELS = {
    "cnn": (td.FedBuffCNN(channels=2, dropout=0), {}),
    "lstm": (td.FedBuffLSTM(vocabulary=20, embedding=3, hidden=4, linear=3, dropout=0), {}),
    "transformer": (
        td.Transformer(layers=1, embedding=4, heads=2, feedforward=6, dropout=0),
        {"head": td.NextToken(pad=0)},
    ),
    "bag": (td.BagOfWords(vocabulary=20, embedding=3), {}),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_every_kind_of_model_trains_on_the_device(device, name):
    model, more = MODELS[name]
    random = torch.Generator().manual_seed(0)

    def examples(n):
        if name == "cnn":
            return torch.rand(n, 3, 8, 8, generator=random), torch.randint(4, (n,), generator=random)
        tokens = torch.randint(20, (n, 7), generator=random)
        return tokens, tokens if more else torch.randint(2, (n,), generator=random)

    clients = {client: examples(6 + client) for client in range(4)}
    given = {"model": model, "clients": clients, "test": examples(20), **more}
    settings = {
        "pace": td.Asynchronous(concurrency=3), "buffer": td.Buffer(size=2), "stop": td.Stop(trips=8),
        "local": td.Local(batch_size=4),
    }  # fmt: skip
    here, there = td.run(**given, **settings), td.run(**given, **settings, device="cuda")
    for part, value in here.model.items():  # torch uses other kernels on the device
        assert torch.allclose(there.model[part], value, rtol=1e-4, atol=1e-6)
    assert there.metrics == pytest.approx(here.metrics, rel=1e-4)


@pytest.mark.parametrize("case", ["approximation, adam", "fedac", "scaffold"])
def test_run_on_the_device_is_resumed_on_the_device(device, case, tmp_path):
    setting = config(case, device="cuda")
    whole = td.run(setting)

    with pytest.raises(KeyboardInterrupt):
        td.run(setting, out=tmp_path / "run", observers=(InterruptAfter(30),))
    resumed = td.run(setting, out=tmp_path / "run", resume=True)
    assert resumed.model_sha256 == whole.model_sha256
    assert resumed.history == whole.history


def test_tensors_that_belong_on_the_cpu_are_restored_on_the_cpu(device):
    setting = config("approximation, adam", device="cuda")
    stopped, resumed = build(setting), build(setting)
    for _, _ in zip(range(30), stopped.engine.run()):
        pass
    tensors, document = stopped.engine.snapshot()
    tensors = {name: tensor.cpu() for name, tensor in tensors.items()}  # as they are read from a file
    resumed.engine.restore(tensors, json.loads(json.dumps(document)))
    before, after = stopped.aggregator.state, resumed.aggregator.state
    places = {name: value.device for name, value in before.items() if isinstance(value, Tensor)}
    assert places == {name: value.device for name, value in after.items() if isinstance(value, Tensor)}
    assert len(set(places.values())) == 2


# -- the setting ---------------------------------------------------------------------------------------------


def test_string_is_short_for_a_device():
    assert td.Config(device="cuda:1").device == Device(kind="cuda:1", clients_at_once=1)
    assert td.Config().device == Device(kind="cpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_error_for_a_missing_device_lists_the_available_ones():
    with pytest.raises(td.ConfigError, match=r"device\.kind: there is no cuda:3 .*; there is cpu$"):
        td.run(config("fedbuff", device="cuda:3"))


@pytest.mark.parametrize(
    ("device", "says"),
    [
        ("gpu", r"device\.kind: must be cpu, cuda, or cuda:1 and so on \(got 'gpu'\)"),
        ({"clients_at_once": 0}, r"device\.clients_at_once: must be greater than 0"),
        ({"number": 1}, r"unknown key 'device\.number'"),
    ],
)
def test_error_for_bad_device_settings_names_the_key(device, says):
    with pytest.raises(td.ConfigError, match=says):
        td.run(device=device)


@pytest.mark.parametrize("workers", [2, "ray"])
def test_workers_are_refused_with_a_device(workers):
    with pytest.raises(td.ConfigError, match=rf"^workers: .* give 0 or 'auto', not {workers!r}$"):
        td.run(config("fedbuff", device={"clients_at_once": 4}), workers=workers)
