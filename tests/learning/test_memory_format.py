"""Channels last where it works, contiguous tensors where it does not."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import tardigrad as td
from ordinary_modules import CASES, module_of
from tardigrad.learning.flat import FlatModule
from tardigrad.learning.gradient import Gradient
from tardigrad.learning.head import MultiClass
from tardigrad.learning.memory_format import choose_memory_format

X, Y = CASES["view of large maps"].draw(6, torch.Generator().manual_seed(0))


class Flatten(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.dropout, self.out = nn.Conv2d(3, 5, 3), nn.Dropout(0.5), nn.Linear(5 * 36, 4)

    def forward(self, x):
        return self.out(self.dropout(self.conv(x).relu()).flatten(1))


class ViewInTraining(Flatten):
    def forward(self, x):
        x = self.conv(x).relu()
        return self.out(x.view(len(x), -1) if self.training else x.flatten(1))


class ViewOfWeights(Flatten):
    """Standardised weights: a view of the parameter, and not of an output."""

    def forward(self, x):
        w = self.conv.weight
        scale = w.view(len(w), -1).norm(dim=1)
        return self.out((F.conv2d(x, w, self.conv.bias) / scale[:, None, None]).flatten(1))


class OrderOfMemory(Flatten):
    """Depends on the order in memory, without an error."""

    def forward(self, x):
        x = self.conv(x).relu()
        return self.out(torch.as_strided(x, (len(x), 180), (180, 1)))


def chosen(make):
    torch.manual_seed(1)
    flat = FlatModule(make())
    before = flat.vector.clone()
    state = torch.random.get_rng_state()
    choose_memory_format(flat, MultiClass(), X, Y)
    assert torch.equal(flat.vector, before)
    assert torch.equal(torch.random.get_rng_state(), state)
    return flat


def test_module_that_works_with_channels_last_keeps_it():
    flat = chosen(Flatten)
    assert not flat.contiguous
    assert flat.prepared(X).is_contiguous(memory_format=torch.channels_last)
    assert flat.module.conv.weight.data_ptr() == flat.vector.data_ptr()


@pytest.mark.parametrize(
    "make", [CASES["view of large maps"].make, ViewInTraining, ViewOfWeights, OrderOfMemory]
)
def test_module_that_does_not_gets_contiguous_tensors_and_the_gradient_of_plain_torch(make):
    flat = chosen(make)
    assert flat.contiguous
    assert flat.prepared(X) is X
    torch.manual_seed(1)
    plain = make()
    flat.train()
    loss = Gradient(flat, MultiClass())(X, Y)
    expected = F.cross_entropy(plain(X), Y)
    expected.backward()
    assert loss == pytest.approx(expected.item())
    for slope, p in zip(flat.slopes, plain.parameters()):
        torch.testing.assert_close(slope, p.grad)
    with torch.no_grad():
        flat.vector.mul_(0.5)
        for p in plain.parameters():
            p.mul_(0.5)
    again = Gradient(flat, MultiClass())(X, Y)
    assert again == pytest.approx(F.cross_entropy(plain(X), Y).item()), "the copies follow the vector"


def test_order_of_the_vector_does_not_depend_on_the_format():
    torch.manual_seed(1)
    module = Flatten()
    expected = {name: value.clone() for name, value in module.state_dict().items()}
    flat = FlatModule(module)
    before = flat.vector.clone()
    flat.use_contiguous(True)
    assert torch.equal(flat.vector, before)
    for name, value in flat.state_dict(flat.vector).items():
        assert torch.equal(value, expected[name])
    flat.use_contiguous(False)
    assert flat.module.conv.weight.data_ptr() == flat.vector.data_ptr()


def test_module_that_fits_neither_way_is_refused_with_its_own_error():
    clients = {"ann": (X, Y)}
    module = nn.Sequential(nn.Conv2d(3, 5, 3), nn.Flatten(), nn.Linear(7, 4))
    with pytest.raises(td.ConfigError, match=r"^model: it does not fit the data, .*RuntimeError"):
        td.run(model=module, clients=clients, stop=td.Stop(trips=20))
    assert module_of(CASES["view of large maps"])(X).shape == (6, 4)
