"""Guards the oracle itself: a wrong codec would make every other test agree on wrong bytes.

Its independent witnesses are tables written out by hand, ml_dtypes (E2M1 and E8M0) and
float64 arithmetic.
"""

import math
import random
import struct
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from kvslab.mxfp4 import codec
from kvslab.mxfp4.contract import E2M1, RULES, PageGeometry, Rule


def bits(value: float) -> int:
    return int(struct.unpack("<I", struct.pack("<f", value))[0])


def test_the_table_is_that_of_ml_dtypes() -> None:
    theirs = np.arange(16, dtype=np.uint8).view(ml_dtypes.float4_e2m1fn).astype(np.float64)
    assert [struct.pack("<d", v) for v in E2M1] == [struct.pack("<d", v) for v in theirs]


@pytest.mark.parametrize(
    ("magnitude", "code"),
    [
        (0.0, 0),
        (0.25, 0),  # every tie goes to the even code
        (0.75, 2),
        (1.25, 2),
        (1.75, 4),
        (2.5, 4),
        (3.5, 6),
        (5.0, 6),
        (0.25000003, 1),  # and its neighbours to their own side
        (0.74999994, 1),
        (1.2500001, 3),
        (1.7499999, 3),
        (2.5000002, 5),
        (3.4999998, 5),
        (5.0000005, 7),
        (0.5, 1),
        (1.0, 2),
        (1.5, 3),
        (2.0, 4),
        (3.0, 5),
        (4.0, 6),
        (6.0, 7),
    ],
)
def test_codes_under_scale_one(magnitude: float, code: int) -> None:
    """Largest element 6, so the scale is 1 and its byte 127."""
    for sign in (0, 1):
        codes, byte = codec.quantize_microblock([bits(6.0), bits(magnitude) | sign << 31] + [0] * 30)
        assert (codes[:2], byte) == ([7, code + 8 * sign], 127)


@pytest.mark.parametrize(
    ("amax", "byte"),
    [
        (6.0, 127),
        (math.nextafter(6.0, 7.0), 127),  # as fp32 this is 6.0
        (6.0000005, 128),
        (3.0, 126),
        (1.0, 125),
        (0.75, 124),
        (12.0, 128),
        (3.4028234663852886e38, 253),
        (0.0, 1),
        (1e-45, 1),
        (6 * 2.0**-126, 1),
        (7 * 2.0**-126, 2),
    ],
)
def test_scale_bytes_by_hand(amax: float, byte: int) -> None:
    assert codec.quantize_microblock([bits(amax)] + [0] * 31)[1] == byte


def test_scale_byte_is_the_ceiling_of_the_logarithm_for_every_positive_bf16() -> None:
    """127 + ceil(log2(amax / 6)), exactly: 2**(byte - 127) reaches amax / 6 and half of it does not."""
    for pattern in range(1, 0x7F80):
        value = Fraction(struct.unpack("<f", struct.pack("<I", pattern << 16))[0])
        byte = codec.quantize_microblock([pattern << 16] + [0] * 31)[1]
        scale = Fraction(2) ** (byte - 127)
        assert 6 * scale >= value
        assert byte == 1 or 6 * scale / 2 < value


@pytest.mark.parametrize("rule", Rule)
def test_the_formulas_agree_with_the_codec(rule: Rule) -> None:
    """`RULES` is what the fast backends use; the codec finds scales by comparing integers."""
    picker = random.Random(3)
    edges = [(e << 23) + d for e in range(255) for d in (0, 1, 0x400000, 0x400001, 0x600000, 0x7FFFFF)]
    for amax in [picker.randrange(0x7F800000) for _ in range(3000)] + edges:
        assert RULES[rule].byte_of(amax) == codec.quantize_microblock([amax] + [0] * 31, rule)[1]


@pytest.mark.parametrize(
    ("rule", "zero_row", "nan_byte", "tie_of_half", "negative_zero"),
    [
        (Rule.VLLM, 1, 255, 2, 8),
        (Rule.OCP_FLOOR, 0, 255, 2, 8),
        (Rule.TORCHAO_EVEN, 0, 255, 2, 8),
        (Rule.DEEPGEMM, 112, 254, 1, 0),
        (Rule.SGLANG, 114, 254, 1, 0),
    ],
)
def test_rules_differ_where_their_sources_do(
    rule: Rule, zero_row: int, nan_byte: int, tie_of_half: int, negative_zero: int
) -> None:
    assert codec.quantize_microblock([0] * 32, rule)[1] == zero_row
    assert codec.quantize_microblock([0x7FC00000] + [0] * 31, rule)[1] == nan_byte
    codes, byte = codec.quantize_microblock([bits(6.0), bits(0.75), bits(-0.0)] + [0] * 29, rule)
    scale = 2.0 ** (byte - 127)
    codes, _ = codec.quantize_microblock([bits(6.0), bits(0.75 * scale), bits(-0.0)] + [0] * 29, rule)
    assert codes[1:3] == [tie_of_half, negative_zero]


def test_codes_agree_with_ml_dtypes_under_our_scale() -> None:
    picker = random.Random(11)
    for _ in range(2000):
        row = [picker.gauss(0, 1) * 2.0 ** picker.randrange(-60, 60) for _ in range(32)]
        patterns = [bits(v) for v in row]
        codes, byte = codec.quantize_microblock(patterns)
        exact = np.array(patterns, dtype=np.uint32).view(np.float32) * np.float32(2.0 ** (127 - byte))
        theirs = exact.astype(ml_dtypes.float4_e2m1fn).view(np.uint8)
        assert codes == theirs.tolist()


def test_dequantized_patterns_agree_with_float64_for_every_code_and_scale() -> None:
    for byte in range(256):
        for code in range(16):
            got = codec.dequantize_row([code] + [0] * 63, [byte, 0, 0, 0])[0]
            if byte == 255:
                assert got == 0x7FC00000
                continue
            value = math.copysign(abs(E2M1[code]) * 2.0 ** (byte - 127), E2M1[code])
            with np.errstate(over="ignore"):
                assert got == int(np.float32(value).view(np.uint32))


def test_packing_puts_the_even_element_in_the_low_nibble() -> None:
    values, scales = codec.quantize_row([bits(6.0), bits(-0.5)] + [0] * 126)
    assert (values[0], scales) == (0x97, bytes([127, 1, 1, 1]))


def test_a_page_holds_all_values_and_then_all_scales() -> None:
    page = PageGeometry(rows_per_page=2)
    slab = bytearray(b"\xee" * 400)
    codec.insert_row(slab, [bits(6.0)] * 128, 3, page=page, block_stride=200)
    expected = bytearray(b"\xee" * 400)
    expected[200 + 64 : 200 + 128] = b"\x77" * 64
    expected[200 + 132 : 200 + 136] = bytes([127] * 4)
    assert slab == expected
    assert codec.read_row(slab, 1, 1, page=page, block_stride=200) == [bits(6.0)] * 128
    codec.insert_row(slab, [0] * 128, -1, page=page, block_stride=200)
    assert slab == expected
