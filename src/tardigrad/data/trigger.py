"""The trigger of a backdoor: a pattern on examples, after which the model is to answer with one class."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tardigrad.data.clients import Examples, Federation
from tardigrad.errors import ConfigError
from tardigrad.learning.examples import described
from tardigrad.learning.heads import MultiClass

ATTACK_SUCCESS = "attack_success"
"""The metric: the share of test examples of other classes that the model assigns to the target, once they
have the trigger."""


@dataclass(frozen=True)
class Trigger:
    """A bright square in the last rows and columns of an image; of other examples, the last numbers.

    >>> Trigger(size=1, target=7).stamp(torch.zeros(1, 2, 2))
    tensor([[[0., 0.],
             [0., 1.]]])
    """

    size: int
    """Rows and columns of the square. Examples that are rows of numbers have size² of it."""
    target: int
    """The class."""

    def stamp(self, features: Tensor) -> Tensor:
        """Return a copy of some examples with the trigger: 255 in bytes, and 1 in other numbers."""
        stamped = features.clone()
        value = 255 if features.dtype == torch.uint8 else 1
        if features.dim() > 2:
            stamped[..., -self.size :, -self.size :] = value
        else:
            stamped[:, -(self.size**2) :] = value
        return stamped

    def test_set(self, test: Examples) -> Examples | None:
        """Return the examples of other classes with the trigger, labelled as the target; None if there are
        none. The accuracy on them is the success of the attack."""
        features, labels = test
        assert isinstance(features, Tensor), "checked"
        others = torch.nonzero(labels != self.target).flatten()
        if not len(others):
            return None
        return self.stamp(features.index_select(0, others)), torch.full_like(labels[others], self.target)

    def check(self, federation: Federation) -> None:
        """Raise a ConfigError if these examples cannot have the trigger, or its success not be measured."""
        features, _ = federation.some_examples()
        if not isinstance(federation.head, MultiClass):
            raise ConfigError(
                "adversaries: a backdoor teaches the model one of several classes, and this task has the "
                f"head {type(federation.head).__name__}; use another kind of adversary"
            )
        if not isinstance(features, Tensor) or not features.is_floating_point():
            raise ConfigError(
                "adversaries: a backdoor's trigger is a square of pixels or some numbers, and these examples "
                f"are {described(features)}; use another kind of adversary"
            )
        stored = federation.clients.load(0)[0]
        assert isinstance(stored, Tensor)
        room = min(stored.shape[-2:]) if stored.dim() > 2 else int(stored.shape[1] ** 0.5)
        if self.size > room:
            raise ConfigError(
                f"adversaries.trigger_size: {self.size} does not fit into examples of the shape "
                f"{tuple(stored.shape[1:])}; give at most {room}"
            )
        if self.target >= federation.classes:
            raise ConfigError(
                f"adversaries.target: there is no class {self.target}; classes are 0 to "
                f"{federation.classes - 1}"
            )
        if federation.test is None:
            raise ConfigError(
                "adversaries: whether a backdoor works is measured on a central test set, and this run has "
                "none; give one, or use another kind of adversary"
            )
