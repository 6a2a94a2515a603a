"""Text data sets: LEAF's and TensorFlow Federated's formats, tables and plain texts."""

import json
import lzma
import os
import sqlite3
from pathlib import Path

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch import nn

import tardigrad as td
from tardigrad.data.sets.chat import Chat, split_words
from tardigrad.data.sets.sent140 import Sent140
from tardigrad.data.sets.shakespeare import LEAF_ALPHABET, LENGTH, PRINTABLE, Shakespeare
from tardigrad.data.sets.stackoverflow import StackOverflow
from tardigrad.data.vocabulary import (
    BEGIN,
    END,
    PAD,
    SPECIAL,
    UNKNOWN,
    Characters,
    Corpus,
    Vocabulary,
    glove_matrix,
    glove_vocabulary,
)
from tardigrad.errors import ConfigError


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("TARDIGRAD_DATA", str(tmp_path))
    return tmp_path


def write(file: Path, text: str) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    if file.suffix == ".xz":
        file.write_bytes(lzma.compress(text.encode()))
    else:
        file.write_text(text, encoding="utf-8")
    return file


def write_leaf(file: Path, given: dict[str, tuple[list, list]], **changes) -> Path:
    document = {
        "users": list(given),
        "num_samples": [len(y) for _, y in given.values()],
        "hierarchies": [],
        "user_data": {user: {"x": x, "y": y} for user, (x, y) in given.items()},
    }
    return write(file, json.dumps(document | changes))


def everything(federation):
    """Name -> (features, labels) of every client."""
    clients = federation.clients
    return {clients.name(c): clients.load(c) for c in range(len(clients))}


def sizes(federation):
    return {name: len(labels) for name, (_, labels) in everything(federation).items()}


def cut(file: Path, share: float = 0.6) -> None:
    content = file.read_bytes()
    file.write_bytes(content[: int(len(content) * share)])


# -- words and characters as numbers -------------------------------------------------------------------


def test_leaf_has_eighty_characters_in_its_own_order():
    assert len(LEAF_ALPHABET) == 80
    assert LEAF_ALPHABET.encode("\n Aaz}").tolist() == [0, 1, 25, 53, 78, 79]
    assert len(PRINTABLE) == 96


def test_a_foreign_character_counts_as_a_space():
    alphabet = Characters("ab ")
    assert alphabet.encode("abcéÿš\N{SNOWMAN}b").tolist() == [0, 1, 2, 2, 2, 2, 2, 1]


def corpus(length, *texts):
    made = Corpus(length)
    for text in texts:
        made.add(text.split())
    return made


def test_the_most_frequent_words_of_the_training_texts_make_the_vocabulary():
    texts = corpus(9, "b b a a c", "d d d d d d", "c e")
    assert texts.most_frequent(3, np.array([True, False, True])).words == ["a", "b", "c"]
    assert texts.most_frequent(1, np.array([True, True, True])).words == ["d"]
    assert texts.most_frequent(99, np.array([False, False, True])).words == ["c", "e"]


def test_texts_are_padded_cut_and_framed():
    texts = corpus(3, "a b", "a b a b", "z")
    words = Vocabulary(["a", "b"])
    a, b = SPECIAL, SPECIAL + 1
    assert texts.numbered(words).tolist() == [[a, b, PAD], [a, b, a], [UNKNOWN, PAD, PAD]]
    assert texts.framed(words).tolist() == [
        [BEGIN, a, b, END],
        [BEGIN, a, b, a],  # no room for the end
        [BEGIN, UNKNOWN, END, PAD],
    ]


def test_token_numbers_take_two_bytes_while_they_fit():
    texts = corpus(2, "a")
    assert texts.numbered(Vocabulary(["a"])).dtype == torch.int16
    large = Vocabulary([str(i) for i in range(40_000)] + ["a"])
    assert texts.numbered(large).dtype == torch.int32
    assert texts.numbered(large)[0, 0] == SPECIAL + 40_000


