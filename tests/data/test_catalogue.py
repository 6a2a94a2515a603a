"""All data sets that a config can name."""

import pytest

from tardigrad.data.sets.chat import Chat
from tardigrad.data.sets.sent140 import Sent140
from tardigrad.data.sets.shakespeare import Shakespeare
from tardigrad.data.sets.stackoverflow import StackOverflow
from tardigrad.errors import ConfigError


@pytest.mark.parametrize(
    ("source", "file"),
    [
        (Shakespeare(), "shakespeare/data/train"),
        (Shakespeare(edition="folger"), "folger_speeches.jsonl.xz"),
        (Shakespeare(edition="tiny"), "tinyshakespeare.txt"),
        (Sent140(), "sent140/data/train"),
        (Sent140(format="tsv"), r"\*\.tsv"),
        (Chat(), "chitchat/messages.tsv.xz"),
        (StackOverflow(), "stackoverflow.sqlite"),
        (StackOverflow(format="hdf5"), "stackoverflow_train.h5"),
        (StackOverflow(format="tsv"), "stackoverflow.tsv"),
    ],
)
def test_error_for_missing_files_names_file_and_folder(folder, source, file):
    with pytest.raises(ConfigError, match=file) as error:
        source.federation(0)
    assert str(folder) in str(error.value)
