"""Shakespeare: LEAF's windows and plain texts, by role."""

import json

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch import nn

import tardigrad as td
from data_files import examples_by_client, need, sizes, truncate, write, write_leaf
from tardigrad.data.sets.shakespeare import LEAF_ALPHABET, LENGTH, PRINTABLE, Shakespeare
from tardigrad.errors import ConfigError

SPEECHES = {
    "ROMEO": "But soft! What light through yonder window breaks?\nIt is the east, and Juliet is the sun. "
    * 3,
    "JULIET": "O Romeo, Romeo! wherefore art thou Romeo?\nDeny thy father and refuse thy name. " * 2,
}


def leaf_windows(text):
    """Windows as LEAF's preprocessing makes them: line by line, each line after 80 spaces."""
    x, y = [], []
    for line in text.splitlines(keepends=True):
        padded = " " * LENGTH + line
        x += [padded[i : i + LENGTH] for i in range(len(line))]
        y += list(line)
    return x, y


def decode(numbers, alphabet):
    return "".join(alphabet.alphabet[number] for number in numbers)


def test_leaf_alphabet_has_80_characters_in_its_own_order():
    assert len(LEAF_ALPHABET) == 80
    assert LEAF_ALPHABET.encode("\n Aaz}").tolist() == [0, 1, 25, 53, 78, 79]
    assert len(PRINTABLE) == 96


@pytest.mark.parametrize("root", ["shakespeare/data", "shakespeare"])
def test_leaf_windows_are_read_unchanged(folder, root):
    train = {role: leaf_windows(text) for role, text in SPEECHES.items()}
    test = {"ROMEO": leaf_windows("Call me but love.")}
    write_leaf(folder / root / "train" / "a.json", train)
    write_leaf(folder / root / "test" / "a.json", test)
    federation = Shakespeare(min_examples=1).federation(0)
    assert (federation.shape, federation.classes) == ((80,), 80)
    for role, (features, labels) in examples_by_client(federation).items():
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


def test_leaf_windows_in_any_order_are_read(folder):
    x, y = leaf_windows(SPEECHES["ROMEO"])
    order = np.random.default_rng(0).permutation(len(y))
    shuffled = ([x[i] for i in order], [y[i] for i in order])
    write_leaf(folder / "shakespeare/train/a.json", {"ROMEO": shuffled})
    write_leaf(folder / "shakespeare/test/a.json", {"ROMEO": leaf_windows("Ay")})
    features, labels = Shakespeare(min_examples=1).federation(0).clients.load(0)
    assert [decode(window, LEAF_ALPHABET) for window in features] == shuffled[0]
    assert decode(labels, LEAF_ALPHABET) == "".join(shuffled[1])


def test_last_windows_are_the_test_set_if_leaf_has_none(folder):
    write_leaf(folder / "shakespeare/all_data/a.json", {r: leaf_windows(t) for r, t in SPEECHES.items()})
    federation = Shakespeare(min_examples=1).federation(0)
    for role, (_, labels) in examples_by_client(federation).items():
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
def test_malformed_leaf_file_is_refused(folder, users, changes, message):
    write_leaf(folder / "shakespeare/all_data/a.json", users, **changes)
    with pytest.raises(ConfigError, match=message):
        Shakespeare(min_examples=1).federation(0)


def folger(folder, speeches=SPEECHES):
    lines = [
        json.dumps({"play": "romeo", "role": role, "role_id": f"{role}_Rom", "text": line})
        for role, text in speeches.items()
        for line in text.split("\n")
    ]
    return write(folder / "shakespeare/folger_speeches.jsonl.xz", "\n".join(lines) + "\n")


def test_speeches_of_a_role_make_one_text(folder):
    folger(folder, SPEECHES | {"NURSE": "Ô là… ay!"})
    federation = Shakespeare(edition="folger", min_examples=1).federation(0)
    assert (federation.shape, federation.classes) == ((80,), 96)
    clients = examples_by_client(federation)
    assert list(clients) == ["romeo/ROMEO_Rom", "romeo/JULIET_Rom", "romeo/NURSE_Rom"]
    for role, text in (SPEECHES | {"NURSE": "O la... ay!"}).items():
        features, labels = clients[f"romeo/{role}_Rom"]
        trained = len(text) - round(0.2 * len(text))
        assert decode(labels, PRINTABLE) == text[:trained]
        for place in (0, 1, trained - 1):  # each window is what was said before its label
            assert decode(features[place], PRINTABLE) == (" " * 80 + text)[place : place + 80]


