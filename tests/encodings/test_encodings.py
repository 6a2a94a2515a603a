"""Every encoding: what travels, what is lost, what is refused, and that rounding is right on average."""

import math
import re

import numpy as np
import pytest
import torch

import tardigrad as td
from tardigrad.core.upload import DTYPES, bytes_of
from tardigrad.encodings.encoding import PIECE, encoding_random

GRID = td.Grid(limit=4.0, uploads=10)
UNBIASED = [
    td.BFloat16(), td.Int8(), td.Int8(block="vector"), td.Int8(block=8), td.Int4(),
    td.RandomK(share=0.3, error_feedback=False), GRID, td.Grid(bits=16, limit=4.0, uploads=3, denominator=4),
]  # fmt: skip
ALL = [*UNBIASED, td.Float32(), td.Sign(), td.Sign(block="vector"), td.TopK(share=0.1), td.RandomK(share=0.1)]


def name_of(encoding):
    return ",".join(str(value) for value in encoding.model_dump(exclude_none=True).values())


every = pytest.mark.parametrize("encoding", ALL, ids=name_of)


def some(length, seed=0):
    return torch.randn(length, generator=torch.Generator().manual_seed(seed))


def encoded(encoding, vector, seed=0):
    return encoding.encode("delta", vector, encoding_random(seed))


def decoded(encoding, vector, seed=0):
    return encoding.decode("delta", encoded(encoding, vector, seed), len(vector))


@every
@pytest.mark.parametrize("length", [1, 7, 8, 1023, 1024, 1025, PIECE + 5])
def test_what_travels_has_the_announced_layout_and_passes_the_check(encoding, length):
    parts = encoded(encoding, some(length))
    layout = encoding.layout("delta", length)
    assert [(name, part.dtype, len(part)) for name, part in parts.items()] == [
        (name, DTYPES[dtype], count) for name, dtype, count in layout
    ]
    assert bytes_of(layout) == sum(part.numel() * part.element_size() for part in parts.values())
    assert encoding.objection("delta", parts, length) is None


@every
def test_pieces_cover_the_vector_in_order_and_are_the_callers_own(encoding):
    vector = some(2 * PIECE + 4099)
    parts = encoded(encoding, vector)
    before = {name: part.clone() for name, part in parts.items()}
    found, position = [], 0
    for first, piece in encoding.pieces("delta", parts, len(vector)):
        assert (first, piece.dtype) == (position, torch.float32)
        assert 0 < len(piece) <= PIECE
        position += len(piece)
        found.append(piece.clone())
        piece.zero_()
    assert torch.equal(torch.cat(found), encoding.decode("delta", parts, len(vector)))
    assert all(torch.equal(part, before[name]) for name, part in parts.items())


@every
def test_bits_do_not_depend_on_the_size_of_pieces(encoding, monkeypatch):
    vector = some(PIECE + 1000)
    parts = encoded(encoding, vector)
    whole = encoding.decode("delta", parts, len(vector))
    for module in ("encoding", "blocks", "int4", "topk", "randomk", "bfloat16", "float32", "common_grid"):
        monkeypatch.setattr(f"tardigrad.encodings.{module}.PIECE", 1 << 13)
    again = encoded(encoding, vector)
    assert all(torch.equal(part, again[name]) for name, part in parts.items())
    assert torch.equal(encoding.decode("delta", parts, len(vector)), whole)


@every
@pytest.mark.parametrize("length", [1, 1023, 1024, 1025, PIECE + 5])
def test_norms_of_pieces_are_those_of_the_decoded_vector(encoding, length):
    parts = encoded(encoding, some(length))
    expected = float(torch.linalg.vector_norm(encoding.decode("delta", parts, length).double()))
    assert math.hypot(*encoding.norms("delta", parts, length)) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("encoding", [td.Int8(), td.Int4(), td.Sign()], ids=name_of)
def test_norm_of_huge_numbers_does_not_overflow(encoding):
    parts = encoded(encoding, torch.full((2000,), 3e38))
    assert math.hypot(*encoding.norms("delta", parts, 2000)) == pytest.approx(3e38 * 2000**0.5, rel=1e-3)


