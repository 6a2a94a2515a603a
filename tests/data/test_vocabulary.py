"""Words and characters as numbers, and GloVe's vectors."""

import numpy as np
import pytest
import torch

from data_files import write
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


def test_character_outside_the_alphabet_is_encoded_as_a_space():
    alphabet = Characters("ab ")
    assert alphabet.encode("abcéÿš\N{SNOWMAN}b").tolist() == [0, 1, 2, 2, 2, 2, 2, 1]


def corpus(length, *texts):
    made = Corpus(length)
    for text in texts:
        made.add(text.split())
    return made


def test_vocabulary_is_the_most_frequent_words_of_the_training_texts():
    texts = corpus(9, "b b a a c", "d d d d d d", "c e")
    assert texts.most_frequent(3, np.array([True, False, True])).words == ["a", "b", "c"]
    assert texts.most_frequent(1, np.array([True, True, True])).words == ["d"]
    assert texts.most_frequent(99, np.array([False, False, True])).words == ["c", "e"]


def test_texts_are_padded_cut_off_and_framed():
    texts = corpus(3, "a b", "a b a b", "z")
    words = Vocabulary(["a", "b"])
    a, b = SPECIAL, SPECIAL + 1
    assert texts.numbered(words).tolist() == [[a, b, PAD], [a, b, a], [UNKNOWN, PAD, PAD]]
    assert texts.framed(words).tolist() == [
        [BEGIN, a, b, END],
        [BEGIN, a, b, a],  # no room for the end
        [BEGIN, UNKNOWN, END, PAD],
    ]


def test_token_numbers_use_two_bytes_for_small_vocabularies():
    texts = corpus(2, "a")
    assert texts.numbered(Vocabulary(["a"])).dtype == torch.int16
    large = Vocabulary([str(i) for i in range(40_000)] + ["a"])
    assert texts.numbered(large).dtype == torch.int32
    assert texts.numbered(large)[0, 0] == SPECIAL + 40_000


def test_glove_matrix_has_a_row_for_every_token(tmp_path):
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
def test_error_for_a_damaged_glove_file_names_the_file(tmp_path, text, words, message):
    file = write(tmp_path / "glove.txt", text)
    with pytest.raises(ConfigError, match=message) as error:
        glove_matrix(file, Vocabulary(words))
    assert str(file) in str(error.value)


def test_glove_file_with_too_few_words_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="has 1 words, not 2"):
        glove_vocabulary(write(tmp_path / "glove.txt", "the 1 2 3\n"), 2)