def test_no_training_window_overlaps_the_test_set(folder):
    text = "".join(map(chr, range(33, 127))) * 5  # each character tells its position
    folger(folder, {"R": text})
    federation = Shakespeare(edition="folger", min_examples=1).federation(0)
    (_, trained), (windows, tested) = federation.clients.load(0), federation.test
    assert decode(torch.cat([trained, tested]), PRINTABLE) == text
    assert decode(windows[0], PRINTABLE) == text[len(trained) - 80 : len(trained)]


def test_predict_every_labels_each_character_of_a_window(folder):
    text = SPEECHES["ROMEO"] * 2
    folger(folder, {"R": text})
    federation = Shakespeare(edition="folger", predict="every", min_examples=1).federation(0)
    assert federation.head.pad == -1
    features, labels = federation.clients.load(0)
    every = torch.cat([labels, federation.test[1]])
    assert (
        decode(every.flatten(), PRINTABLE) == text[: len(text) // 80 * 80]
    )  # the rest is shorter than a window
    assert torch.equal(features.flatten()[1:], labels.flatten()[:-1])
    assert decode(features[0, :1], PRINTABLE) == " "


def test_predict_every_is_refused_for_the_leaf_edition(folder):
    with pytest.raises(ValidationError, match="one label for each window"):
        Shakespeare(predict="every")


def test_roles_with_too_few_examples_are_left_out(folder):
    folger(folder, {"R": "r" * 100, "J": "j" * 50})
    federation = Shakespeare(edition="folger", min_examples=60).federation(0)
    assert sizes(federation) == {"romeo/R_Rom": 80}
    assert decode(federation.test[1], PRINTABLE) == "r" * 20
    with pytest.raises(ConfigError, match="nobody has 90 examples to train on; give at most 80"):
        Shakespeare(edition="folger", min_examples=90).federation(0)


def test_error_for_a_damaged_folger_file_names_the_line(folder):
    file = folger(folder)
    truncate(file)
    with pytest.raises(ConfigError, match=r"jsonl\.xz: cannot be read"):
        Shakespeare(edition="folger").federation(0)
    write(file, '{"play": "p", "role_id": "r", "text": "t"}\n{"play": "p"}\n')
    with pytest.raises(ConfigError, match="line 2: not a speech"):
        Shakespeare(edition="folger").federation(0)
    write(file, "ROMEO:\n")
    with pytest.raises(ConfigError, match="line 1: not valid JSON"):
        Shakespeare(edition="folger").federation(0)


def test_tiny_edition_is_split_by_role(folder):
    text = "ROMEO:\nAy me.\nNote this:\nno head.\n\nJULIET:\n\nNURSE:\nMadam!\n\nROMEO:\nSpeak again.\n"
    file = write(folder / "shakespeare/tinyshakespeare.txt", text)
    federation = Shakespeare(edition="tiny", min_examples=1, test=1e-9).federation(0)
    said = {name: decode(labels, PRINTABLE) for name, (_, labels) in examples_by_client(federation).items()}
    assert said == {"ROMEO": "Ay me.\nNote this:\nno head.\nSpeak again.", "NURSE": "Madam!"}
    write(file, "no head here\n")
    with pytest.raises(ConfigError, match="line 1: 'no head here' comes before"):
        Shakespeare(edition="tiny").federation(0)


@pytest.mark.shared
def test_real_folger_edition_has_1413_roles(real_folder):
    need(real_folder / "shakespeare/folger_speeches.jsonl.xz")
    federation = Shakespeare(edition="folger", min_examples=1, test=1e-9).federation(0)
    said = sizes(federation)
    assert len(said) == 1413
    assert sum(size >= 1000 for size in said.values()) == 615
    assert sum(said.values()) == pytest.approx(4.3e6, rel=0.01)


@pytest.mark.shared
def test_federated_run_learns_from_the_real_tiny_edition(real_folder):
    need(real_folder / "shakespeare/tinyshakespeare.txt")
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
