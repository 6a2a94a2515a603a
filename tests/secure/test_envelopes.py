"""Envelopes: a seed that is sealed to one helper, for one upload."""

import itertools

import pytest

from tardigrad.secure.envelopes import EnvelopeError, Purpose, new_sealing_key, seal, stored_sealing_key

SEED = bytes(range(32))
PURPOSE = Purpose(bytes(32), "helper", bytes(16), 7, 3, "ann", bytes(32))
KINDS = pytest.mark.parametrize(
    ("post_quantum", "size"), [(False, 80), (True, 1168)], ids=["x25519", "hybrid"]
)


@KINDS
def test_stored_key_opens_what_was_sealed_to_its_public_bytes(post_quantum, size):
    key = new_sealing_key(post_quantum)
    sealed = seal(SEED, key.public_bytes(), PURPOSE.info())
    assert len(sealed) == size
    assert stored_sealing_key(key.private_bytes()).open(sealed, PURPOSE.info()) == SEED
    assert stored_sealing_key(key.private_bytes()).public_bytes() == key.public_bytes()


@KINDS
def test_envelope_opens_with_no_other_key_and_for_no_other_purpose(post_quantum, size):
    key, other = new_sealing_key(post_quantum), new_sealing_key(post_quantum)
    sealed = seal(SEED, key.public_bytes(), PURPOSE.info())
    with pytest.raises(EnvelopeError):
        other.open(sealed, PURPOSE.info())
    for change in (
        {"policy": b"\1" * 32}, {"helper": "other"}, {"key": b"\1" * 16}, {"trip": 8}, {"version": 4},
        {"client": "bob"}, {"digest": b"\1" * 32},
    ):  # fmt: skip
        with pytest.raises(EnvelopeError):
            key.open(sealed, PURPOSE._replace(**change).info())


@KINDS
def test_damaged_envelope_does_not_open(post_quantum, size):
    key = new_sealing_key(post_quantum)
    sealed = seal(SEED, key.public_bytes(), PURPOSE.info())
    damaged = [sealed[:-1], sealed + b"\0", b"", bytes(size)]
    damaged += [bytes(b ^ (i == at) for i, b in enumerate(sealed)) for at in (0, 31, 40, size - 1)]
    for content in damaged:
        with pytest.raises(EnvelopeError):
            key.open(content, PURPOSE.info())


@KINDS
def test_only_seeds_are_taken_out_of_envelopes(post_quantum, size):
    key = new_sealing_key(post_quantum)
    with pytest.raises(EnvelopeError):
        key.open(seal(b"short", key.public_bytes(), PURPOSE.info()), PURPOSE.info())


@pytest.mark.parametrize("public", [b"", bytes(31), bytes(33), bytes(1216)])
def test_bytes_that_are_no_key_cannot_be_sealed_to(public):
    with pytest.raises(ValueError):  # noqa: PT011
        seal(SEED, public, PURPOSE.info())


def test_purposes_differ_also_where_their_parts_run_together():
    moved = [
        PURPOSE._replace(client="ab", digest=b"c"), PURPOSE._replace(client="a", digest=b"bc"),
        PURPOSE._replace(helper="ab", key=b"c"), PURPOSE._replace(helper="a", key=b"bc"),
    ]  # fmt: skip
    for one, other in itertools.combinations(moved, 2):
        assert one.info() != other.info()
