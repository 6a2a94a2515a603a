"""LEAF's JSON files: what is wrong with a file or folder is named."""

import pytest

from data_files import truncate, write_leaf
from tardigrad.data.sets.leaf import read_leaf
from tardigrad.errors import ConfigError

EXAMPLES = {"ROMEO": (["a" * 80, "b" * 80], ["x", "y"]), "JULIET": (["c" * 80], ["z"])}


def test_error_for_a_truncated_file_names_it(folder):
    file = write_leaf(folder / "shakespeare/all_data/a.json", EXAMPLES)
    truncate(file)
    with pytest.raises(ConfigError, match=r"a\.json: not valid JSON"):
        list(read_leaf("shakespeare"))


def test_train_folder_without_test_files_is_refused(folder):
    write_leaf(folder / "shakespeare/train/a.json", EXAMPLES)
    with pytest.raises(ConfigError, match="test: missing"):
        list(read_leaf("shakespeare"))
    (folder / "shakespeare/test").mkdir()
    with pytest.raises(ConfigError, match=r"has no \.json file"):
        list(read_leaf("shakespeare"))