def test_glove_gives_a_row_for_every_number(tmp_path):
    file = write(tmp_path / "glove.txt", "the 1 2 3\ncat 3 4 5\n, 9 9 9\n")
    matrix = glove_matrix(file, Vocabulary(["cat", "zebra", "the"]))
    assert matrix.dtype == torch.float32
    assert matrix[[PAD, BEGIN, END]].abs().sum() == 0
    assert matrix[SPECIAL:].tolist() == [[3, 4, 5], [2, 3, 4], [1, 2, 3]]  # the zebra gets the mean
    assert matrix[UNKNOWN].tolist() == [2, 3, 4]
    assert glove_vocabulary(file, 2).words == ["the", "cat"]


@pytest.mark.parametrize(
    ("text", "words", "message"),
    [
        ("the 1 2 3\ncat 3 4\n", ["the"], "line 2: a vector of 2 numbers"),
        ("the 1 2 3\ncat 3 four 5\n", ["cat"], "'cat'"),
        ("the 1 2 3\n", ["dog"], "none of the vocabulary's 1 words"),
        ("<html>\n", ["dog"], "line 1"),
    ],
)
def test_a_damaged_glove_file_is_named(tmp_path, text, words, message):
    file = write(tmp_path / "glove.txt", text)
    with pytest.raises(ConfigError, match=message) as error:
        glove_matrix(file, Vocabulary(words))
    assert str(file) in str(error.value)


def test_glove_must_have_enough_words(tmp_path):
    with pytest.raises(ConfigError, match="has 1 words, not 2"):
        glove_vocabulary(write(tmp_path / "glove.txt", "the 1 2 3\n"), 2)


# -- Shakespeare ---------------------------------------------------------------------------------------

SPEECHES = {
    "ROMEO": "But soft! What light through yonder window breaks?\nIt is the east, and Juliet is the sun. "
    * 3,
    "JULIET": "O Romeo, Romeo! wherefore art thou Romeo?\nDeny thy father and refuse thy name. " * 2,
}


def leaf_windows(text):
    """As LEAF's preprocessing does it: line by line, each after 80 spaces."""
    x, y = [], []
    for line in text.splitlines(keepends=True):
        padded = " " * LENGTH + line
        x += [padded[i : i + LENGTH] for i in range(len(line))]
        y += list(line)
    return x, y


def decode(numbers, alphabet):
    return "".join(alphabet.alphabet[number] for number in numbers)


@pytest.mark.parametrize("root", ["shakespeare/data", "shakespeare"])
def test_leafs_windows_are_read_as_they_are(folder, root):
    train = {role: leaf_windows(text) for role, text in SPEECHES.items()}
    test = {"ROMEO": leaf_windows("Call me but love.")}
    write_leaf(folder / root / "train" / "a.json", train)
    write_leaf(folder / root / "test" / "a.json", test)
    federation = Shakespeare(min_examples=1).federation(0)
    assert (federation.shape, federation.classes) == ((80,), 80)
    for role, (features, labels) in everything(federation).items():
        x, y = train[role]
        assert [decode(window, LEAF_ALPHABET) for window in features] == x
        assert decode(labels, LEAF_ALPHABET) == "".join(y)
    assert decode(federation.test[1], LEAF_ALPHABET) == "Call me but love."
    assert federation.test[0].dtype == torch.uint8


def test_overlapping_windows_are_stored_once(folder):
    text = "x" * 5000
    write_leaf(folder / "shakespeare/all_data/a.json", {"ROMEO": leaf_windows(text)})
    features, _, _ = Shakespeare(min_examples=1).federation(0).clients.indexed(0)
    assert features.untyped_storage().nbytes() == 5080


def test_windows_out_of_order_are_read_too(folder):
    x, y = leaf_windows(SPEECHES["ROMEO"])
    order = np.random.default_rng(0).permutation(len(y))
    shuffled = ([x[i] for i in order], [y[i] for i in order])
    write_leaf(folder / "shakespeare/train/a.json", {"ROMEO": shuffled})
    write_leaf(folder / "shakespeare/test/a.json", {"ROMEO": leaf_windows("Ay")})
    features, labels = Shakespeare(min_examples=1).federation(0).clients.load(0)
    assert [decode(window, LEAF_ALPHABET) for window in features] == shuffled[0]
    assert decode(labels, LEAF_ALPHABET) == "".join(shuffled[1])


