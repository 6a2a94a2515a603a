"""Masks."""

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import ECB
from scipy.stats import chi2

from tardigrad.secure import masks
from tardigrad.secure.masks import SALT, SEED, UNSIGNED, MaskStream, masked, new_seeds, weighted_masks


def naive_mask(seed, count, bits):
    """AES-256 in counter mode, block by block, as Python integers."""
    cipher = Cipher(AES256(seed), ECB()).encryptor()
    size = bits // 8
    stream = b"".join(cipher.update(block.to_bytes(16, "big")) for block in range(count * size // 16 + 1))
    return [int.from_bytes(stream[size * i : size * (i + 1)], "little") for i in range(count)]


@pytest.fixture
def small_pieces(monkeypatch):
    monkeypatch.setattr(masks, "PIECE", 7)


@pytest.mark.parametrize("bits", [8, 16, 32])
def test_mask_is_the_key_stream_of_the_seed(bits):
    seed = bytes(range(32))
    stream = MaskStream(seed, bits)
    assert [*stream.take(5), *stream.take(40)] == naive_mask(seed, 45, bits)


@pytest.mark.parametrize("bits", [8, 16, 32])
def test_sum_of_weighted_uploads_less_weighted_masks_is_the_sum_of_weighted_codes(bits, small_pieces):
    random, lengths = np.random.default_rng(1), {"delta": 30, "control": 11}
    weights = {"delta": [3, 1, 2], "control": [4, 4, 4]}
    uploads, seeds = [], [new_seeds(2) for _ in range(3)]
    hidden = []
    for own in seeds:
        codes = {
            name: torch.from_numpy(random.integers(-3, 4, length).astype(f"int{bits}"))
            for name, length in lengths.items()
        }
        uploads.append(codes)
        hidden.append(masked(codes, own, bits))
    released = [
        weighted_masks(
            [(own[helper], [weights["delta"][i], weights["control"][i]]) for i, own in enumerate(seeds)],
            list(lengths.values()),
            bits,
        )
        for helper in range(2)
    ]
    first = 0
    for name, length in lengths.items():
        modulus = 2**bits
        total = [
            sum(weights[name][i] * int(hidden[i][name][at]) for i in range(3))
            - sum(int(one[first + at]) for one in released)
            for at in range(length)
        ]
        expected = [
            sum(weights[name][i] * int(uploads[i][name][at]) for i in range(3)) for at in range(length)
        ]
        assert [(one + modulus // 2) % modulus - modulus // 2 for one in total] == expected
        first += length


def test_masking_leaves_the_codes_as_they_were():
    codes = {"delta": torch.arange(10, dtype=torch.int32)}
    assert masked(codes, new_seeds(1), 32)["delta"].dtype == torch.int32
    assert codes["delta"].tolist() == list(range(10))


def test_masked_bytes_are_uniform():
    """Chi-square over four million bytes of the most unbalanced upload there is, and of their pairs."""
    zeros = {"delta": torch.zeros(1_000_000, dtype=torch.int32)}
    content = masked(zeros, [bytes(range(32))], 32)["delta"].numpy().view(np.uint8)
    for values, kinds in ((content, 256), (content.view(np.uint16), 65536)):
        counts = np.bincount(values, minlength=kinds)
        expected = len(values) / kinds
        assert chi2.sf(float(((counts - expected) ** 2 / expected).sum()), kinds - 1) > 1e-6
    plain = np.bincount(np.zeros(1000, np.uint8), minlength=256)
    assert chi2.sf(float(((plain - 1000 / 256) ** 2 / (1000 / 256)).sum()), 255) < 1e-6  # the test can fail


def test_seeds_are_new():
    assert len({*new_seeds(3), *new_seeds(3)}) == 6
    assert {len(seed) for seed in new_seeds(3)} == {SEED}


def test_seed_of_another_length_is_refused():
    with pytest.raises(ValueError, match="a seed has 32 bytes, not 31"):
        MaskStream(bytes(31), 32)
    assert set(UNSIGNED) == {8, 16, 32}


def test_equal_uploads_with_equal_masks_have_different_digests():
    """A helper knows the mask: it must not be able to check a guess of the codes against the digest."""
    codes = {"delta/codes": torch.arange(5, dtype=torch.int32)}
    first, second = (masked(codes, [bytes(SEED)], 32) for _ in range(2))
    assert torch.equal(first["delta/codes"], second["delta/codes"])
    assert not torch.equal(first[SALT.name], second[SALT.name])
