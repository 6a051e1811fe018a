"""The oracle: MXFP4 rows in plain Python integers, slow and obvious.

A float enters as its fp32 bit pattern and becomes an exact integer, its value times
2**150.  Scales are found by comparing such integers with powers of two and codes by looking
for the nearest entry of a table.  Nothing here uses the shifts and thresholds of the other
backends, so an error in those cannot hide.
"""

import functools
from collections.abc import MutableSequence, Sequence

from kvslab.mxfp4.contract import HEAD_DIM, MICROBLOCK, PageGeometry, Rule

_UNIT = 150
"""Values are held as integers times 2**-150; the smallest fp32 subnormal is 2**-149."""

_HALVES = (0, 1, 2, 3, 4, 6, 8, 12)
"""Twice the magnitude of each code."""

_ONE_TEN_THOUSANDTH = (0x38D1B717 & 0x7FFFFF | 0x800000) << ((0x38D1B717 >> 23) - 150 + _UNIT)
"""The fp32 number nearest to 1e-4."""

_INFINITY = 0x7F800000


def _exact(bits: int) -> int:
    """The magnitude of a finite fp32 pattern, times 2**150."""
    exponent, fraction = bits >> 23 & 0xFF, bits & 0x7FFFFF
    if exponent == 0:
        return fraction << (_UNIT - 149)
    return (fraction | 0x800000) << (exponent - 150 + _UNIT)


def _power(exponent: int) -> int:
    """`2**exponent`, times 2**150."""
    return 1 << (exponent + _UNIT)


def _smallest_scale(amax: int, at_least: int) -> int:
    """The smallest byte, from `at_least` up, whose scale times 6 reaches `amax`."""
    return next(byte for byte in range(at_least, 256) if 6 * _power(byte - 127) >= amax)


@functools.cache
def _scale_byte(amax: int, rule: Rule) -> int:
    """The scale byte for a finite largest magnitude, given times 2**150."""
    match rule:
        case Rule.VLLM:
            return _smallest_scale(amax, 1)
        case Rule.DEEPGEMM:
            return _smallest_scale(max(amax, _ONE_TEN_THOUSANDTH), 1)
        case Rule.SGLANG:
            # The floor is of the scale: the smallest power of two that is not below it.
            floor = next(byte for byte in range(256) if _power(byte - 127) >= _ONE_TEN_THOUSANDTH)
            return _smallest_scale(amax, floor)
        case Rule.OCP_FLOOR | Rule.TORCHAO_EVEN:
            if rule is Rule.TORCHAO_EVEN:
                # From 1.75 times a power of two on, two significant bits round up to the next one.
                reached = [e for e in range(-126, 129) if 4 * amax >= 7 * _power(e - 1)]
            else:
                reached = [e for e in range(-126, 128) if amax >= _power(e)]
            return max(reached[-1] - 2 + 127, 0) if reached else 0


def _code(magnitude: int, byte: int, rule: Rule) -> int:
    """The code of the nearest value, for a magnitude times 2**150 and its scale byte."""
    # Both torchao modes divide by 2**-126 where they store the byte of 2**-127.
    half = _power(max(byte, 1) - 127 - 1)
    distance = [abs(magnitude - entry * half) for entry in _HALVES]
    nearest = [code for code in range(8) if distance[code] == min(distance)]
    if len(nearest) == 1:
        return nearest[0]
    if rule in (Rule.DEEPGEMM, Rule.SGLANG):
        return nearest[0]
    return next(code for code in nearest if code % 2 == 0)


def _special_bytes(rule: Rule) -> tuple[int, int]:
    """Scale byte of a microblock with a NaN, and of one with an infinity only."""
    match rule:
        case Rule.VLLM:
            return 255, 254
        case Rule.OCP_FLOOR | Rule.TORCHAO_EVEN:
            return 255, 253
        case Rule.DEEPGEMM | Rule.SGLANG:
            return 254, 254


def _nan_microblock_code(bits: int, rule: Rule) -> int:
    sign, magnitude = bits >> 31, bits & 0x7FFFFFFF
    match rule:
        case Rule.VLLM:
            return 0
        case Rule.OCP_FLOOR | Rule.TORCHAO_EVEN:
            # torchao divides by infinity: finite elements vanish, the others are NaN,
            # and its integer rounding makes 3 of a NaN.
            return 8 * sign + (3 if magnitude >= _INFINITY else 0)
        case Rule.DEEPGEMM | Rule.SGLANG:
            if magnitude > _INFINITY:
                return 7 if rule is Rule.DEEPGEMM else 0
            return _element_code(bits, 254, rule)