def test_without_a_test_set_the_last_windows_are_kept_for_it(folder):
    write_leaf(folder / "shakespeare/all_data/a.json", {r: leaf_windows(t) for r, t in SPEECHES.items()})
    federation = Shakespeare(min_examples=1).federation(0)
    for role, (_, labels) in everything(federation).items():
        assert len(labels) == len(SPEECHES[role]) - round(0.2 * len(SPEECHES[role]))
        assert SPEECHES[role].startswith(decode(labels, LEAF_ALPHABET))


@pytest.mark.parametrize(
    ("users", "changes", "message"),
    [
        ({"R": (["short"], ["x"])}, {}, "user R: 'short' and 'x' are not a window of 80"),
        ({"R": ([[0.1] * 784], [3])}, {}, "not a window of 80"),
        ({"R": (["x" * 80], ["xy"])}, {}, "not a window of 80"),
        ({"R": (["x" * 80], ["x"])}, {"num_samples": [2]}, "1 x and 1 y, but num_samples says 2"),
        ({"R": (["x" * 80], ["x"])}, {"num_samples": []}, "1 users, but num_samples for 0"),
        ({"R": (["x" * 80], ["x"])}, {"users": ["R", "S"]}, "'S' is missing"),
        ({"R": (["x" * 80], ["x"])}, {"user_data": None}, "not one of LEAF's files"),
        ({}, {}, "no examples"),
    ],
)
def test_what_is_not_leafs_shakespeare_is_refused(folder, users, changes, message):
    write_leaf(folder / "shakespeare/all_data/a.json", users, **changes)
    with pytest.raises(ConfigError, match=message):
        Shakespeare(min_examples=1).federation(0)


def test_a_truncated_leaf_file_is_named(folder):
    file = write_leaf(folder / "shakespeare/all_data/a.json", {"R": leaf_windows(SPEECHES["ROMEO"])})
    cut(file)
    with pytest.raises(ConfigError, match=r"a\.json: not valid JSON"):
        Shakespeare().federation(0)


def test_leafs_split_needs_both_folders(folder):
    write_leaf(folder / "shakespeare/train/a.json", {"R": leaf_windows(SPEECHES["ROMEO"])})
    with pytest.raises(ConfigError, match="test: missing"):
        Shakespeare().federation(0)
    (folder / "shakespeare/test").mkdir()
    with pytest.raises(ConfigError, match=r"has no \.json file"):
        Shakespeare().federation(0)


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
def test_missing_files_are_asked_for_by_name(folder, source, file):
    with pytest.raises(ConfigError, match=file) as error:
        source.federation(0)
    assert str(folder) in str(error.value)


def folger(folder, speeches=SPEECHES):
    lines = [
        json.dumps({"play": "romeo", "role": role, "role_id": f"{role}_Rom", "text": line})
        for role, text in speeches.items()
        for line in text.split("\n")
    ]
    return write(folder / "shakespeare/folger_speeches.jsonl.xz", "\n".join(lines) + "\n")


def test_what_a_role_says_is_one_text(folder):
    folger(folder, SPEECHES | {"NURSE": "Ô là… ay!"})
    federation = Shakespeare(edition="folger", min_examples=1).federation(0)
    assert (federation.shape, federation.classes) == ((80,), 96)
    clients = everything(federation)
    assert list(clients) == ["romeo/ROMEO_Rom", "romeo/JULIET_Rom", "romeo/NURSE_Rom"]
    for role, text in (SPEECHES | {"NURSE": "O la... ay!"}).items():
        features, labels = clients[f"romeo/{role}_Rom"]
        trained = len(text) - round(0.2 * len(text))
        assert decode(labels, PRINTABLE) == text[:trained]
        for place in (0, 1, trained - 1):  # each window is what was said before its label
            assert decode(features[place], PRINTABLE) == (" " * 80 + text)[place : place + 80]


def test_no_window_that_is_trained_on_reaches_into_the_test_set(folder):
    text = "".join(map(chr, range(33, 127))) * 5  # the characters say where we are
    folger(folder, {"R": text})
    federation = Shakespeare(edition="folger", min_examples=1).federation(0)
    (_, trained), (windows, tested) = federation.clients.load(0), federation.test
    assert decode(torch.cat([trained, tested]), PRINTABLE) == text
    assert decode(windows[0], PRINTABLE) == text[len(trained) - 80 : len(trained)]


