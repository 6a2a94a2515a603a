"""Modules that are stored in one flat vector."""

import pytest
import torch
from torch import nn

import tardigrad as td
from tardigrad.errors import ConfigError, RunError
from tardigrad.learning.flat import PERSONAL, FlatModule
from tardigrad.learning.models import MLP, FedACCNN, FedAsyncCNN, FedBuffCNN

SHAPES = {"mlp": (1, 8, 8), "fedac_cnn": (3, 16, 16), "fedbuff_cnn": (3, 8, 8), "fedasync_cnn": (1, 8, 8)}
MODELS = [
    MLP(hidden=(5, 3)),
    FedACCNN(channels=(4, 4), hidden=(6,)),
    FedBuffCNN(channels=8),
    FedAsyncCNN(channels=2),
]


def built(model):
    torch.manual_seed(0)
    return model.build(SHAPES[model.kind], 10)


def images(model, n=3):
    return torch.randn(n, *SHAPES[model.kind], generator=torch.Generator().manual_seed(1))


def test_vector_has_the_parameters_in_the_order_of_the_module():
    module = nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.Linear(2, 1))
    expected = nn.utils.parameters_to_vector(module.parameters()).detach().clone()
    flat = FlatModule(module)
    assert torch.equal(flat.vector, expected)
    assert flat.vector.is_contiguous()
    assert flat.names == ["0.weight", "0.bias", "2.weight", "2.bias"]


