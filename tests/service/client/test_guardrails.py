"""Guardrails in a client's file."""

import pytest
from scripted_secure_server import Helper

from tardigrad.errors import ConfigError
from tardigrad.service.client.guardrails import Guardrails, read_guardrails


def test_guardrails_are_read_from_a_file(tmp_path):
    helper = Helper().identity
    file = tmp_path / "guardrails.toml"
    file.write_text(f'helpers = ["{helper}"]\nleast_clients = 20\nmost_epsilon = 4\nmost_weight = 256\n')
    assert read_guardrails(file) == Guardrails(
        helpers=(helper,), least_clients=20, most_epsilon=4.0, most_weight=256
    )


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("least_client = 5", "unknown key 'least_client'; did you mean 'least_clients'?"),
        ("least_clients = 1", "least_clients: must be greater than or equal to 2 (got 1)"),
        ("most_epsilon = 0", "most_epsilon: must be greater than 0 (got 0)"),
        ('helpers = ["abc"]', "'abc' is not an identity, which is an Ed25519 public key in base64"),
        ("helpers = [", "is not TOML"),
    ],
)
def test_guardrails_that_cannot_be_meant_are_refused(text, sentence, tmp_path):
    file = tmp_path / "guardrails.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_guardrails(file)
    assert str(caught.value).startswith(f"--guardrails {file}: ")
    assert sentence in str(caught.value)


def test_missing_file_of_guardrails_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"nowhere\.toml: cannot be read \(No such file or directory\)"):
        read_guardrails(tmp_path / "nowhere.toml")


def test_one_helper_is_not_named_twice():
    helper = Helper().identity
    with pytest.raises(ConfigError, match="names a helper twice"):
        Guardrails(helpers=(helper, helper))
