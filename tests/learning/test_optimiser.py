"""Client optimisers against torch.optim, step by step on the same gradients."""

import pytest
import torch
from pydantic import TypeAdapter, ValidationError

import tardigrad as td
from tardigrad.learning.optimiser import ClientOptimiser

SIZE = 40
LR = 0.05


def sgd(parameter, weight_decay, **more):
    return torch.optim.SGD([parameter], lr=LR, weight_decay=weight_decay, **more)


def adamw(parameter, weight_decay, **more):
    return torch.optim.AdamW([parameter], lr=LR, weight_decay=weight_decay, **more)


CASES = {
    "sgd": (td.LocalSGD(), sgd, {}),
    "momentum": (td.LocalMomentum(), sgd, {"momentum": 0.9}),
    "momentum, beta 0.5": (td.LocalMomentum(beta=0.5), sgd, {"momentum": 0.5}),
    "momentum, nesterov": (td.LocalMomentum(nesterov=True), sgd, {"momentum": 0.9, "nesterov": True}),
    "adamw": (td.AdamW(), adamw, {}),
    "adamw, other settings": (
        td.AdamW(betas=(0.5, 0.8), eps=1e-3), adamw, {"betas": (0.5, 0.8), "eps": 1e-3},
    ),
}  # fmt: skip
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-6}


def gradients(dtype, steps=12):
    random = torch.Generator().manual_seed(1)
    return [torch.randn(SIZE, generator=random, dtype=torch.float64).to(dtype) for _ in range(steps)]


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("case", CASES)
def test_every_step_is_that_of_torch_optim(case, dtype):
    ours, theirs, settings = CASES[case]
    parameter = torch.nn.Parameter(torch.linspace(-1, 1, SIZE, dtype=dtype))
    reference = theirs(parameter, 0.0, **settings)
    x = parameter.detach().clone()
    state = ours.begin(x)
    for gradient in gradients(dtype):
        before = gradient.clone()
        ours.move(state, x, gradient, LR)
        assert torch.equal(gradient, before)
        parameter.grad = gradient
        reference.step()
        assert torch.allclose(x, parameter, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.mark.parametrize("case", [case for case in CASES if case != "sgd"])
def test_state_of_a_short_float_model_is_float32(case):
    ours, *_ = CASES[case]
    x, wide = (torch.linspace(-1, 1, SIZE, dtype=dtype) for dtype in (torch.bfloat16, torch.float32))
    state, wide_state = ours.begin(x), ours.begin(wide)
    for gradient in gradients(torch.bfloat16, steps=3):
        ours.move(state, x, gradient, LR)
        ours.move(wide_state, wide, gradient.float(), LR)
    assert x.dtype == torch.bfloat16
    for name, value in wide_state.items():
        assert state[name].dtype == value.dtype
        assert torch.equal(state[name], value), name  # the gradients were the same
    assert torch.allclose(x.float(), wide, atol=0.02)


def test_kept_vectors_are_counted_only_if_they_are_kept():
    assert [kind().kept_vectors for kind in (td.LocalSGD, td.LocalMomentum, td.AdamW)] == [0, 0, 0]
    assert [kind(keep=True).kept_vectors for kind in (td.LocalMomentum, td.AdamW)] == [1, 2]
    for optimiser in (td.LocalMomentum(keep=True), td.AdamW(keep=True)):
        vectors = [v for v in optimiser.begin(torch.zeros(SIZE)).values() if len(v) == SIZE]
        assert len(vectors) == optimiser.kept_vectors


def test_a_kind_can_be_given_by_its_name():
    adapter = TypeAdapter(ClientOptimiser)
    assert adapter.validate_python("adamw") == td.AdamW()
    assert adapter.validate_python({"kind": "momentum", "beta": 0.5}) == td.LocalMomentum(beta=0.5)


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ("adam", "adamw"),
        ({"kind": "momentum", "beta": 1.0}, "momentum.beta"),
        ({"kind": "adamw", "betas": [0.9, 1.0]}, "adamw.betas.1"),
        ({"kind": "adamw", "betas": [0.9]}, "adamw.betas"),
        ({"kind": "adamw", "eps": 0}, "adamw.eps"),
        ({"kind": "sgd", "keep": True}, "sgd.keep"),
    ],
)
def test_error_for_a_bad_optimiser_names_the_key(bad, says):
    with pytest.raises(ValidationError, match=says):
        td.Local(optimiser=bad)
