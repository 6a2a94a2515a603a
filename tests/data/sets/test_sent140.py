"""Sent140: tweets from LEAF's files and from tables, by account."""

import pytest
import torch
from torch import nn

import tardigrad as td
from data_files import examples_by_client, need, sizes, truncate, write, write_leaf
from tardigrad.data.sets.sent140 import Sent140
from tardigrad.data.vocabulary import PAD, SPECIAL, UNKNOWN
from tardigrad.errors import ConfigError


def tweet(text):
    return ["1467", "Mon Apr 06 22:19:45 PDT 2009", "NO_QUERY", "somebody", text]


def test_leaf_tweets_are_read_with_their_own_test_set(folder):
    write_leaf(
        folder / "sent140/data/train/a.json",
        {"ann": ([tweet("Good &amp; good day!"), tweet("bad day")], [1, 0]), "bob": ([tweet("good")], [4])},
    )
    write_leaf(folder / "sent140/data/test/a.json", {"ann": ([tweet("bad unheard")], [0])})
    federation = Sent140(length=4).federation(0)
    assert (federation.shape, federation.classes) == ((4,), 1)
    good, day, mark, bad = range(SPECIAL, SPECIAL + 4)  # by frequency, then by alphabet
    clients = examples_by_client(federation)
    assert clients["ann"][0].tolist() == [[good, good, day, mark], [bad, day, PAD, PAD]]
    assert clients["ann"][1].tolist() == [1, 0]
    assert clients["bob"][0].tolist() == [[good, PAD, PAD, PAD]]
    assert clients["bob"][1].tolist() == [1]
    assert federation.test[0].tolist() == [[bad, UNKNOWN, PAD, PAD]]


def table_of_tweets(folder, rows, name="tweets.tsv"):
    text = "".join("\t".join(map(str, row)) + "\n" for row in rows)
    return write(folder / "sent140" / name, text)


MANY = [(f"user{i % 29}", i % 2, f"tweet {i} {'good' if i % 2 else 'bad'}") for i in range(400)]


@pytest.mark.parametrize("name", ["tweets.tsv", "tweets.tsv.xz"])
def test_every_tweet_is_in_the_training_or_the_test_set_once(folder, name):
    table_of_tweets(folder, MANY, name)
    federation = Sent140(format="tsv", words=500).federation(3)
    clients = examples_by_client(federation)
    assert len(clients) == 29
    features = torch.cat([x for x, _ in clients.values()] + [federation.test[0]])
    labels = torch.cat([y for _, y in clients.values()] + [federation.test[1]])
    assert len(labels) == 400
    assert 60 <= len(federation.test[1]) <= 100
    assert int(labels.sum()) == 200
    # numbers of tweets that are in the training set are in the vocabulary, each once
    known = features[:, 1][features[:, 1] != UNKNOWN]
    assert len(known.unique()) == len(known) == 400 - len(federation.test[1])


def test_split_depends_only_on_data_and_seed(folder):
    table_of_tweets(folder, MANY)
    one, same, other = (Sent140(format="tsv").federation(seed) for seed in (1, 1, 2))
    assert torch.equal(one.test[0], same.test[0])
    assert len(one.test[0]) != len(other.test[0]) or not torch.equal(one.test[0], other.test[0])


def test_split_settings_choose_clients_and_test_examples(folder):
    table_of_tweets(folder, [*MANY, ("lonely", 1, "good")])
    assert "lonely" in sizes(Sent140(format="tsv").federation(0))
    assert "lonely" not in sizes(Sent140(format="tsv", min_examples=2).federation(0))
    assert len(Sent140(format="tsv", test_examples=7).federation(0).test[1]) == 7
    by_client = Sent140(format="tsv", test={"share": 0.2, "by": "client"}).federation(0)
    assert len(by_client.clients) == 24
    tuning = Sent140(format="tsv", validation=0.5).federation(0)
    assert (
        sum(sizes(tuning).values()) + len(tuning.test[1]) < 360
    )  # the test set is not part of the validation set
    fewer = Sent140(format="tsv", validation={"share": 0.5, "by": "client"}).federation(0)
    full = sizes(Sent140(format="tsv").federation(0))
    assert len(fewer.clients) == 15
    assert sizes(fewer).items() <= full.items()  # clients that train keep their names
    dealt = Sent140(format="tsv", partition={"kind": "iid", "clients": 7}).federation(0)
    assert len(dealt.clients) == 7
    central = Sent140(format="tsv", partition="central").federation(0)
    assert central.clients.examples(0) == 401 - len(central.test[1])


