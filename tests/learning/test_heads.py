"""Heads against independent computations in NumPy and scikit-learn."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics as sk
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from tardigrad.errors import ConfigError
from tardigrad.learning.heads import (
    BUILT_IN,
    Binary,
    Head,
    MultiClass,
    MultiLabel,
    NextToken,
    average_precision,
)

PAD, UNKNOWN, END = 0, 1, 2


def classes(n: int = 23) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(n, 5, generator=generator) * 3, torch.randint(0, 5, (n,), generator=generator)


def answers(n: int = 23) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2)
    return torch.randn(n, generator=generator), torch.randint(0, 2, (n,), generator=generator)


def labels_of_each(n: int = 23) -> tuple[Tensor, Tensor]:
    """Six classes; the last never occurs, and coarse scores have many ties."""
    generator = torch.Generator().manual_seed(3)
    scores = (torch.randn(n, 6, generator=generator) * 2).round() / 2
    truth = torch.rand(n, 6, generator=generator) < torch.tensor([0.5, 0.3, 0.1, 0.9, 0.2, 0.0])
    truth[0] = torch.tensor([1, 1, 1, 1, 1, 0]).bool()
    return scores, truth.to(torch.uint8)


def sentences(n: int = 23, length: int = 7, vocabulary: int = 11) -> tuple[Tensor, Tensor]:
    """Padded at the end, each to its own length; one is nothing but padding."""
    generator = torch.Generator().manual_seed(4)
    words = torch.randint(1, vocabulary, (n, length), generator=generator)
    lengths = torch.randint(0, length + 1, (n, 1), generator=generator)
    lengths[3] = 0
    words[torch.arange(length) >= lengths] = PAD
    return torch.randn(n, length, vocabulary, generator=generator) * 3, words


CASES: dict[str, tuple[Head, Callable[[], tuple[Tensor, Tensor]]]] = {
    "multi-class": (MultiClass(), classes),
    "binary": (Binary(), answers),
    "multi-label": (MultiLabel(), labels_of_each),
    "next token": (NextToken(PAD, ignore=[UNKNOWN], unscored=[END]), sentences),
}


@pytest.mark.parametrize("case", CASES)
def test_a_head_declares_the_names_of_its_metrics(case: str) -> None:
    head, examples = CASES[case]
    assert set(head.metrics([examples()])) == set(head.names)
    assert type(head) in BUILT_IN


def log_softmax(scores: np.ndarray) -> np.ndarray:
    scores = scores.astype(np.float64)
    return scores - np.log(np.exp(scores).sum(axis=-1, keepdims=True))


@pytest.mark.parametrize("sizes", [(1,) * 23, (5, 1, 10, 7), (22, 1), (8, 8, 7)])
@pytest.mark.parametrize("case", CASES)
def test_metrics_do_not_depend_on_the_batches(case: str, sizes: tuple[int, ...]) -> None:
    head, make = CASES[case]
    scores, labels = make()
    whole = head.metrics([(scores, labels)])
    parts = head.metrics(zip(scores.split(sizes), labels.split(sizes)))
    assert parts.keys() == whole.keys() >= {"loss", head.main}
    assert parts == pytest.approx(whole, rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32, torch.int64])
@pytest.mark.parametrize("case", CASES)
def test_labels_may_be_integers_of_any_size(case: str, dtype: torch.dtype) -> None:
    head, make = CASES[case]
    scores, labels = make()
    assert head.loss(scores, labels.to(dtype)) == head.loss(scores, labels.long())
    assert head.metrics([(scores, labels.to(dtype))]) == head.metrics([(scores, labels.long())])


@pytest.mark.parametrize("case", CASES)
def test_loss_traced_on_one_batch_is_right_on_another(case: str) -> None:
    # training runs the traced graph on every batch of the same shape: no branch may depend on the values
    head, make = CASES[case]
    scores, labels = make()
    graph = make_fx(lambda x, y: head.loss(x, y))(scores, labels)
    other, shuffled = scores.flip(0) * 0.5, labels.roll(5, 0)
    shuffled[:10] = 0
    assert graph(other, shuffled) == head.loss(other, shuffled)


@pytest.mark.parametrize(
    ("head", "outputs", "labels", "hint"),
    [
        (MultiClass(), (4, 7, 9), (4,), "predict = 'next'"),
        (Binary(), (4, 2), (4,), "one score an example"),
        (MultiLabel(), (4, 3), (4,), "one score a class"),
        (NextToken(PAD), (4, 9), (4, 7), "predict = 'every'"),
        (NextToken(PAD), (4, 9), (4,), None),
    ],
)
def test_outputs_that_do_not_fit_the_labels_are_refused(
    head: Head, outputs: tuple[int, ...], labels: tuple[int, ...], hint: str | None
) -> None:
    scores, wanted = torch.zeros(outputs), torch.ones(labels, dtype=torch.long)
    for call in (lambda: head.loss(scores, wanted), lambda: head.metrics([(scores, wanted)])):
        if hint is None:
            call()
        else:
            with pytest.raises(ConfigError, match=hint):
                call()


def test_multi_class_metrics_equal_numpy_and_scikit_learn() -> None:
    scores, labels = classes()
    logs = log_softmax(scores.numpy())
    expected = -logs[np.arange(23), labels.numpy()].mean()
    got = MultiClass().metrics([(scores, labels)])
    assert got["loss"] == pytest.approx(expected, rel=1e-6)
    assert float(MultiClass().loss(scores, labels)) == pytest.approx(expected, rel=1e-6)
    assert got["accuracy"] == sk.accuracy_score(labels, logs.argmax(axis=1))


@pytest.mark.parametrize("shape", [(23,), (23, 1)])
def test_binary_metrics_equal_numpy_and_scikit_learn(shape: tuple[int, ...]) -> None:
    scores, labels = answers()
    chances = 1 / (1 + np.exp(-scores.numpy().astype(np.float64)))
    expected = sk.log_loss(labels, chances)
    got = Binary().metrics([(scores.view(shape), labels)])
    assert got == pytest.approx(
        {"loss": expected, "accuracy": sk.accuracy_score(labels, chances > 0.5)}, rel=1e-6
    )
    assert float(Binary().loss(scores.view(shape), labels)) == pytest.approx(expected, rel=1e-6)


def test_multi_label_metrics_equal_numpy_and_scikit_learn() -> None:
    scores, labels = labels_of_each()
    truth, chances = labels.numpy(), 1 / (1 + np.exp(-scores.numpy().astype(np.float64)))
    expected_loss = -np.where(truth, np.log(chances), np.log1p(-chances)).mean()
    expected_ap = sk.average_precision_score(truth[:, :5], scores.numpy()[:, :5], average="macro")
    got = MultiLabel().metrics([(scores, labels)])
    assert got["loss"] == pytest.approx(expected_loss, rel=1e-6)
    assert float(MultiLabel().loss(scores, labels)) == pytest.approx(expected_loss, rel=1e-6)
    assert got["macro_ap"] == pytest.approx(expected_ap, rel=1e-12)
    assert got["accuracy"] == got["macro_ap"]
    assert got["label_accuracy"] == ((scores.numpy() > 0) == truth).mean()


def test_macro_ap_without_any_label_is_zero() -> None:
    got = MultiLabel().metrics([(torch.randn(4, 3), torch.zeros(4, 3))])
    assert got["macro_ap"] == 0
    assert all(math.isfinite(value) for value in got.values())


@given(st.lists(st.tuples(st.integers(-3, 3), st.booleans()), min_size=1, max_size=30))
def test_average_precision_equals_scikit_learn_with_ties(rows: list[tuple[int, bool]]) -> None:
    scores, labels = np.array([s for s, _ in rows], dtype=np.float32), np.array([label for _, label in rows])
    if labels.any():
        expected = sk.average_precision_score(labels, scores)
        assert average_precision(scores, labels) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("ignore", "unscored", "in_loss", "in_metrics"),
    [
        ((), (), {PAD}, {PAD}),
        ((UNKNOWN, END), (), {PAD, UNKNOWN, END}, {PAD, UNKNOWN, END}),
        ((), (UNKNOWN, END), {PAD}, {PAD, UNKNOWN, END}),
        ((UNKNOWN,), (END,), {PAD, UNKNOWN}, {PAD, UNKNOWN, END}),
    ],
)
def test_next_token_metrics_leave_out_ignored_and_unscored_tokens(
    ignore: tuple[int, ...], unscored: tuple[int, ...], in_loss: set[int], in_metrics: set[int]
) -> None:
    scores, labels = sentences()
    head = NextToken(PAD, ignore, unscored)
    logs, truth = log_softmax(scores.numpy()), labels.numpy()

    def over(left_out: set[int]) -> tuple[float, float]:
        losses, right = [], []
        for i, j in np.ndindex(truth.shape):
            if truth[i, j] not in left_out:
                losses.append(-logs[i, j, truth[i, j]])
                right.append(logs[i, j].argmax() == truth[i, j])
        return float(np.mean(losses)), float(np.mean(right))

    assert float(head.loss(scores, labels)) == pytest.approx(over(in_loss)[0], rel=1e-6)
    loss, accuracy = over(in_metrics)
    assert head.metrics([(scores, labels)]) == pytest.approx(
        {"loss": loss, "accuracy": accuracy, "perplexity": math.exp(loss)}, rel=1e-5
    )


def test_next_token_takes_any_number_as_padding() -> None:
    scores, labels = sentences()
    shifted = labels.clone()
    shifted[labels == PAD] = -1
    assert NextToken(-1).loss(scores, shifted) == NextToken(PAD).loss(scores, labels)


@pytest.mark.parametrize("token", [PAD, UNKNOWN])
def test_minibatch_of_padding_has_zero_loss_and_gradient(token: int) -> None:
    head = NextToken(PAD, ignore=[UNKNOWN])
    scores = torch.randn(3, 4, 11, requires_grad=True)
    labels = torch.full((3, 4), token)
    loss = head.loss(scores, labels)
    loss.backward()
    assert loss.item() == 0
    assert torch.equal(scores.grad, torch.zeros_like(scores))  # type: ignore[arg-type]
    assert head.metrics([(scores.detach(), labels)]) == {"loss": 0.0, "accuracy": 0.0, "perplexity": 1.0}


def test_perplexity_is_finite_for_large_losses_and_nan_for_a_diverged_model() -> None:
    labels = torch.ones(1, 1, dtype=torch.long)
    assert math.isfinite(NextToken(PAD).metrics([(torch.tensor([[[1e5, 0.0]]]), labels)])["perplexity"])
    assert math.isnan(NextToken(PAD).metrics([(torch.tensor([[[math.nan, 0.0]]]), labels)])["perplexity"])
