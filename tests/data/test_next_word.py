"""Next-word prediction: how texts are split into words."""

from tardigrad.data.next_word import split_words


def test_words_keep_their_apostrophes_and_hyphens():
    assert split_words("Don't e-mail me, OK?!") == ["don't", "e-mail", "me", ",", "ok", "?", "!"]
