"""Metrics by name against scikit-learn's own functions and against counts that are written out."""

import math

import numpy as np
import pytest
import torch
from sklearn import metrics as sk

import tardigrad as td
from tardigrad.learning.heads.named_metrics import BY_TASK, NamedMetrics, check_names

GENERATOR = torch.Generator().manual_seed(7)
SCORES = (torch.randn(60, 7, generator=GENERATOR) * 2).round() / 2  # with ties
CLASSES = torch.randint(7, (60,), generator=GENERATOR)
LOGITS, ANSWERS = torch.randn(60, generator=GENERATOR), torch.randint(2, (60,), generator=GENERATOR)
MANY = (torch.rand(60, 7, generator=GENERATOR) < 0.3).long()


def found(head, names, outputs, labels, sizes=(10, 1, 49)):
    named = NamedMetrics(names, head)
    head.metrics(named.watch(zip(outputs.split(sizes), labels.split(sizes))))
    return named.result(), named.undefined


def test_binary_metrics_are_scikit_learns():
    got, undefined = found(td.Binary(), BY_TASK["binary"], LOGITS[:, None], ANSWERS)
    decided = LOGITS.numpy() > 0
    assert got == pytest.approx(
        {
            "balanced_accuracy": sk.balanced_accuracy_score(ANSWERS, decided),
            "f1": sk.f1_score(ANSWERS, decided),
            "auc": sk.roc_auc_score(ANSWERS, LOGITS),
            "average_precision": sk.average_precision_score(ANSWERS, LOGITS),
        }
    )
    assert undefined == {}


def test_multiclass_metrics_are_scikit_learns():
    got, _ = found(td.MultiClass(), (*BY_TASK["multiclass"], "top2"), SCORES, CLASSES)
    chances = SCORES.double().softmax(1).numpy()
    truth, decided = CLASSES.numpy(), chances.argmax(1)
    one_hot = np.eye(7)[truth]
    assert got["balanced_accuracy"] == pytest.approx(sk.balanced_accuracy_score(truth, decided))
    assert got["f1"] == pytest.approx(sk.f1_score(truth, decided, average="macro"))
    assert got["auc"] == pytest.approx(sk.roc_auc_score(truth, chances, multi_class="ovr"))
    assert got["average_precision"] == pytest.approx(sk.average_precision_score(one_hot, chances))
    assert got["perplexity"] == pytest.approx(math.exp(sk.log_loss(truth, chances, labels=range(7))))
    above = (SCORES.numpy() > SCORES.numpy()[np.arange(60), truth][:, None]).sum(1)
    level = (SCORES.numpy() == SCORES.numpy()[np.arange(60), truth][:, None]).sum(1)
    for name, k in (("top2", 2), ("top5", 5)):
        assert (above + level <= k).mean() <= got[name] <= (above < k).mean(), "ties may go either way"


def test_multilabel_metrics_are_scikit_learns():
    got, _ = found(td.MultiLabel(), BY_TASK["multilabel"], SCORES, MANY)
    assert got["f1"] == pytest.approx(sk.f1_score(MANY, SCORES.numpy() > 0, average="macro"))
    assert got["auc"] == pytest.approx(sk.roc_auc_score(MANY, SCORES))
    own = td.MultiLabel().metrics([(SCORES, MANY)])["macro_ap"]
    assert got["average_precision"] == pytest.approx(own)


def test_r2_is_one_less_the_share_of_variance_that_is_left():
    truth = torch.stack([LOGITS, LOGITS.flip(0)], 1)
    outputs = truth + 0.3 * SCORES[:, :2]
    got, _ = found(td.Regression(), ["r2", "rmse"], outputs, truth)
    left = ((outputs - truth) ** 2).double().sum(0) / ((truth - truth.mean(0)) ** 2).double().sum(0)
    assert got == {"r2": pytest.approx(float((1 - left).mean()), rel=1e-5)}, "rmse is the head's own"


def test_top_k_of_tokens_leaves_out_what_is_not_scored():
    labels = torch.tensor([[3, 1, 0], [2, 4, 0]])
    scores = torch.arange(6.0).expand(2, 3, 6)  # 5 is the likeliest token, then 4, 3, ...
    got, _ = found(td.NextToken(0, unscored=[1]), ["top2", "top3", "top6"], scores, labels, (1, 1))
    assert got == pytest.approx({"top2": 1 / 3, "top3": 2 / 3, "top6": 1.0})


@pytest.mark.parametrize(
    ("head", "names", "outputs", "labels"),
    [
        (td.Binary(), ["auc", "f1", "average_precision"], LOGITS, torch.zeros(60)),
        (td.MultiClass(), ["auc"], SCORES, torch.ones(60, dtype=torch.long)),
        (td.Regression(), ["r2"], LOGITS, torch.ones(60)),
    ],
)
def test_metric_without_a_value_is_left_out_with_the_reason(head, names, outputs, labels):
    got, undefined = found(head, names, outputs, labels)
    assert got == {}
    assert set(undefined) == set(names)


def test_diverged_model_has_no_named_metrics():
    assert found(td.Binary(), ["auc"], LOGITS * math.nan, ANSWERS) == ({}, {})


def test_half_precision_scores_are_taken():
    got, _ = found(td.Binary(), ["auc"], LOGITS.bfloat16(), ANSWERS)
    assert got["auc"] == pytest.approx(sk.roc_auc_score(ANSWERS, LOGITS.bfloat16().float()))


def test_metric_of_another_task_is_refused_with_those_that_there_are():
    with pytest.raises(
        td.ConfigError,
        match=r"^evaluation\.metrics: the head Regression has no metric 'auc'; it has loss, rmse, mae, r2$",
    ):
        check_names(["rmse", "auc"], td.Regression(), "evaluation.metrics")
    check_names(["top3", "f1", "accuracy"], td.MultiClass(), "evaluation.metrics")