@every
def test_bits_depend_on_the_seed_alone(encoding):
    vector = some(70_001)
    one = encoded(encoding, vector, seed=3)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        again = encoded(encoding, vector.clone(), seed=3)
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(one[name], again[name]) for name in one)
    if encoding in UNBIASED:
        other = encoded(encoding, vector, seed=4)
        assert any(not torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("encoding", UNBIASED, ids=name_of)
def test_rounding_is_right_on_average(encoding):
    vector = torch.cat([some(61), torch.tensor([0.0, 1e-3, -2.5])])
    count = 20_000
    found = decoded(encoding, vector.repeat(count)).view(count, 64).double()
    error = (found.mean(dim=0) - vector).abs()
    deviation = (found - vector).square().mean(dim=0).sqrt() / math.sqrt(count)
    assert bool((error <= 5 * deviation + 1e-6).all()), (error / deviation).max()


def test_error_of_bfloat16_is_below_one_step_of_its_seven_bits():
    vector = some(50_000) * torch.logspace(-30, 30, 50_000)
    error = (decoded(td.BFloat16(), vector) - vector).abs()
    assert bool((error < vector.abs() * 2**-7).all())
    assert float((error / vector.abs()).max()) > 2**-8, "rounding to nearest would be at most that"


@pytest.mark.parametrize(("encoding", "largest"), [(td.Int8(block=64), 127), (td.Int4(block=64), 7)])
def test_error_of_integers_is_below_their_scale_and_has_the_variance_of_the_formula(encoding, largest):
    vector = some(64 * 300) * torch.logspace(-3, 3, 300).repeat_interleave(64)
    scales = (vector.view(-1, 64).abs().amax(1) / largest).repeat_interleave(64).double()
    error = (decoded(encoding, vector).double() - vector).abs()
    assert bool((error < scales * (1 + 1e-5)).all())
    share = (vector.double() / scales) % 1
    expected = share * (1 - share)  # in squares of the scale
    assert float(((error / scales) ** 2).mean()) == pytest.approx(float(expected.mean()), rel=0.05)


def test_sign_sends_the_mean_magnitude_of_each_block():
    vector = some(1000)
    found = decoded(td.Sign(block=64), vector)
    for first in range(0, 1000, 64):
        block = vector[first : first + 64]
        expected = torch.where(block >= 0, 1.0, -1.0) * block.abs().mean()
        assert torch.allclose(found[first : first + 64], expected, rtol=1e-6)


def test_topk_sends_the_largest_and_the_first_of_equal_ones():
    vector = torch.tensor([1.0, -3.0, 2.0, 0.5, -2.0, 2.0, 0.0, 0.0, 0.0, 0.0])
    parts = encoded(td.TopK(share=0.3), vector)
    assert parts["delta/positions"].tolist() == [1, 2, 4]
    assert parts["delta/values"].tolist() == [-3.0, 2.0, -2.0]
    assert decoded(td.TopK(share=0.3), vector).tolist() == [0, -3, 2, 0, -2, 0, 0, 0, 0, 0]
    everything = some(1000)
    assert torch.equal(decoded(td.TopK(share=1.0), everything), everything)


def test_error_of_randomk_has_the_formula_of_random_sparsification():
    vector, count = some(1000), 300
    scaled, kept = td.RandomK(share=0.1, error_feedback=False), td.RandomK(share=0.1)
    norm = float((vector.double() ** 2).sum())
    lost = np.mean([float(((decoded(kept, vector, s) - vector) ** 2).sum()) for s in range(count)])
    assert lost == pytest.approx(0.9 * norm, rel=0.02)  # (1 - k/d) |x|^2
    wrong = np.mean([float(((decoded(scaled, vector, s) - vector) ** 2).sum()) for s in range(count)])
    assert wrong == pytest.approx(9 * norm, rel=0.1)  # (d/k - 1) |x|^2


@every
@pytest.mark.parametrize(
    "vector",
    [
        torch.zeros(2000),
        torch.full((2000,), 1e-44),
        torch.full((2000,), -3.4e38),
        torch.tensor([1e-40]),
        torch.full((2000,), torch.finfo(torch.float32).max),
    ],
    ids=["zeros", "denormal", "large", "single", "largest"],
)
def test_extreme_vectors_are_encoded_as_finite_numbers(encoding, vector):
    parts = encoded(encoding, vector)
    assert encoding.objection("delta", parts, len(vector)) is None
    found = encoding.decode("delta", parts, len(vector))
    assert bool(torch.isfinite(found).all())
    if not vector.any() and encoding.kind != "sign":
        assert not found.any()


NAN, INFINITE = float("nan"), float("inf")
SCALED = [td.Int8(block=64), td.Int4(block=64), td.Sign(block=64)]


@pytest.mark.parametrize("encoding", SCALED, ids=name_of)
@pytest.mark.parametrize("scale", [0.0, -1.0, NAN, INFINITE, -INFINITE, 1e-45])
def test_scale_that_is_no_positive_number_is_refused(encoding, scale):
    parts = encoded(encoding, some(200))
    parts["delta/scales"][2] = scale
    assert "delta/scales" in encoding.objection("delta", parts, 200)


@pytest.mark.parametrize("encoding", SCALED[:2], ids=name_of)
def test_scale_whose_products_are_infinite_is_refused(encoding):
    parts = encoded(encoding, some(200))
    parts["delta/scales"][0] = 3e38
    assert "delta/scales" in encoding.objection("delta", parts, 200)


@pytest.mark.parametrize(
    ("encoding", "part", "value"),
    [
        (td.Int8(), "codes", -128),
        (td.Int4(), "codes", 0x80),  # the lower half is no code
        (td.Int4(), "codes", 0x08),
        (td.BFloat16(), "values", NAN),
        (td.BFloat16(), "values", INFINITE),
        (td.TopK(share=0.1), "values", NAN),
        (td.RandomK(share=0.1), "values", -INFINITE),
        (td.RandomK(share=0.1), "seed", -1),
        (td.TopK(share=0.1), "positions", -1),
        (td.TopK(share=0.1), "positions", 2**31 - 1),
        (GRID, "codes", GRID.largest + 1),
        (GRID, "codes", -GRID.largest - 1),
        (GRID, "codes", -(2**31)),
    ],
    ids=str,
)
@pytest.mark.parametrize("where", [0, -1])
def test_values_that_no_client_sends_are_refused(encoding, part, value, where):
    parts = encoded(encoding, some(1001))
    if encoding.kind == "topk" and part == "positions" and where == 0 and value > 0:
        value = 999  # not increasing
    parts[f"delta/{part}"][where] = value
    assert f"delta/{part}" in encoding.objection("delta", parts, 1001)


def test_position_that_is_given_twice_is_refused():
    parts = encoded(td.TopK(share=0.1), some(1000))
    parts["delta/positions"][5] = parts["delta/positions"][4]
    assert "increasing" in td.TopK(share=0.1).objection("delta", parts, 1000)


@pytest.mark.parametrize("block", [0, 7, 12, 65544, "tensor"])
def test_wrong_block_is_refused(block):
    sentence = f"Int8: block: must be a multiple of 8 from 8 to 65536, or 'vector' (got {block!r})"
    with pytest.raises(td.ConfigError, match=f"^{re.escape(sentence)}$"):
        td.Int8(block=block)


def test_share_and_denominator_out_of_range_are_refused():
    with pytest.raises(td.ConfigError, match="TopK: share"):
        td.TopK(share=0)
    with pytest.raises(td.ConfigError, match="denominator: must be a power of two"):
        td.Grid(denominator=100)
    for limit in (
        5e-324,
        1e300,
    ):  # two codes would not differ, or all be 0
        with pytest.raises(td.ConfigError, match="Grid: limit"):
            td.Grid(limit=limit)
    with pytest.raises(td.ConfigError, match="unknown key 'error_feedback'"):
        td.Grid(error_feedback=True)
    with pytest.raises(td.ConfigError, match="too long for positions of 32 bits"):
        td.TopK().layout("delta", 2**31)
