"""The arrays of an app as one vector, and back."""

import numpy as np
import pytest
import torch

from tardigrad.errors import ConfigError
from tardigrad.flower_grid.named_arrays import ArraysModule, BadReply
from tardigrad.learning.flat import FlatModule

ARRAYS = {
    "conv.weight": np.arange(16, dtype=np.float32).reshape(2, 2, 2, 2),
    "norm.running_var": np.ones(2, np.float32),
    "norm.num_batches_tracked": np.array(7),
    "scale": np.array(3.0, np.float32),
    "type": np.zeros((0, 4), np.float32),
}


def test_arrays_come_back_as_they_were():
    module = ArraysModule(ARRAYS)
    vector = FlatModule(module).shared
    back = module.arrays(vector)
    assert list(back) == list(ARRAYS)
    for name, array in ARRAYS.items():
        assert back[name].dtype == array.dtype
        assert back[name].shape == array.shape
        assert np.array_equal(back[name], array)
    assert torch.equal(module.flat(back), vector)


def test_statistics_and_integers_are_not_trained():
    module = ArraysModule(ARRAYS)
    assert [name for name, _ in module.named_parameters()] == ["conv.weight", "scale", "type"]
    assert (module.statistics, module.fixed) == (["norm.running_var"], ["norm.num_batches_tracked"])
    assert module.described() == (
        "3 arrays trained; 1 running statistics, averaged over the uploads of each step; 1 that are not "
        "floats, sent with their first values"
    )


def test_a_reply_in_another_precision_is_rounded():
    module = ArraysModule({"w": np.zeros(2, np.float32)})
    assert module.flat({"w": np.array([0.1, 0.2])}).dtype == torch.float32


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_other_floats_are_trained_as_they_are(dtype):
    assert FlatModule(ArraysModule({"w": np.zeros(2, dtype)})).shared.numpy().dtype == dtype


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"w": np.zeros(2, np.float32), "v": np.zeros(2)}, "float32 and float64"),
        ({"steps": np.array(1)}, "no array of floats"),
        ({"w": np.array("text")}, "'w' holds"),
    ],
)
def test_arrays_that_cannot_be_trained_are_refused(arrays, said):
    with pytest.raises(ConfigError, match=said):
        ArraysModule(arrays)


def test_statistics_of_another_shape_are_refused():
    with pytest.raises(BadReply, match=r"'norm\.running_var' have the shape"):
        ArraysModule(ARRAYS).statistics_of({"norm.running_var": np.ones(3)})
