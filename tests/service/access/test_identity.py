"""The identity of a server or a helper."""

import stat

import pytest
from typer.testing import CliRunner

from tardigrad.cli import app
from tardigrad.errors import ConfigError
from tardigrad.service.access.enrolment import public_text
from tardigrad.service.access.identity import own_identity
from tardigrad.service.access.new_clients import enroll_clients


def test_an_identity_is_made_once_and_only_its_owner_can_read_it(tmp_path):
    first = own_identity(tmp_path / "keys")
    assert public_text(own_identity(tmp_path / "keys")) == public_text(first)
    assert stat.S_IMODE((tmp_path / "keys" / "identity.key").stat().st_mode) == 0o600


def test_the_command_prints_the_identity_that_is_used_later(tmp_path):
    result = CliRunner().invoke(app, ["identity", "--keys", str(tmp_path)], catch_exceptions=False)
    assert result.output.strip() == public_text(own_identity(tmp_path))


def test_a_damaged_identity_is_not_replaced(tmp_path):
    (tmp_path / "identity.key").write_text("no key")
    with pytest.raises(ConfigError, match="is not a private key"):
        own_identity(tmp_path)
    assert (tmp_path / "identity.key").read_text() == "no key"


def test_no_client_is_called_identity(tmp_path):
    with pytest.raises(ConfigError, match=r"identity\.key is not a client's key"):
        enroll_clients(tmp_path, ["identity"])
