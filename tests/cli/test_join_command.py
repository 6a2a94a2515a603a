"""The guardrails that `tardigrad join` is given."""

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tardigrad.cli.join_command import guardrails_of
from tardigrad.errors import ConfigError
from tardigrad.service.access.enrolment import public_text
from tardigrad.service.client.guardrails import Guardrails

HELPER, OTHER = (public_text(Ed25519PrivateKey.generate()) for _ in range(2))


def test_options_are_guardrails_without_a_file():
    assert guardrails_of(None, [HELPER], 5, 2.0, 16) == Guardrails(
        helpers=(HELPER,), least_clients=5, most_epsilon=2.0, most_weight=16
    )
    assert guardrails_of(None, None, None, None, None) == Guardrails()


def test_option_replaces_what_the_file_says(tmp_path):
    file = tmp_path / "guardrails.toml"
    file.write_text(f'helpers = ["{HELPER}"]\nleast_clients = 20\nmost_epsilon = 4\n')
    assert guardrails_of(file, None, 30, None, None) == Guardrails(
        helpers=(HELPER,), least_clients=30, most_epsilon=4.0
    )
    assert guardrails_of(file, [OTHER], None, None, None).helpers == (OTHER,)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ((None, ["abc"], None, None, None), "'abc' is not an identity"),
        ((None, [HELPER], None, 0.0, None), "most_epsilon: must be greater than 0 (got 0.0)"),
    ],
)
def test_options_that_cannot_be_meant_are_refused_in_one_sentence(given, sentence):
    with pytest.raises(ConfigError) as caught:
        guardrails_of(*given)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)
