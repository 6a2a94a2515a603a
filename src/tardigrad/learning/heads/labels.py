"""Checks of labels: whether they can be what a head takes them for."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from tardigrad.errors import ConfigError
from tardigrad.learning.heads.task_head import Head

ASK = (
    'if they are numbers to predict, set head = "regression"; if they are classes, write them as whole '
    "numbers from 0 on"
)


def check_labels(where: str, labels: Tensor | np.ndarray, head: Head | None) -> None:
    """Raise a ConfigError if labels cannot be what a head would take them for.

    `where` begins the error. `head`: the head that was chosen, or None if nobody chose one, which means
    classes. Fractions are never taken for classes, and answers are from 0 (no) to 1 (yes).

    >>> check_labels("clients['ann']", np.array([0.5, 21.7, 3.0]), None)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    tardigrad.errors.ConfigError: clients['ann']: its labels are fractions such as 0.5 (3 different values)...
    """
    values = torch.as_tensor(labels)
    task = "multiclass" if head is None else head.task
    if task in ("binary", "multilabel") and len(values) and not (values.min() >= 0 and values.max() <= 1):
        strange = values[~((values >= 0) & (values <= 1))]
        raise ConfigError(
            f"{where}: its labels are 0 for no and 1 for yes with this head, and not {strange[0].item():g}; "
            'convert them, or set head = "multiclass"'
        )
    if task not in ("multiclass", "sequence") or not values.dtype.is_floating_point:
        return  # for yes or no, a fraction is a probability
    fractions = values[torch.isfinite(values) & (values != values.round())]
    if len(fractions):
        many = len(torch.unique(values))
        some = f"fractions such as {float(fractions[0]):g} ({many} different values)"
        raise ConfigError(f"{where}: its labels are {some}; {ASK}")
