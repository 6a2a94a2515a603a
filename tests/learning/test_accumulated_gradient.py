"""Accumulated gradients against the gradient of all examples at once."""

import pytest
import torch
from torch import nn

from tardigrad.learning.accumulated_gradient import AccumulatedGradient
from tardigrad.learning.flat import FlatModule
from tardigrad.learning.gradient import Gradient
from tardigrad.learning.heads import MultiClass


def flat_module(dtype):
    torch.manual_seed(0)
    return FlatModule(nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)).to(dtype))


@pytest.mark.parametrize(("batch_size", "minibatches"), [(3, [3, 3, 3, 1]), (5, [5, 5]), (16, [10])])
def test_result_is_the_gradient_of_all_examples(batch_size, minibatches):
    flat = flat_module(torch.float64)
    x, y = torch.randn(10, 5, dtype=torch.float64), torch.arange(10) % 3
    gradient = Gradient(flat, MultiClass())
    expected_loss, expected = gradient(x, y), flat.gradient.clone()
    sizes = []

    def counting(features, labels):
        sizes.append(len(labels))
        return gradient(features, labels)

    loss = AccumulatedGradient(counting, flat, batch_size)(x, y)
    assert sizes == minibatches
    assert loss == pytest.approx(expected_loss, rel=1e-12)
    assert torch.allclose(flat.gradient, expected, rtol=1e-12, atol=1e-14)


def test_short_floats_are_summed_in_float32():
    # 512 gradients of 1/512: summed in bfloat16, they would stop growing at 1/4
    class Line(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.zeros(1, dtype=torch.bfloat16))

        def forward(self, x):
            return x * self.w

    class Sum(MultiClass):
        def loss(self, outputs, labels):
            return outputs.mean()

    flat = FlatModule(Line())
    accumulated = AccumulatedGradient(Gradient(flat, Sum()), flat, 1)
    accumulated(torch.ones(512, 1, dtype=torch.bfloat16), torch.zeros(512))
    assert flat.gradient.item() == pytest.approx(1.0, rel=0.01)
