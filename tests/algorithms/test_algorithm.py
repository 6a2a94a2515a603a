"""The base classes of algorithms: the plain rule, and code that was written for earlier names."""

import pytest
import torch

from tardigrad.algorithms.algorithm import Rule
from tardigrad.algorithms.masfl import AdaMasFLRule
from tardigrad.algorithms.scaffold import ControlledRule
from tardigrad.core.upload import Task

VECTORS = {"model": torch.zeros(2), "control": torch.zeros(2), "drift": torch.zeros(2), "beta": torch.ones(1)}
RULES = [Rule, ControlledRule, AdaMasFLRule]


def made(rule):
    return rule(Task(0, "ann", 0, dict(VECTORS)), {}, 0.1)


def test_plain_rule_steps_along_the_gradient_and_uploads_start_minus_end():
    rule, gradient = made(Rule), torch.tensor([3.0, 4.0])
    assert rule.direction(gradient, torch.ones(2)).tolist() == [3.0, 4.0]
    upload = rule.finish(torch.tensor([1.0, -2.0]), steps=5, lr_sum=0.5)
    assert {name: vector.tolist() for name, vector in upload.items()} == {"delta": [-1.0, 2.0]}
    assert rule.memory == {}


@pytest.mark.parametrize("rule", RULES)
def test_learning_rate_sum_may_still_be_passed_under_its_old_name(rule):
    end = torch.tensor([1.0, -2.0])
    expected = made(rule).finish(end, 5, 0.5)
    with pytest.deprecated_call(match=r"the parameter path of .*finish is called lr_sum now"):
        upload = made(rule).finish(end, 5, path=0.5)
    assert upload.keys() == expected.keys()
    assert all(torch.equal(upload[name], expected[name]) for name in expected)


def test_rule_of_ones_own_with_the_old_name_is_called_by_position():
    class Doubled(Rule):
        def finish(self, end, steps, path):
            return {"delta": 2 * super().finish(end, steps, path)["delta"]}

    assert made(Doubled).finish(torch.ones(2), 5, 0.5)["delta"].tolist() == [-2.0, -2.0]
