"""Task heads: the loss that clients minimise and the metrics that people read; one file for each task."""

from tardigrad.learning.heads.binary import Binary
from tardigrad.learning.heads.multiclass import MultiClass
from tardigrad.learning.heads.multilabel import MultiLabel, average_precision
from tardigrad.learning.heads.next_token import NextToken
from tardigrad.learning.heads.regression import Regression
from tardigrad.learning.heads.task_head import Head, LearningTask, Outputs

BUILT_IN: tuple[type[Head], ...] = (MultiClass, Binary, MultiLabel, NextToken, Regression)

__all__ = [
    "BUILT_IN",
    "Binary",
    "Head",
    "LearningTask",
    "MultiClass",
    "MultiLabel",
    "NextToken",
    "Outputs",
    "Regression",
    "average_precision",
]