def test_heading_of_a_table_is_skipped(folder):
    table_of_tweets(folder, [("user", "label", "text"), *MANY])
    assert "user" not in sizes(Sent140(format="tsv").federation(0))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (("ann", 2, "hm"), "line 2: the label '2' is not 0"),
        (("ann", "", "hm"), "line 2: the label '' is not 0"),
        (("ann", "hm"), "line 2: 2 tab-separated fields; there must be 3: user, label, text"),
        (("ann", 1, "tab", "bed"), "line 2: 4 tab-separated fields"),
    ],
)
def test_error_for_a_malformed_row_names_the_line(folder, row, message):
    table_of_tweets(folder, [("ann", 1, "fine"), row])
    with pytest.raises(ConfigError, match=message):
        Sent140(format="tsv").federation(0)


def test_truncated_or_non_utf8_or_second_table_is_refused(folder):
    file = table_of_tweets(folder, MANY, "a.tsv.xz")
    truncate(file)
    with pytest.raises(ConfigError, match=r"a\.tsv\.xz: cannot be read"):
        Sent140(format="tsv").federation(0)
    file.unlink()
    (folder / "sent140/b.tsv").write_bytes(b"ann\t1\tfine\nann\t1\tna\xefve\n")
    with pytest.raises(ConfigError, match="line 2: not UTF-8"):
        Sent140(format="tsv").federation(0)
    table_of_tweets(folder, MANY)
    with pytest.raises(ConfigError, match="there are 2"):
        Sent140(format="tsv").federation(0)


@pytest.mark.parametrize("x", ["a string", ["1", "date"], [1, 2, 3, 4, None]])
def test_malformed_leaf_tweet_is_refused(folder, x):
    write_leaf(folder / "sent140/all_data/a.json", {"ann": ([x], [1])})
    with pytest.raises(ConfigError, match=r"user ann: .* is not a tweet of LEAF"):
        Sent140().federation(0)


def test_glove_words_and_vectors_are_used(folder):
    table_of_tweets(folder, MANY)
    write(folder / "glove.6B.300d.txt", "the 1 1\ngood 2 2\nbad 3 3\n")
    source = Sent140(format="tsv", words_of="glove", words=2)
    assert (
        int(torch.cat([x for x, _ in examples_by_client(source.federation(0)).values()]).max()) == SPECIAL + 1
    )
    assert source.federation(0).vectors.tolist()[SPECIAL:] == [[1, 1], [2, 2]]
    assert Sent140(format="tsv", words=3).federation(0).vectors is None
    result = td.run(data=source, model=td.FedBuffLSTM(), stop=td.Stop(trips=20))
    assert result.model["tokens.weight"].tolist()[SPECIAL:] == [[1, 1], [2, 2]], "given, and not trained"
    (folder / "glove.6B.300d.txt").unlink()
    with pytest.raises(ConfigError, match=r"glove\.6B\.300d\.txt"):
        source.federation(0)


class Bag(nn.Module):
    """The sum of the words' vectors."""

    def __init__(self, vocabulary, width=8):
        super().__init__()
        self.words, self.output = nn.Embedding(vocabulary, width, padding_idx=PAD), nn.Linear(width, 1)
        nn.init.normal_(self.words.weight, std=0.1)

    def forward(self, x):
        return self.output(self.words(x).mean(dim=1) * 5)


def test_federated_run_learns_from_tweets(folder):
    table_of_tweets(folder, MANY)
    torch.manual_seed(0)
    result = td.run(
        data=Sent140(format="tsv", words=50),
        model=Bag(54),
        pace=td.Asynchronous(concurrency=5),
        buffer=td.Buffer(size=5),
        local=td.Local(lr=2.0, batch_size=4),
        stop=td.Stop(trips=150),
    )
    assert result.accuracy > 0.95


@pytest.mark.shared
def test_federated_run_learns_from_real_tweets(real_folder):
    need(real_folder / "sent140/sent140_leaf_k30_part.tsv.xz")
    source = Sent140(format="tsv")
    federation = source.federation(0)
    assert len(federation.clients) == 2875
    assert sum(sizes(federation).values()) + len(federation.test[1]) == 16_025
    torch.manual_seed(0)
    result = td.run(
        data=source,
        model=Bag(10_004, width=16),
        pace=td.Asynchronous(concurrency=20),
        buffer=td.Buffer(size=10),
        local=td.Local(lr=1.0, batch_size=8),
        stop=td.Stop(trips=1500),
    )
    assert result.accuracy > 0.64  # always glad is right for 60%
