"""The models of the papers: numbers of parameters, shapes, and that their loss falls."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass

import pytest
import torch
from pydantic import TypeAdapter, ValidationError
from torch import Tensor, nn

from tardigrad.core.setting_errors import kinds_of
from tardigrad.errors import ConfigError
from tardigrad.learning.flat import FlatModule
from tardigrad.learning.heads import Binary, Head, MultiClass, MultiLabel, NextToken
from tardigrad.learning.models import (
    MLP,
    Architecture,
    BagOfWords,
    CharLSTM,
    FedACCNN,
    FedACMLP,
    FedAsyncCNN,
    FedBuffCNN,
    FedBuffLSTM,
    MasFLCNN,
    Model,
    ResNet18,
    Transformer,
)
from tardigrad.learning.models.transformer import TransformerLayer, positions

PAD = 0


@dataclass(frozen=True)
class Case:
    """A model, and small examples of the shape that it takes."""

    model: Architecture
    shape: tuple[int, ...]
    classes: int
    head: Head
    lr: float = 0.1
    vocabulary: int = 0
    """How many different tokens an example has; 0 for images."""

    def build(self) -> nn.Module:
        torch.manual_seed(7)
        return self.model.build(self.shape, self.classes)

    def batch(self, n: int = 6) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(8)
        labels = torch.randint(0, self.classes, (n,), generator=generator)
        if isinstance(self.head, MultiLabel):
            labels = torch.rand(n, self.classes, generator=generator) < 0.3
        if isinstance(self.head, Binary):
            labels = torch.arange(n) % 2
        if not self.vocabulary:
            return torch.randn(n, *self.shape, generator=generator), labels
        tokens = torch.randint(1, self.vocabulary, (n, self.shape[0] + 1), generator=generator)
        tokens[0, self.shape[0] // 2 :] = PAD
        if isinstance(self.head, NextToken):
            labels = tokens[:, 1:]
        return tokens[:, :-1], labels


CASES = {
    "mlp": Case(MLP(), (1, 8, 8), 10, MultiClass()),
    "fedac_mlp": Case(FedACMLP(), (1, 28, 28), 37, MultiClass()),
    "fedac_cnn": Case(FedACCNN(), (3, 32, 32), 10, MultiClass()),
    "fedbuff_cnn": Case(FedBuffCNN(), (3, 32, 32), 10, MultiClass()),
    "fedbuff_cnn, binary": Case(FedBuffCNN(groups=8), (3, 32, 32), 1, Binary()),
    "fedasync_cnn": Case(FedAsyncCNN(), (3, 24, 24), 10, MultiClass()),
    "fedasync_cnn, as programmed": Case(
        FedAsyncCNN(groups=32, dropout=0.25, hidden=(512,)), (3, 24, 24), 10, MultiClass(), lr=0.02
    ),
    "masfl_cnn": Case(MasFLCNN(), (1, 28, 28), 10, MultiClass()),
    "bag_of_words": Case(BagOfWords(vocabulary=50), (25,), 2, MultiClass(), lr=0.1, vocabulary=50),
    "fedbuff_lstm": Case(FedBuffLSTM(vocabulary=50), (25,), 2, MultiClass(), lr=0.5, vocabulary=50),
    "fedbuff_lstm, binary": Case(FedBuffLSTM(vocabulary=50), (25,), 1, Binary(), lr=0.5, vocabulary=50),
    "char_lstm": Case(CharLSTM(), (12,), 40, MultiClass(), lr=1.0, vocabulary=40),
    "char_lstm, every": Case(CharLSTM(predict="every"), (12,), 40, NextToken(PAD), lr=3.0, vocabulary=40),
    "transformer": Case(Transformer(), (20,), 60, NextToken(PAD), vocabulary=60),
    "resnet18": Case(ResNet18(width=16), (3, 32, 32), 17, MultiLabel()),
}
every_model = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
token_models = [name for name, case in CASES.items() if case.vocabulary]


def parameters(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def test_cases_include_every_model_of_the_config() -> None:
    assert {setting.model_fields["kind"].default for setting in kinds_of(Model)} == {
        getattr(case.model, "kind", "") for case in CASES.values()
    }


def test_name_is_short_for_a_model() -> None:
    model = TypeAdapter(Model)
    assert model.validate_python("char_lstm") == CharLSTM()
    assert model.validate_python({"kind": "resnet18", "width": 16}) == ResNet18(width=16)


@pytest.mark.parametrize(
    ("model", "shape", "classes", "count"),
    [
        # 784 * 100 + 100 + 100 * 10 + 10
        (MLP(hidden=(100,)), (1, 28, 28), 10, 79_510),
        # 78,500 + 100 * 100 + 100 + 100 * 37 + 37: FedAC's count, at 37 labels
        (FedACMLP(), (1, 28, 28), 37, 92_337),
        # 78,500 + 10,100 + 100 * 47 + 47
        (FedACMLP(), (1, 28, 28), 47, 93_347),
        # 64 * 75 + 64, 64 * 1,600 + 64, 1,600 * 384 + 384, 384 * 192 + 192, 192 * 10 + 10:
        # 4,864 + 102,464 + 614,784 + 73,920 + 1,930, one less than FedAC says
        (FedACCNN(), (3, 32, 32), 10, 797_962),
        # as FedAC's text has it: 32 * 75 + 32, 64 * 800 + 64, then as above
        (FedACCNN(channels=(32, 64)), (3, 32, 32), 10, 744_330),
        # 32 * 27 + 32, 3 * (32 * 288 + 32), 4 * 64, and 32 * 3 * 3 = 288 features: 288 * 10 + 10
        (FedBuffCNN(), (3, 32, 32), 10, 31_786),
        # 896 + 27,744 + 256 + 288 * 2 + 2
        (FedBuffCNN(), (3, 32, 32), 2, 29_474),
        # 64 * 27 + 64, 64 * 576 + 64, 128 * 576 + 128, 128 * 1,152 + 128, 128 * 6 * 6 * 10 + 10
        (FedAsyncCNN(), (3, 24, 24), 10, 306_250),
        # 260,160 + 2 * (64 + 64 + 128 + 128) + 4,608 * 512 + 512 + 512 * 10 + 10
        (FedAsyncCNN(groups=32, dropout=0.25, hidden=(512,)), (3, 24, 24), 10, 2_625_866),
        # 16 * 25 + 16, 32 * 400 + 32, 32 * 7 * 7 * 10 + 10
        (MasFLCNN(), (1, 28, 28), 10, 28_938),
        # 10,004 * 300, 4 * 100 * (300 + 100) + 2 * 400, 4 * 100 * (100 + 100) + 2 * 400,
        # 100 * 128 + 128, 128 * 2 + 2: 3,001,200 + 160,800 + 80,800 + 12,928 + 258
        (BagOfWords(), (25,), 1, 500_251),  # 10,004 x 50 + 50 + 1
        (FedBuffLSTM(), (25,), 2, 3_255_986),
        # 90 * 8, 4 * 256 * (8 + 256) + 2 * 1,024, 4 * 256 * (256 + 256) + 2 * 1,024, 256 * 90 + 90
        (CharLSTM(), (80,), 90, 822_570),
        # 10,004 * 96 = 960,384, and in each of three layers 334,176: 96 * 288 + 288, 96 * 96 + 96,
        # 96 * 1,536 + 1,536, 1,536 * 96 + 96, 4 * 96
        (Transformer(), (20,), 10_004, 1_962_912),
        # the well-known 11,689,512 of ResNet-18 with 513 * 17 in the place of 513 * 1,000
        (ResNet18(), (3, 224, 224), 17, 11_185_233),
    ],
    ids=lambda value: getattr(value, "kind", None),
)
def test_number_of_parameters(model: Architecture, shape: tuple[int, ...], classes: int, count: int) -> None:
    assert parameters(model.build(shape, classes)) == count


@every_model
def test_outputs_fit_the_head_and_the_gradient_reaches_every_parameter(case: Case) -> None:
    flat = FlatModule(case.build().train())
    features, labels = case.batch()
    outputs = flat.module(flat.prepared(features))
    wanted = (6, case.shape[0], case.classes) if isinstance(case.head, NextToken) else (6, case.classes)
    assert outputs.shape == wanted
    assert outputs.dtype == torch.float32
    case.head.loss(outputs, labels).backward()
    assert torch.isfinite(flat.gradient).all()
    still = [name for name, slope in zip(flat.names, flat.slopes) if not slope.any()]
    assert still == []


@every_model
def test_the_loss_falls(case: Case) -> None:
    flat = FlatModule(case.build())
    features, labels = case.batch()
    features = flat.prepared(features)

    def loss() -> float:
        flat.module.eval()
        with torch.no_grad():
            return float(case.head.loss(flat.module(features), labels))

    before = loss()
    flat.module.train()
    for _ in range(12):
        flat.gradient.zero_()
        case.head.loss(flat.module(features), labels).backward()
        with torch.no_grad():
            flat.vector.sub_(flat.gradient, alpha=case.lr)
    assert loss() < 0.95 * before


@every_model
def test_initial_model_and_gradient_depend_only_on_the_seed(case: Case) -> None:
    def step() -> tuple[Tensor, Tensor]:
        flat = FlatModule(case.build())
        start = flat.vector.clone()
        features, labels = case.batch()
        torch.manual_seed(9)  # for dropout
        case.head.loss(flat.module.train()(flat.prepared(features)), labels).backward()
        return start, flat.gradient

    (start, gradient), (again, gradient_again) = step(), step()
    assert torch.equal(start, again)
    assert torch.equal(gradient, gradient_again)
    torch.manual_seed(10)
    assert not torch.equal(start, FlatModule(case.model.build(case.shape, case.classes)).vector)


@every_model
def test_output_of_an_example_does_not_depend_on_the_batch(case: Case) -> None:
    module = case.build().eval()
    features, _ = case.batch()
    with torch.inference_mode():
        together = module(features)
        alone = torch.cat([module(one) for one in features.split(1)])
    assert torch.allclose(together, alone, atol=1e-5)


@every_model
def test_all_state_is_parameters_and_passes_through_the_flat_vector(case: Case) -> None:
    module = case.build()
    assert list(module.state_dict()) == [name for name, _ in module.named_parameters()]
    assert not any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in module.modules())
    features, _ = case.batch()
    twin = copy.deepcopy(module)
    flat = FlatModule(module)
    with torch.no_grad():
        flat.vector.mul_(1.5)
    twin.load_state_dict(flat.state_dict(flat.vector))
    with torch.inference_mode():
        assert torch.allclose(module.eval()(features), twin.eval()(features), atol=1e-4)


@pytest.mark.parametrize("kind", ["fedac_cnn", "fedbuff_cnn", "fedasync_cnn", "masfl_cnn", "resnet18"])
@pytest.mark.parametrize("shape", [(20,), (3, 3, 3)])
def test_image_model_refuses_other_shapes(kind: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match=f"'{kind}' needs images"):
        CASES[kind].model.build(shape, 10)


@pytest.mark.parametrize("kind", ["fedbuff_lstm", "char_lstm", "transformer"])
def test_token_model_refuses_images(kind: str) -> None:
    with pytest.raises(ConfigError, match=f"'{kind}' needs sequences of tokens"):
        CASES[kind].model.build((3, 32, 32), 10)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32])
@pytest.mark.parametrize("name", token_models)
def test_tokens_may_be_integers_of_any_size(name: str, dtype: torch.dtype) -> None:
    case = CASES[name]
    flat = FlatModule(case.build().eval())
    features, labels = case.batch()
    gradients = []
    for tokens in (features, features.to(dtype)):
        flat.gradient.zero_()
        case.head.loss(flat.module(tokens), labels).backward()
        gradients.append(flat.gradient.clone())
    assert torch.equal(*gradients)


@pytest.mark.parametrize("name", token_models)
@pytest.mark.parametrize("token", [-1, 60])
def test_error_for_an_unknown_token_names_it(name: str, token: int) -> None:
    case = CASES[name]
    tokens = torch.full((2, *case.shape), token)
    with pytest.raises(
        ConfigError, match=f"knows the tokens 0 to {case.vocabulary - 1}, but the data has {token}"
    ):
        case.build()(tokens)


def test_fedbuff_cnn_has_the_layers_of_the_paper() -> None:
    module = FedBuffCNN().build((3, 32, 32), 10)
    convolutions = [part for part in module.modules() if isinstance(part, nn.Conv2d)]
    assert [(c.kernel_size, c.stride, c.padding) for c in convolutions] == [((3, 3), (1, 1), (2, 2))] * 4
    assert sum(isinstance(part, nn.GroupNorm) for part in module.modules()) == 4
    assert [part.p for part in module.modules() if isinstance(part, nn.Dropout)] == [0.1]


def test_groups_that_do_not_divide_the_channels_are_lowered() -> None:
    module = FedBuffCNN(channels=24, groups=32).build((3, 32, 32), 10)
    assert {part.num_groups for part in module.modules() if isinstance(part, nn.GroupNorm)} == {8}


def test_padding_does_not_change_the_output_of_the_classifier() -> None:
    module = CASES["fedbuff_lstm"].build().eval()
    tokens = torch.tensor([[5, 9, 3, 0, 0], [4, 0, 7, 2, 6], [0, 0, 0, 0, 0]])
    with torch.inference_mode():
        padded, short = module(tokens), module(tokens[:, :3])
        other_end = module(torch.tensor([[5, 9, 4, 0, 0]]))
    assert torch.allclose(padded[0], short[0], atol=1e-6)
    assert not torch.allclose(padded[1], short[1], atol=1e-6)
    assert not torch.allclose(padded[0], other_end[0], atol=1e-6)
    assert torch.isfinite(padded).all()


def test_predict_next_equals_the_last_output_of_predict_every() -> None:
    last, every = CASES["char_lstm"].build().eval(), CASES["char_lstm, every"].build().eval()
    every.load_state_dict(last.state_dict())
    tokens, _ = CASES["char_lstm"].batch()
    with torch.inference_mode():
        assert torch.allclose(last(tokens), every(tokens)[:, -1], atol=1e-6)
        before = every(tokens)
        tokens[:, 6:] = 1
        assert torch.allclose(before[:, :6], every(tokens)[:, :6], atol=1e-6)


@pytest.mark.parametrize("train", [False, True])
def test_given_vectors_replace_the_embedding(train: bool) -> None:
    vectors = torch.randn(50, 300, dtype=torch.float64)
    module = FedBuffLSTM(train_vectors=train).build((25,), 2, vectors)
    flat = FlatModule(module)
    # 3,255,986 - 10,004 * 300, and 50 * 300 if they are trained
    assert flat.vector.numel() == 254_786 + (15_000 if train else 0)
    features, labels = CASES["fedbuff_lstm"].batch()
    MultiClass().loss(module(features), labels).backward()
    with torch.no_grad():
        flat.vector.sub_(flat.gradient)
    state = flat.state_dict(flat.vector)["tokens.weight"]
    assert torch.equal(state, vectors.float()) != train


def test_transformer_output_does_not_depend_on_later_tokens() -> None:
    module = CASES["transformer"].build().eval()
    tokens = torch.arange(1, 21)[None]
    later = tokens.clone()
    later[:, 12:] = 7
    with torch.inference_mode():
        outputs = module(tokens)
        assert torch.allclose(outputs[:, :12], module(later)[:, :12], atol=1e-5)
        assert not torch.allclose(outputs[:, 12:], module(later)[:, 12:], atol=1e-3)
        assert torch.allclose(outputs[:, :9], module(tokens[:, :9]), atol=1e-5)


def test_transformer_output_depends_on_the_order_of_tokens() -> None:
    torch.manual_seed(0)
    module = Transformer(layers=1).build((6,), 30).eval()  # more layers would see the order without positions
    with torch.inference_mode():
        outputs = module(torch.tensor([[1, 2, 3, 4], [3, 2, 1, 4]]))
    assert not torch.allclose(outputs[0, 3], outputs[1, 3], atol=1e-3)
    place = positions(6, 10)
    assert place[4, 6].item() == pytest.approx(math.sin(4 / 10_000**0.6), rel=1e-5)
    assert place[4, 7].item() == pytest.approx(math.cos(4 / 10_000**0.6), rel=1e-5)


def test_transformer_layer_equals_that_of_pytorch() -> None:
    torch.manual_seed(0)
    ours, theirs = (
        TransformerLayer(24, 4, 40, 0.1).eval(),
        nn.TransformerEncoderLayer(24, 4, 40, batch_first=True).eval(),
    )
    names = {
        "project.weight": "self_attn.in_proj_weight",
        "project.bias": "self_attn.in_proj_bias",
        "attend.0.weight": "self_attn.out_proj.weight",
        "attend.0.bias": "self_attn.out_proj.bias",
        "first_norm.weight": "norm1.weight",
        "first_norm.bias": "norm1.bias",
        "feed.0.weight": "linear1.weight",
        "feed.0.bias": "linear1.bias",
        "feed.2.weight": "linear2.weight",
        "feed.2.bias": "linear2.bias",
        "second_norm.weight": "norm2.weight",
        "second_norm.bias": "norm2.bias",
    }
    state = {name: value + 0.1 * torch.randn_like(value) for name, value in ours.state_dict().items()}
    ours.load_state_dict(state)
    theirs.load_state_dict({names[name]: value for name, value in state.items()})
    x = torch.randn(3, 7, 24)
    mask = nn.Transformer.generate_square_subsequent_mask(7)
    with torch.no_grad():
        assert torch.allclose(ours(x), theirs(x, src_mask=mask, is_causal=True), atol=1e-5)


def test_heads_must_divide_the_width() -> None:
    with pytest.raises(ValidationError, match=r"embedding \(96\) must be a multiple of heads \(7\)"):
        Transformer(heads=7)


def test_resnet_halves_the_image_five_times() -> None:
    module = ResNet18(width=8).build((3, 224, 224), 17)
    assert isinstance(module, nn.Sequential)
    with torch.inference_mode():
        assert module[:-3](torch.randn(1, 3, 224, 224)).shape == (1, 64, 7, 7)
        assert module(torch.randn(1, 3, 65, 97)).shape == (1, 17)
