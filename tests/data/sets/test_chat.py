"""Chat: a table of users and texts becomes examples of the next word."""

import pytest
import torch
from torch import nn

import tardigrad as td
from data_files import all_examples, need, sizes, write
from tardigrad.data.sets.chat import Chat
from tardigrad.data.vocabulary import BEGIN, END, PAD, SPECIAL, UNKNOWN
from tardigrad.errors import ConfigError


def chat(folder, rows):
    return write(folder / "chitchat/messages.tsv.xz", "".join("\t".join(row) + "\n" for row in rows))


def test_labels_are_the_features_shifted_by_one(folder):
    texts = ["a b c", "a b", "a a a a a a", " "]
    chat(folder, [(user, text) for user in ("ann", "bob") for text in texts * 4])
    federation = Chat(length=4).federation(0)
    a, b, c = SPECIAL, SPECIAL + 1, SPECIAL + 2
    assert (federation.shape, federation.classes) == ((4,), 7)
    assert all_examples(federation) == [
        *8 * [([BEGIN, a, a, a], [a, a, a, a])],  # cut off, so it has no end
        *8 * [([BEGIN, a, b, END], [a, b, END, PAD])],
        *8 * [([BEGIN, a, b, c], [a, b, c, END])],
    ]
    head = federation.head  # the end token is trained on, but not scored
    assert (head.pad, head.ignore, set(head.unscored)) == (PAD, (), {END, UNKNOWN})
    assert federation.clients.load(0)[0].dtype == torch.int16


@pytest.mark.parametrize("heading", [[], [("user", "timestamp", "text")]])
def test_timestamp_column_and_heading_are_optional(folder, heading):
    chat(folder, [*heading, *[("ann", "2018-04-14", "hi"), ("bob", "2018-04-15", "hello")] * 9])
    federation = Chat().federation(0)
    assert set(sizes(federation)) == {"ann", "bob"}
    assert len(all_examples(federation)) == 18
    assert federation.classes == SPECIAL + 2


def test_table_must_have_two_or_three_columns(folder):
    chat(folder, [("ann",)])
    with pytest.raises(ConfigError, match="line 1: must have two"):
        Chat().federation(0)
    chat(folder, [("ann", "hi"), ("ann", "2018", "hi")])
    with pytest.raises(ConfigError, match="line 2: 3 tab-separated fields; there must be 2: user, text"):
        Chat().federation(0)
    chat(folder, [])
    with pytest.raises(ConfigError, match="line 1: must have two"):
        Chat().federation(0)


def test_max_examples_takes_the_first_texts_of_a_user(folder):
    chat(folder, [("ann", f"word{i}") for i in range(10)] + [("bob", "word0")])
    federation = Chat(max_examples=7).federation(0)
    assert len(all_examples(federation)) == 8
    assert len(federation.test[1]) + federation.classes - SPECIAL == 7  # word0 to word6


def test_partition_by_label_is_refused_for_tokens(folder):
    chat(folder, [("ann", "hi")] * 9)
    with pytest.raises(ConfigError, match=r"data\.partition\.kind: 'dirichlet' goes by labels"):
        Chat(partition={"kind": "dirichlet", "clients": 2}).federation(0)
    assert len(Chat(partition={"kind": "iid", "clients": 2}).federation(0).clients) == 2


class Bigram(nn.Module):
    """The next word from the last one."""

    def __init__(self, vocabulary):
        super().__init__()
        self.table = nn.Embedding(vocabulary, vocabulary)

    def forward(self, x):
        return self.table(x)


def test_federated_run_learns_the_next_word(folder):
    chat(folder, [(f"user{i % 12}", "one two three four") for i in range(200)])
    result = td.run(
        data=Chat(length=5),
        model=Bigram(8),
        pace=td.Asynchronous(concurrency=5),
        buffer=td.Buffer(size=5),
        local=td.Local(lr=1.0, batch_size=4),
        stop=td.Stop(trips=100),
    )
    assert result.accuracy > 0.99


@pytest.mark.shared
def test_real_chat_has_1315_users(real_folder):
    need(real_folder / "chitchat/messages.tsv.xz")
    federation = Chat(max_examples=20).federation(0)
    assert len(federation.clients) == 1315
    assert federation.classes <= 10_004