@pytest.mark.parametrize("model", MODELS, ids=lambda m: m.kind)
def test_flattening_does_not_change_the_output_of_the_module(model):
    x = images(model)
    expected = built(model).eval()(x)
    flat = FlatModule(built(model))
    assert torch.allclose(flat.module.eval()(x), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("model", MODELS, ids=lambda m: m.kind)
def test_parameters_and_gradients_are_views_into_the_vectors(model):
    flat = FlatModule(built(model))
    with torch.no_grad():
        flat.vector.zero_()
    assert all((p == 0).all() for p in flat.module.parameters())
    with torch.no_grad():
        flat.vector.copy_(torch.arange(flat.vector.numel()))
    seen = torch.cat([p.detach().reshape(-1) for p in flat.module.parameters()])
    assert torch.equal(seen.sort().values, flat.vector)
    flat = FlatModule(built(model))
    flat.module(images(model)).square().sum().backward()
    gradients = [p.grad.detach().reshape(-1) for p in flat.module.parameters()]
    assert torch.equal(torch.cat(gradients).sort().values, flat.gradient.sort().values)
    assert (flat.gradient != 0).any()
    flat.gradient.zero_()
    assert all((p.grad == 0).all() for p in flat.module.parameters())


@pytest.mark.parametrize("model", MODELS, ids=lambda m: m.kind)
def test_state_dict_loads_into_a_fresh_module(model):
    flat = FlatModule(built(model))
    vector = torch.randn(flat.vector.numel(), generator=torch.Generator().manual_seed(2)) / 10
    state = flat.state_dict(vector)
    fresh = model.build(SHAPES[model.kind], 10)
    fresh.load_state_dict(state, strict=True)
    with torch.no_grad():
        flat.vector.copy_(vector)
    x = images(model)
    assert torch.allclose(fresh.eval()(x), flat.module.eval()(x), rtol=1e-5, atol=1e-6)
    for value in state.values():
        assert value.is_contiguous()
        assert value.data_ptr() != vector.data_ptr()


def test_state_dict_is_a_copy():
    flat = FlatModule(nn.Linear(2, 1))
    vector = torch.tensor([1.0, 2.0, 3.0])
    state = flat.state_dict(vector)
    with torch.no_grad():
        vector.zero_()
        flat.vector.zero_()
    assert state["weight"].tolist() == [[1.0, 2.0]]
    assert state["bias"].tolist() == [3.0]


def test_state_dict_has_the_values_of_the_given_vector():
    flat = FlatModule(nn.Linear(2, 1))
    with torch.no_grad():
        flat.vector.fill_(9.0)
    assert flat.state_dict(torch.zeros(3))["bias"].tolist() == [0.0]
    assert (flat.vector == 9.0).all()


def test_frozen_parameters_and_buffers_are_in_the_state_but_not_in_the_vector():
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    module[0].weight.requires_grad_(False)
    module.register_buffer("scale", torch.tensor([7.0]))
    frozen = module[0].weight.clone()
    flat = FlatModule(module)
    assert flat.names == ["0.bias", "1.weight", "1.bias"]
    assert flat.vector.numel() == 5
    state = flat.state_dict(torch.zeros(5))
    assert torch.equal(state["0.weight"], frozen)
    assert state["scale"].tolist() == [7.0]


class Tied(nn.Module):
    """One matrix is both the embedding and the output layer."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(5, 3)
        self.out = nn.Linear(3, 5, bias=False)
        self.out.weight = self.embedding.weight

    def forward(self, words):
        return self.out(self.embedding(words))


def test_tied_parameter_is_in_the_vector_once():
    flat = FlatModule(Tied())
    assert flat.vector.numel() == 15
    with torch.no_grad():
        flat.vector.fill_(2.0)
    assert (flat.module(torch.tensor([0])) == 12.0).all()


def test_state_dict_has_both_names_of_a_tied_parameter():
    flat = FlatModule(Tied())
    vector = torch.full((15,), 2.0)
    state = flat.state_dict(vector)
    fresh = Tied()
    fresh.load_state_dict(state, strict=True)
    assert (fresh(torch.tensor([0])) == 12.0).all()


# -- modules that are refused ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("norm", "called"),
    [
        (nn.BatchNorm1d(4), "BatchNorm1d"),
        (nn.BatchNorm2d(4), "BatchNorm2d"),
        (nn.BatchNorm3d(4), "BatchNorm3d"),
    ],
)
def test_batch_norm_is_refused_by_name(norm, called):
    with pytest.raises(ConfigError, match=rf"^model: 1 is {called}, whose running statistics") as caught:
        FlatModule(nn.Sequential(nn.Linear(2, 4), norm))
    assert "GroupNorm" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_module_that_is_itself_a_batch_norm_is_refused():
    with pytest.raises(ConfigError, match="the module is BatchNorm1d"):
        FlatModule(nn.BatchNorm1d(4))


@pytest.mark.parametrize(
    "norm",
    [nn.BatchNorm1d(4, track_running_stats=False), nn.GroupNorm(2, 4), nn.LayerNorm(4), nn.InstanceNorm1d(4)],
)
def test_norms_without_running_statistics_are_accepted(norm):
    FlatModule(nn.Sequential(nn.Linear(2, 4), norm))


def test_instance_norm_with_running_statistics_is_refused():
    with pytest.raises(ConfigError, match="model: 1 is InstanceNorm1d"):
        FlatModule(nn.Sequential(nn.Linear(2, 4), nn.InstanceNorm1d(4, track_running_stats=True)))


def test_module_without_parameters_is_refused():
    with pytest.raises(ConfigError, match=r"^model: the module has no parameters to train"):
        FlatModule(nn.ReLU())


def test_parameters_of_different_dtypes_are_refused():
    with pytest.raises(ConfigError, match=r"^model: all parameters must have one dtype"):
        FlatModule(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double()))


def test_double_precision_is_kept():
    flat = FlatModule(nn.Linear(2, 1).double())
    assert flat.vector.dtype == flat.gradient.dtype == torch.float64


class Buffered(nn.Module):
    """Makes, replaces and enlarges its buffers, as modules with caches do."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.register_buffer("mask", torch.ones(1, 4).expand(2, 4))
        self.register_buffer("calls", torch.zeros(1))
        self.register_buffer("cache", torch.ones(1, 4))
        self.late = None

    def forward(self, x):
        self.calls = self.calls + 1
        if len(self.cache) < len(x):
            self.cache = torch.ones(len(x), 4)
        if self.late is None:
            self.late = torch.ones(1)
        return self.layer(x * self.mask[0] * self.cache[: len(x)]) * self.late

    def get_extra_state(self):
        return {"not": "a tensor"}

    def set_extra_state(self, state):
        pass


def test_module_that_replaces_its_buffers_is_trained_and_they_begin_anew():
    clients = {name: (torch.randn(9, 4), torch.randint(0, 3, (9,))) for name in "ab"}
    result = td.run(
        model=Buffered(), clients=clients, stop=td.Stop(trips=4), pace=td.Asynchronous(concurrency=2),
        buffer=td.Buffer(size=2), evaluation=td.Evaluation(every_steps=1, held_out=0.3),
    )  # fmt: skip
    assert result.model["calls"].item() == 0
    assert result.model["cache"].shape == (1, 4)
    assert "_extra_state" not in result.model


class TiedPair(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(2, 2), nn.Linear(2, 2)
        self.b.weight = self.a.weight


def test_personal_pattern_of_another_name_of_a_shared_parameter_is_refused():
    with pytest.raises(ConfigError, match=r"^local.personal: b.weight is the same parameter as a.weight"):
        FlatModule(TiedPair(), ["b.*"])
    assert FlatModule(TiedPair(), ["a.*"]).shared_shapes == [(2,)]


def test_lazy_and_sparse_modules_are_refused():
    with pytest.raises(ConfigError, match=r"^model: it has lazy layers"):
        FlatModule(nn.LazyLinear(2))
    module = nn.Linear(2, 2)
    module.register_buffer("graph", torch.eye(2).to_sparse())
    with pytest.raises(ConfigError, match=r"^model: graph is a sparse tensor"):
        FlatModule(module)


def test_memory_of_another_model_is_refused():
    flat = FlatModule(nn.Linear(3, 2), ["bias"])
    with pytest.raises(RunError, match="is of another model"), torch.no_grad():
        flat.load(flat.shared.clone(), {PERSONAL: torch.zeros(1)})
