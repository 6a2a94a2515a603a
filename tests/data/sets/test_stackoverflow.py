"""StackOverflow: the publisher's SQLite and HDF5 files, and a table."""

import sqlite3

import numpy as np
import pytest

from data_files import all_examples, examples_by_client, sizes, truncate, write
from tardigrad.data.sets.stackoverflow import StackOverflow
from tardigrad.data.vocabulary import SPECIAL, UNKNOWN
from tardigrad.errors import ConfigError

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


def test_published_files_are_read(published):
    federation = StackOverflow(format=published, length=6).federation(0)
    words = sorted({w for texts in POSTS["train"].values() for text in texts for w in text.split()})
    counts = {w: sum(t.split().count(w) for texts in POSTS["train"].values() for t in texts) for w in words}
    vocabulary = sorted(words, key=lambda word: (-counts[word], word))
    assert federation.classes == SPECIAL + len(vocabulary)
    clients = examples_by_client(federation)
    assert {name: texts_of(labels, vocabulary) for name, (_, labels) in clients.items()} == POSTS["train"]
    tested = texts_of(federation.test[1], vocabulary)
    assert sorted(tested) == ["a list", "how to ?", "sort a ?"]  # no tuple in the training texts


def test_max_clients_and_max_examples_limit_what_is_read(published):
    source = StackOverflow(format=published, max_clients=1, max_examples=1, test_examples=2)
    federation = source.federation(0)
    assert sizes(federation) == {"00000001": 1}
    assert len(federation.test[1]) == 2


def test_publishers_word_list_is_the_vocabulary(folder, published):
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


def test_tsv_table_is_read(folder):
    lines = [f"{user}\t{text}\n" for user, texts in POSTS["train"].items() for text in texts]
    write(folder / "stackoverflow/stackoverflow.tsv", "".join(lines * 9))
    federation = StackOverflow(format="tsv").federation(0)
    assert set(sizes(federation)) == {"00000001", "00000003"}
    assert len(all_examples(federation)) == 27


def test_error_for_a_damaged_database_names_the_file(folder):
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
def test_error_for_a_malformed_example_names_the_user(folder, text, counts, message):
    file = folder / "stackoverflow/stackoverflow.sqlite"
    write_sqlite(file, {"train": {"00000001": [text]}, "test": {}}, counts)
    with pytest.raises(ConfigError, match=message):
        StackOverflow().federation(0)


def test_database_with_other_tables_is_refused(folder):
    file = folder / "stackoverflow/stackoverflow.sqlite"
    file.parent.mkdir()
    with sqlite3.connect(file) as database:
        database.execute("CREATE TABLE posts (text TEXT)")
    database.close()
    with pytest.raises(ConfigError, match="not the publisher's database"):
        StackOverflow().federation(0)


def test_error_for_a_damaged_hdf5_file_names_it(folder):
    h5py = pytest.importorskip("h5py")
    write_hdf5(folder)
    file = folder / "stackoverflow/stackoverflow_train.h5"
    whole = file.read_bytes()
    truncate(file)
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


def test_error_without_h5py_names_the_extra(folder, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "h5py", None)
    with pytest.raises(ConfigError, match=r"pip install .* -e '\.\[data\]' in a clone"):
        StackOverflow(format="hdf5").federation(0)