def test_every_character_of_a_window_can_be_a_label(folder):
    text = SPEECHES["ROMEO"] * 2
    folger(folder, {"R": text})
    federation = Shakespeare(edition="folger", predict="every", min_examples=1).federation(0)
    assert federation.head.pad == -1
    features, labels = federation.clients.load(0)
    every = torch.cat([labels, federation.test[1]])
    assert decode(every.flatten(), PRINTABLE) == text[: len(text) // 80 * 80]  # the rest is no whole window
    assert torch.equal(features.flatten()[1:], labels.flatten()[:-1])
    assert decode(features[0, :1], PRINTABLE) == " "


def test_leafs_windows_have_one_label(folder):
    with pytest.raises(ValidationError, match="one label for each window"):
        Shakespeare(predict="every")


def test_roles_that_say_too_little_are_left_out(folder):
    folger(folder, {"R": "r" * 100, "J": "j" * 50})
    federation = Shakespeare(edition="folger", min_examples=60).federation(0)
    assert sizes(federation) == {"romeo/R_Rom": 80}
    assert decode(federation.test[1], PRINTABLE) == "r" * 20
    with pytest.raises(ConfigError, match="nobody has 90 examples to train on; give at most 80"):
        Shakespeare(edition="folger", min_examples=90).federation(0)


def test_a_damaged_text_is_named(folder):
    file = folger(folder)
    cut(file)
    with pytest.raises(ConfigError, match=r"jsonl\.xz: cannot be read"):
        Shakespeare(edition="folger").federation(0)
    write(file, '{"play": "p", "role_id": "r", "text": "t"}\n{"play": "p"}\n')
    with pytest.raises(ConfigError, match="line 2: not a speech"):
        Shakespeare(edition="folger").federation(0)
    write(file, "ROMEO:\n")
    with pytest.raises(ConfigError, match="line 1: not valid JSON"):
        Shakespeare(edition="folger").federation(0)


def test_a_text_with_heads_is_split_by_role(folder):
    text = "ROMEO:\nAy me.\nNote this:\nno head.\n\nJULIET:\n\nNURSE:\nMadam!\n\nROMEO:\nSpeak again.\n"
    file = write(folder / "shakespeare/tinyshakespeare.txt", text)
    federation = Shakespeare(edition="tiny", min_examples=1, test=1e-9).federation(0)
    said = {name: decode(labels, PRINTABLE) for name, (_, labels) in everything(federation).items()}
    assert said == {"ROMEO": "Ay me.\nNote this:\nno head.\nSpeak again.", "NURSE": "Madam!"}
    write(file, "no head here\n")
    with pytest.raises(ConfigError, match="line 1: 'no head here' comes before"):
        Shakespeare(edition="tiny").federation(0)


# -- Sent140 -------------------------------------------------------------------------------------------


def tweet(text):
    return ["1467", "Mon Apr 06 22:19:45 PDT 2009", "NO_QUERY", "somebody", text]


def test_leafs_tweets_are_read_with_their_own_test_set(folder):
    write_leaf(
        folder / "sent140/data/train/a.json",
        {"ann": ([tweet("Good &amp; good day!"), tweet("bad day")], [1, 0]), "bob": ([tweet("good")], [4])},
    )
    write_leaf(folder / "sent140/data/test/a.json", {"ann": ([tweet("bad unheard")], [0])})
    federation = Sent140(length=4).federation(0)
    assert (federation.shape, federation.classes) == ((4,), 1)
    good, day, mark, bad = range(SPECIAL, SPECIAL + 4)  # by frequency, then by alphabet
    clients = everything(federation)
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
def test_no_tweet_is_lost_or_doubled(folder, name):
    table_of_tweets(folder, MANY, name)
    federation = Sent140(format="tsv", words=500).federation(3)
    clients = everything(federation)
    assert len(clients) == 29
    features = torch.cat([x for x, _ in clients.values()] + [federation.test[0]])
    labels = torch.cat([y for _, y in clients.values()] + [federation.test[1]])
    assert len(labels) == 400
    assert 60 <= len(federation.test[1]) <= 100
    assert int(labels.sum()) == 200
    # numbers of tweets that are in the training set are in the vocabulary, each once
    known = features[:, 1][features[:, 1] != UNKNOWN]
    assert len(known.unique()) == len(known) == 400 - len(federation.test[1])


def test_the_split_is_a_function_of_data_and_seed(folder):
    table_of_tweets(folder, MANY)
    one, same, other = (Sent140(format="tsv").federation(seed) for seed in (1, 1, 2))
    assert torch.equal(one.test[0], same.test[0])
    assert len(one.test[0]) != len(other.test[0]) or not torch.equal(one.test[0], other.test[0])


def test_settings_of_the_split(folder):
    table_of_tweets(folder, [*MANY, ("lonely", 1, "good")])
    assert "lonely" in sizes(Sent140(format="tsv").federation(0))
    assert "lonely" not in sizes(Sent140(format="tsv", min_examples=2).federation(0))
    assert len(Sent140(format="tsv", test_examples=7).federation(0).test[1]) == 7
    by_client = Sent140(format="tsv", test={"share": 0.2, "by": "client"}).federation(0)
    assert len(by_client.clients) == 24
    tuning = Sent140(format="tsv", validation=0.5).federation(0)
    assert sum(sizes(tuning).values()) + len(tuning.test[1]) < 360  # the test set is out of reach
    fewer = Sent140(format="tsv", validation={"share": 0.5, "by": "client"}).federation(0)
    full = sizes(Sent140(format="tsv").federation(0))
    assert len(fewer.clients) == 15
    assert sizes(fewer).items() <= full.items()  # those who train keep their names
    dealt = Sent140(format="tsv", partition={"kind": "iid", "clients": 7}).federation(0)
    assert len(dealt.clients) == 7
    central = Sent140(format="tsv", partition="central").federation(0)
    assert central.clients.examples(0) == 401 - len(central.test[1])


def test_a_heading_is_no_tweet(folder):
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
def test_a_wrong_line_is_named(folder, row, message):
    table_of_tweets(folder, [("ann", 1, "fine"), row])
    with pytest.raises(ConfigError, match=message):
        Sent140(format="tsv").federation(0)


def test_a_table_must_be_whole_utf8_and_the_only_one(folder):
    file = table_of_tweets(folder, MANY, "a.tsv.xz")
    cut(file)
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
def test_what_is_not_a_tweet_is_refused(folder, x):
    write_leaf(folder / "sent140/all_data/a.json", {"ann": ([x], [1])})
    with pytest.raises(ConfigError, match=r"user ann: .* is not a tweet of LEAF"):
        Sent140().federation(0)


def test_words_and_vectors_of_glove(folder):
    table_of_tweets(folder, MANY)
    write(folder / "glove.6B.300d.txt", "the 1 1\ngood 2 2\nbad 3 3\n")
    source = Sent140(format="tsv", words_of="glove", words=2)
    assert int(torch.cat([x for x, _ in everything(source.federation(0)).values()]).max()) == SPECIAL + 1
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


def test_a_federated_run_learns_from_tweets(folder):
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


# -- next word -----------------------------------------------------------------------------------------


def test_words_keep_apostrophes_and_hyphens():
    assert split_words("Don't e-mail me, OK?!") == ["don't", "e-mail", "me", ",", "ok", "?", "!"]


def chat(folder, rows):
    return write(folder / "chitchat/messages.tsv.xz", "".join("\t".join(row) + "\n" for row in rows))


def rows(federation):
    """Features and labels of all examples, trained on or not, in order."""
    pairs = [*everything(federation).values(), federation.test]
    return sorted((x.tolist(), y.tolist()) for features, labels in pairs for x, y in zip(features, labels))


def test_labels_are_the_words_one_place_earlier(folder):
    texts = ["a b c", "a b", "a a a a a a", " "]
    chat(folder, [(user, text) for user in ("ann", "bob") for text in texts * 4])
    federation = Chat(length=4).federation(0)
    a, b, c = SPECIAL, SPECIAL + 1, SPECIAL + 2
    assert (federation.shape, federation.classes) == ((4,), 7)
    assert rows(federation) == 8 * [([BEGIN, a, a, a], [a, a, a, a])] + 8 * [  # cut off, so it has no end
        ([BEGIN, a, b, END], [a, b, END, PAD])] + 8 * [([BEGIN, a, b, c], [a, b, c, END])]  # fmt: skip
    head = federation.head  # the end is learned, but not scored
    assert (head.pad, head.ignore, set(head.unscored)) == (PAD, (), {END, UNKNOWN})
    assert federation.clients.load(0)[0].dtype == torch.int16


@pytest.mark.parametrize("heading", [[], [("user", "timestamp", "text")]])
def test_a_table_may_have_a_timestamp_and_a_heading(folder, heading):
    chat(folder, [*heading, *[("ann", "2018-04-14", "hi"), ("bob", "2018-04-15", "hello")] * 9])
    federation = Chat().federation(0)
    assert set(sizes(federation)) == {"ann", "bob"}
    assert len(rows(federation)) == 18
    assert federation.classes == SPECIAL + 2


def test_a_table_has_two_or_three_columns(folder):
    chat(folder, [("ann",)])
    with pytest.raises(ConfigError, match="line 1: must have two"):
        Chat().federation(0)
    chat(folder, [("ann", "hi"), ("ann", "2018", "hi")])
    with pytest.raises(ConfigError, match="line 2: 3 tab-separated fields; there must be 2: user, text"):
        Chat().federation(0)
    chat(folder, [])
    with pytest.raises(ConfigError, match="line 1: must have two"):
        Chat().federation(0)


def test_of_a_user_with_many_texts_the_first_are_taken(folder):
    chat(folder, [("ann", f"word{i}") for i in range(10)] + [("bob", "word0")])
    federation = Chat(max_examples=7).federation(0)
    assert len(rows(federation)) == 8
    assert len(federation.test[1]) + federation.classes - SPECIAL == 7  # word0 to word6


def test_tokens_have_no_labels_to_partition_by(folder):
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


def test_a_federated_run_learns_the_next_word(folder):
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


# -- StackOverflow -------------------------------------------------------------------------------------

POSTS = {
    "train": {"00000001": ["how to sort a list ?", "use sort ."], "00000003": ["a list is a list"]},
    "heldout": {"00000010": ["never read this"]},
    "test": {"00000001": ["sort a tuple"], "00000007": ["how to ?", "a list"]},
}


def message(number, content):
    """A field of a protocol buffer message that holds bytes."""
    size, digits = len(content), []
    while True:
        size, digit = size >> 7, size & 0x7F
        digits.append(digit | (0x80 if size else 0))
        if not size:
            return bytes([number << 3 | 2, *digits]) + content


def tf_example(tokens):
    """A serialized tf.train.Example with a text and a number."""
    score = message(3, message(1, b"\xac\x02"))  # Int64List, packed
    features = {b"score": score, b"tokens": message(1, message(1, tokens.encode()))}
    entries = [message(1, message(1, name) + message(2, value)) for name, value in features.items()]
    return message(1, b"".join(entries))


def write_sqlite(file, posts=POSTS, counts=None):
    file.parent.mkdir(exist_ok=True)
    with sqlite3.connect(file) as database:
        database.execute(
            "CREATE TABLE examples (split_name TEXT NOT NULL, client_id TEXT NOT NULL, "
            "serialized_example_proto BLOB NOT NULL)"
        )
        database.execute(
            "CREATE TABLE client_metadata (client_id TEXT NOT NULL, split_name TEXT NOT NULL, "
            "num_examples INTEGER NOT NULL)"
        )
        for split, users in posts.items():
            for user, texts in users.items():
                count = (counts or {}).get(user, len(texts))
                database.execute("INSERT INTO client_metadata VALUES (?, ?, ?)", (user, split, count))
                for text in texts:
                    example = text if isinstance(text, bytes) else tf_example(text)
                    database.execute("INSERT INTO examples VALUES (?, ?, ?)", (split, user, example))
    database.close()
    return file


def write_hdf5(folder):
    h5py = pytest.importorskip("h5py")
    (folder / "stackoverflow").mkdir(exist_ok=True)
    for split in ("train", "test"):
        with h5py.File(folder / f"stackoverflow/stackoverflow_{split}.h5", "w") as file:
            for user, texts in POSTS[split].items():
                group = file.create_group(f"examples/{user}")
                group.create_dataset("score", data=np.arange(len(texts)))
                group.create_dataset("tokens", data=[text.encode() for text in texts])


@pytest.fixture(params=["sqlite", "hdf5"])
def published(request, folder):
    if request.param == "sqlite":
        write_sqlite(folder / "stackoverflow/stackoverflow.sqlite")
    else:
        write_hdf5(folder)
    return request.param


def texts_of(features, words):
    names = dict(enumerate(words, start=SPECIAL)) | {UNKNOWN: "?"}
    return [" ".join(names[int(n)] for n in row if int(n) in names) for row in features]


def test_the_publishers_files_are_read(published):
    federation = StackOverflow(format=published, length=6).federation(0)
    words = sorted({w for texts in POSTS["train"].values() for text in texts for w in text.split()})
    counts = {w: sum(t.split().count(w) for texts in POSTS["train"].values() for t in texts) for w in words}
    vocabulary = sorted(words, key=lambda word: (-counts[word], word))
    assert federation.classes == SPECIAL + len(vocabulary)
    clients = everything(federation)
    assert {name: texts_of(labels, vocabulary) for name, (_, labels) in clients.items()} == POSTS["train"]
    tested = texts_of(federation.test[1], vocabulary)
    assert sorted(tested) == ["a list", "how to ?", "sort a ?"]  # no tuple in the training texts


def test_as_much_of_the_publishers_files_as_asked_for(published):
    source = StackOverflow(format=published, max_clients=1, max_examples=1, test_examples=2)
    federation = source.federation(0)
    assert sizes(federation) == {"00000001": 1}
    assert len(federation.test[1]) == 2


def test_the_publishers_words(folder, published):
    write(folder / "stackoverflow/stackoverflow.word_count", "the\t9\nlist\t5\na\t3\n")
    federation = StackOverflow(format=published, words=2, words_of="publisher").federation(0)
    assert federation.classes == SPECIAL + 2
    _, labels = federation.clients.load(1)
    assert texts_of(labels, ["the", "list"]) == ["? list ? ? list"]
    with pytest.raises(ConfigError, match="has 3 words, not 4"):
        StackOverflow(format=published, words=4, words_of="publisher").federation(0)
    write(folder / "stackoverflow/stackoverflow.word_count", "the 9\nlist\n")
    with pytest.raises(ConfigError, match="line 2: not a word"):
        StackOverflow(format=published, words=2, words_of="publisher").federation(0)


def test_a_table_of_posts(folder):
    lines = [f"{user}\t{text}\n" for user, texts in POSTS["train"].items() for text in texts]
    write(folder / "stackoverflow/stackoverflow.tsv", "".join(lines * 9))
    federation = StackOverflow(format="tsv").federation(0)
    assert set(sizes(federation)) == {"00000001", "00000003"}
    assert len(rows(federation)) == 27


def test_a_damaged_database_is_named(folder):
    file = folder / "stackoverflow/stackoverflow.sqlite"
    many = {split: {f"{i:08d}": ["some words here"] * 20 for i in range(200)} for split in ("train", "test")}
    whole = write_sqlite(file, many).read_bytes()
    for content, message in (
        (whole[: len(whole) // 2], "not a whole SQLite database"),
        (b"<html>not found</html>", "not a whole SQLite database"),
        (b"", "not a whole SQLite database"),
        (whole[:8192] + bytes(len(whole) - 8192), "stackoverflow.sqlite"),
    ):
        file.write_bytes(content)
        with pytest.raises(ConfigError, match=message) as error:
            StackOverflow().federation(0)
        assert str(file) in str(error.value)


@pytest.mark.parametrize(
    ("text", "counts", "message"),
    [
        (tf_example("use sort .")[:-4], None, "user 00000001: an example has no text 'tokens'"),
        (message(1, message(1, message(1, b"title") + message(2, b""))), None, "has no text 'tokens'"),
        (b"\x08\x01", None, "has no text 'tokens'"),
        (b"", None, "has no text 'tokens'"),
        (tf_example("fine"), {"00000001": 9}, "1 texts in 'train', but client_metadata counts 9"),
    ],
)
def test_a_wrong_example_is_named(folder, text, counts, message):
    file = folder / "stackoverflow/stackoverflow.sqlite"
    write_sqlite(file, {"train": {"00000001": [text]}, "test": {}}, counts)
    with pytest.raises(ConfigError, match=message):
        StackOverflow().federation(0)


def test_another_database_is_refused(folder):
    file = folder / "stackoverflow/stackoverflow.sqlite"
    file.parent.mkdir()
    with sqlite3.connect(file) as database:
        database.execute("CREATE TABLE posts (text TEXT)")
    database.close()
    with pytest.raises(ConfigError, match="not the publisher's database"):
        StackOverflow().federation(0)


def test_a_damaged_hdf5_file_is_named(folder):
    h5py = pytest.importorskip("h5py")
    write_hdf5(folder)
    file = folder / "stackoverflow/stackoverflow_train.h5"
    whole = file.read_bytes()
    cut(file)
    with pytest.raises(ConfigError, match=r"stackoverflow_train\.h5: not a whole HDF5 file"):
        StackOverflow(format="hdf5").federation(0)
    file.write_bytes(whole)
    with h5py.File(file, "a") as content:
        del content["examples/00000003/tokens"]
    with pytest.raises(ConfigError, match="examples/00000003/tokens"):
        StackOverflow(format="hdf5").federation(0)
    with h5py.File(file, "w") as content:
        content.create_group("other")
    with pytest.raises(ConfigError, match="no group 'examples'"):
        StackOverflow(format="hdf5").federation(0)


def test_a_missing_package_is_named(folder, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "h5py", None)
    with pytest.raises(ConfigError, match=r"tardigrad\[data\]"):
        StackOverflow(format="hdf5").federation(0)


# -- the real thing ------------------------------------------------------------------------------------


@pytest.fixture
def shared():
    folder = os.environ.get("TARDIGRAD_DATA")
    if not folder:
        pytest.skip("the real data is not here: TARDIGRAD_DATA is not set")
    return Path(folder)


def need(file: Path) -> None:
    if not file.exists():
        pytest.skip(f"the real data is not here: {file} is missing")


@pytest.mark.shared
def test_the_plays_have_1413_roles(shared):
    need(shared / "shakespeare/folger_speeches.jsonl.xz")
    federation = Shakespeare(edition="folger", min_examples=1, test=1e-9).federation(0)
    said = sizes(federation)
    assert len(said) == 1413
    assert sum(size >= 1000 for size in said.values()) == 615
    assert sum(said.values()) == pytest.approx(4.3e6, rel=0.01)


@pytest.mark.shared
def test_a_federated_run_learns_from_roles(shared):
    need(shared / "shakespeare/tinyshakespeare.txt")
    torch.manual_seed(0)

    class Tail(nn.Module):
        """The next character from the last six."""

        def __init__(self):
            super().__init__()
            self.characters = nn.Embedding(96, 16)
            self.layers = nn.Sequential(nn.Flatten(), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 96))

        def forward(self, x):
            return self.layers(self.characters(x[:, -6:]))

    result = td.run(
        data=Shakespeare(edition="tiny", min_examples=500, test_examples=2000),
        model=Tail(),
        pace=td.Asynchronous(concurrency=20),
        buffer=td.Buffer(size=10),
        local=td.Local(lr=0.3, steps=20),
        stop=td.Stop(trips=300),
    )
    assert result.accuracy > 0.28  # always a space is right for 15%


@pytest.mark.shared
def test_a_federated_run_learns_from_real_tweets(shared):
    need(shared / "sent140/sent140_leaf_k30_part.tsv.xz")
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


@pytest.mark.shared
def test_the_chat_has_1315_users(shared):
    need(shared / "chitchat/messages.tsv.xz")
    federation = Chat(max_examples=20).federation(0)
    assert len(federation.clients) == 1315
    assert federation.classes <= 10_004