@functools.lru_cache(maxsize=1 << 18)
def _element_code(bits: int, byte: int, rule: Rule) -> int:
    sign, magnitude = bits >> 31, bits & 0x7FFFFFFF
    code = 7 if magnitude == _INFINITY else _code(_exact(magnitude), byte, rule)
    if code == 0 and rule in (Rule.DEEPGEMM, Rule.SGLANG):
        return 0
    return 8 * sign + code


def quantize_microblock(bits: Sequence[int], rule: Rule = Rule.VLLM) -> tuple[list[int], int]:
    """Quantize 32 elements.

    Args:
        bits: 32 fp32 bit patterns, bit 31 the sign.
        rule: How to choose the scale and to round.

    Returns:
        The 32 codes and the scale byte.

    >>> codes, byte = quantize_microblock([0x40C00000, 0xBF000000] + [0] * 30)
    >>> codes[:3], byte
    ([7, 9, 0], 127)
    """
    largest = max(pattern & 0x7FFFFFFF for pattern in bits)
    nan_byte, infinity_byte = _special_bytes(rule)
    if largest > _INFINITY:
        return [_nan_microblock_code(pattern, rule) for pattern in bits], nan_byte
    byte = infinity_byte if largest == _INFINITY else _scale_byte(_exact(largest), rule)
    return [_element_code(pattern, byte, rule) for pattern in bits], byte


def quantize_row(bits: Sequence[int], rule: Rule = Rule.VLLM) -> tuple[bytes, bytes]:
    """Quantize one row of 128 fp32 patterns to its 64 value bytes and 4 scale bytes."""
    codes: list[int] = []
    scales: list[int] = []
    for start in range(0, HEAD_DIM, MICROBLOCK):
        part, byte = quantize_microblock(bits[start : start + MICROBLOCK], rule)
        codes += part
        scales.append(byte)
    return bytes(low + 16 * high for low, high in zip(codes[::2], codes[1::2], strict=True)), bytes(scales)


def _pattern(halves: int, byte: int) -> int:
    """The fp32 pattern of `halves / 2 * 2**(byte - 127)`, which is exact or overflows."""
    if halves == 0:
        return 0
    value = halves * _power(byte - 127 - 1)
    if value >= _power(128):
        return _INFINITY
    exponent = value.bit_length() - 1 - _UNIT
    if exponent < -126:
        return value >> (_UNIT - 149)
    fraction = value - _power(exponent)
    return (exponent + 127) << 23 | fraction << 23 >> (exponent + _UNIT)


def dequantize_row(values: Sequence[int], scales: Sequence[int]) -> list[int]:
    """The 128 fp32 patterns of one row; a NaN is 0x7FC00000, too large a value an infinity.

    >>> [hex(p) for p in dequantize_row([0xA1] + [0] * 63, [128, 0, 0, 0])[:2]]
    ['0x3f800000', '0xc0000000']
    """
    patterns = []
    for index in range(HEAD_DIM):
        pair, byte = values[index // 2], scales[index // MICROBLOCK]
        code = pair // 16 if index % 2 else pair % 16
        sign, magnitude = divmod(code, 8)
        patterns.append(0x7FC00000 if byte == 255 else sign << 31 | _pattern(_HALVES[magnitude], byte))
    return patterns


def insert_row(
    slab: MutableSequence[int],
    bits: Sequence[int],
    slot: int,
    *,
    page: PageGeometry,
    block_stride: int,
    rule: Rule = Rule.VLLM,
) -> None:
    """Quantize one row and write its 68 bytes at a slot of a flat slab; slot -1 writes nothing."""
    if slot == -1:
        return
    block_id, row = page.place(slot)
    values, scales = quantize_row(bits, rule)
    start = block_id * block_stride
    for index, byte in enumerate(values):
        slab[start + page.values_at(row) + index] = byte
    for index, byte in enumerate(scales):
        slab[start + page.scales_at(row) + index] = byte


def read_row(
    slab: Sequence[int], block_id: int, row: int, *, page: PageGeometry, block_stride: int
) -> list[int]:
    """The 128 fp32 patterns of one row of a flat slab."""
    start = block_id * block_stride
    values_at, scales_at = start + page.values_at(row), start + page.scales_at(row)
    return dequantize_row(
        [slab[values_at + index] for index in range(page.value_bytes)],
        [slab[scales_at + index] for index in range(page.scale_bytes)],
    )
