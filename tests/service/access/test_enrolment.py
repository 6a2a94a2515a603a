"""Keys, and the list of clients that a server admits."""

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from service_harness import FakeClock

from tardigrad.errors import ConfigError
from tardigrad.service.access.enrolment import (
    LIST,
    Enrolled,
    EnrolledFor,
    clients_of_run,
    make_key,
    public_text,
    read_key,
)
from tardigrad.service.access.new_clients import add_clients, enroll_clients
from tardigrad.service.access.signed_requests import RequestVerifier, Signer


def test_key_files_are_readable_by_their_owner_only_and_never_overwritten(tmp_path):
    key = make_key(tmp_path / "ann.key")
    assert (tmp_path / "ann.key").stat().st_mode & 0o077 == 0
    assert public_text(read_key(tmp_path / "ann.key")) == public_text(key)
    with pytest.raises(ConfigError, match="exists already"):
        make_key(tmp_path / "ann.key")
    add_clients(tmp_path / LIST, {"ann": public_text(key)})
    with pytest.raises(ConfigError, match="enrolled already"):
        add_clients(tmp_path / LIST, {"ann": public_text(key)})
    with pytest.raises(ConfigError, match="a name is up to 64"):
        add_clients(tmp_path / LIST, {"../ann": public_text(key)})


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("bob {ann}", "line 4: bob has the public key of ann"),
        ("ann {other}", "line 4: ann is in an earlier line"),
        ("ann {ann}", "line 4: ann is in an earlier line"),
    ],
)
def test_a_list_with_a_client_or_a_key_twice_is_refused_with_the_line_number(line, said, tmp_path, caplog):
    enroll_clients(tmp_path, ["ann"])
    clock = FakeClock()
    gate = RequestVerifier(Enrolled(tmp_path / LIST), clock)
    ann = Signer("ann", read_key(tmp_path / "ann.key"), clock)
    other = public_text(Ed25519PrivateKey.generate())
    keys = {"ann": public_text(ann._key), "other": other}
    with (tmp_path / LIST).open("a") as file:
        file.write(f"zoe {public_text(Ed25519PrivateKey.generate())}\n{line.format(**keys)}\n")
    with pytest.raises(ConfigError, match=f"{LIST}, {said}"):
        Enrolled(tmp_path / LIST)
    before = (tmp_path / LIST).read_bytes()
    with pytest.raises(ConfigError, match=f"{LIST}, {said}"):
        enroll_clients(tmp_path, ["eve"])
    assert (tmp_path / LIST).read_bytes() == before
    assert not (tmp_path / "eve.key").exists()
    for _ in range(3):
        clock.advance(2)
        assert gate.admit(ann.sign("Join"), "Join") == ("ann", b"")  # by the list as it was
    assert sum(said in record.getMessage() for record in caplog.records) == 1


def test_a_list_that_cannot_be_read_says_what_is_wrong_and_what_would_be_right(tmp_path):
    file = tmp_path / LIST
    with pytest.raises(ConfigError) as missing:
        Enrolled(file)
    assert str(missing.value) == (
        f"{file}: cannot be read because there is no such file; it lists the clients that may join, and "
        f"`tardigrad enroll NAME --keys {tmp_path}` makes it"
    )
    file.mkdir()
    with pytest.raises(ConfigError, match=r"cannot be read \(Is a directory\); it must be") as folder:
        Enrolled(file)
    for caught in (missing, folder):
        assert "Errno" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "there is no such key; `tardigrad enroll` makes one"),
        (b"junk", "is not a private key in PEM without a password; `tardigrad enroll` makes one"),
    ],
)
def test_a_key_file_that_cannot_be_used_is_named(content, said, tmp_path):
    file = tmp_path / "ann.key"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        read_key(file)
    assert str(caught.value) == f"{file}: {said}"


def test_a_third_word_is_the_runs_that_a_client_is_for(tmp_path):
    enroll_clients(tmp_path, ["ann"])
    enroll_clients(tmp_path, ["bob", "eve"], runs=["heart", "lung", "heart"])
    lines = (tmp_path / LIST).read_text().splitlines()
    assert [line.split()[2:] for line in lines[1:]] == [[], ["heart,lung"], ["heart,lung"]]
    enrolled = Enrolled(tmp_path / LIST)
    heart, liver = EnrolledFor(enrolled, "heart"), clients_of_run(tmp_path, tmp_path / "runs" / "liver")
    assert (len(enrolled), len(heart), len(liver)) == (3, 3, 1)
    assert [heart.knows(name) for name in ("ann", "bob", "zoe")] == [True, True, False]
    assert [liver.knows(name) for name in ("ann", "bob", "zoe")] == [True, False, False]
    key = read_key(tmp_path / "bob.key")
    assert heart.signed("bob", key.sign(b"content"), b"content")
    assert not liver.signed("bob", key.sign(b"content"), b"content")
    (tmp_path / LIST).write_text("\n".join(lines[1:]).replace("heart,lung", "liver"))
    heart.refresh()
    assert (len(heart), len(liver)) == (1, 1)  # each list is read when it is asked to
    liver.refresh()
    assert len(liver) == 3


@pytest.mark.parametrize("runs", ["heart,", "heart,,lung", "he/art", "heart lung", "../keys"])
def test_runs_that_are_no_names_are_refused_with_the_line_number(runs, tmp_path):
    enroll_clients(tmp_path, ["ann"])
    line = (tmp_path / LIST).read_text().splitlines()[1]
    (tmp_path / LIST).write_text(f"{line} {runs}\n")
    with pytest.raises(ConfigError, match=rf"{LIST}, line 1: (run '.*': a name is|must be a name, a public)"):
        Enrolled(tmp_path / LIST)
    with pytest.raises(ConfigError, match=r"--run '.*': a name is"):
        enroll_clients(tmp_path, ["eve"], runs=[runs])
    assert not (tmp_path / "eve.key").exists()
