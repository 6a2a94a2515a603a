"""Labels that are taken for classes."""

import numpy as np
import pytest
import torch

import tardigrad as td
from tardigrad.learning.heads.labels import check_labels


@pytest.mark.parametrize("head", [None, td.MultiClass(), td.NextToken(0)])
def test_fractions_are_never_classes(head):
    with pytest.raises(
        td.ConfigError, match=r'^here: its labels are fractions such as 0\.5 .*head = "regression"'
    ):
        check_labels("here", torch.tensor([1.0, 0.5]), head)


def test_whole_numbers_and_numbers_to_predict_are_taken():
    check_labels("here", np.array([0.0, 2.0]), None)
    check_labels("here", np.array([0, 2]), None)
    check_labels("here", torch.tensor([0.5]), td.Regression())
    check_labels("here", torch.tensor([0.5]), td.Binary())


@pytest.mark.parametrize("labels", [[0, 1, 2], [-1, 1]])
def test_answers_other_than_0_and_1_are_refused(labels):
    with pytest.raises(td.ConfigError, match=r"^here: its labels are 0 for no and 1 for yes"):
        check_labels("here", torch.tensor(labels), td.Binary())
