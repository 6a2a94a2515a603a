"""`tardigrad enroll`: all clients or none, also with a list that was edited by hand."""

import json

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from typer.testing import CliRunner

from tardigrad.cli import app
from tardigrad.errors import ConfigError
from tardigrad.service.access import new_clients as module
from tardigrad.service.access.certificates import FILES
from tardigrad.service.access.enrolment import LIST, Enrolled, public_text, read_key
from tardigrad.service.access.new_clients import add_clients


def enroll(folder, *words):
    done = CliRunner().invoke(app, ["enroll", *words, "--keys", str(folder)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def content(folder):
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}


def refused(folder, said, *words):
    """The command says so, and changes nothing."""
    before = content(folder)
    with pytest.raises(ConfigError, match=said):
        enroll(folder, *words)
    assert content(folder) == before


def test_a_list_without_a_last_line_break_is_extended(tmp_path):
    enroll(tmp_path, "ann")
    (tmp_path / LIST).write_text((tmp_path / LIST).read_text().rstrip("\n"))
    enroll(tmp_path, "bob", "eve")
    enrolled = Enrolled(tmp_path / LIST)
    assert len(enrolled) == 3
    assert all(map(enrolled.knows, ("ann", "bob", "eve")))


@pytest.mark.parametrize("words", [("zoe",), ("zoe", "--host", "fl_1.example.org", "--host", "::1")])
def test_certificates_are_made_at_the_first_enrolment(words, tmp_path):
    enroll(tmp_path, *words)
    assert sorted(content(tmp_path)) == sorted([*FILES, LIST, "zoe.key"])


@pytest.mark.parametrize("damage", [b"ann\n", b"ann key\n", b"\xff\xfe\n"])
def test_a_damaged_list_is_named_and_no_key_is_made(damage, tmp_path):
    (tmp_path / LIST).write_bytes(damage)
    refused(tmp_path, LIST, "bob")


def test_a_folder_in_the_place_of_the_list_is_refused(tmp_path):
    (tmp_path / LIST).mkdir()
    refused(tmp_path, f"{LIST}: cannot be read", "bob")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("zoe", "zoe"), "more than once"),
        (("zoe", "ca"), "not a client's key"),
        (("server",), "not a client's key"),
        (("Server",), "not a client's key"),
        (("zoe", "z/e"), "a name is up to 64"),
        (("zoe", "bob"), "bob.key: exists already"),
        (("zoe", "ann"), "ann is enrolled already"),
        (("zoe", "--public", "word"), "--public: 'word' is not"),
    ],
)
def test_a_client_that_cannot_be_enrolled_is_refused_and_nothing_is_written(words, said, tmp_path):
    enroll(tmp_path, "ann", "--host", "localhost")
    (tmp_path / "ann.key").unlink()
    (tmp_path / "bob.key").touch()
    refused(tmp_path, said, *words)
    for file in (*FILES, LIST):  # and before there is anything
        (tmp_path / file).unlink()
    if "ann" not in words:
        refused(tmp_path, said, *words)


def test_a_public_key_is_enrolled_for_one_client_only(tmp_path):
    """With privacy, two names of one key would be two clients of one person."""
    enroll(tmp_path, "ann")
    public = public_text(read_key(tmp_path / "ann.key"))
    refused(tmp_path, f"{LIST}: ann is enrolled with this public key", "bob", "--public", public)
    fresh = {"bob": public_text(Ed25519PrivateKey.generate())}
    with pytest.raises(ConfigError, match="the same public key is given for two clients"):
        add_clients(tmp_path / LIST, fresh | {"eve": fresh["bob"]})
    with pytest.raises(ConfigError, match="ann is enrolled with this public key"):
        add_clients(tmp_path / LIST, {"eve": public})


@pytest.mark.parametrize("host", ["", "a b", "m\u00fcller.example", "fl.example:7433", "1.2.3", "a..b", "-a"])
def test_a_host_that_no_certificate_can_have_is_refused(host, tmp_path):
    refused(tmp_path, "--host", "zoe", "--host", "localhost", "--host", host)


def test_existing_certificates_are_left_alone(tmp_path):
    for name in ("server.pem", "server.key"):
        (tmp_path / name).write_text("mine")
    enroll(tmp_path, "ann")
    assert sorted(content(tmp_path)) == ["ann.key", LIST, "server.key", "server.pem"]
    (tmp_path / "server.pem").unlink()
    refused(tmp_path, r"server\.key: has no certificate", "bob")


def test_a_full_disk_leaves_nothing_behind(tmp_path, monkeypatch):
    def full(file, text):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "write_text", full)
    refused(tmp_path, "No space left", "ann", "bob")


def test_key_only_makes_a_key_and_nothing_of_a_server(tmp_path):
    client, server = tmp_path / "client", tmp_path / "server"
    client.mkdir()
    first, second = enroll(client, "ann", "--key-only").splitlines()
    assert list(content(client)) == ["ann.key"]
    public = public_text(read_key(client / "ann.key"))
    assert first == f"ann {public}"
    assert second.endswith(f"tardigrad enroll ann --public {public}")
    enroll(server, "ann", "--public", public)
    assert Enrolled(server / LIST).knows("ann")
    refused(client, "ann.key: exists already", "ann", "--key-only")
    refused(client, "not a client's key", "server", "--key-only")
    for words in (("--public", public), ("--host", "fl.example.org")):
        refused(client, "--key-only: makes a key on a client's machine", "bob", "--key-only", *words)


def test_json_has_the_public_keys_and_the_files_that_were_written(tmp_path):
    found = json.loads(enroll(tmp_path, "ann", "bob", "--json"))
    assert found["clients"] == {
        name: public_text(read_key(tmp_path / f"{name}.key")) for name in ("ann", "bob")
    }
    assert sorted(found["files"]) == sorted(str(tmp_path / name) for name in content(tmp_path))
    found = json.loads(enroll(tmp_path, "eve", "--json"))
    assert sorted(found["files"]) == [str(tmp_path / LIST), str(tmp_path / "eve.key")]
    found = json.loads(enroll(tmp_path / "own", "zoe", "--key-only", "--json"))
    assert found["files"] == [str(tmp_path / "own" / "zoe.key")]
