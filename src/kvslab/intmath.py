"""Exact integer arithmetic: rounding, checked integers and byte sizes.

Planning uses no float.  A size is a Python `int` up to `MAX_INT` (2**53, the
largest range in which every JSON reader keeps integers exact); a ratio is a
`fractions.Fraction` until it is printed.
"""

import re
from fractions import Fraction

from kvslab.errors import InputError

MAX_INT = 2**53

UNIT_BYTES = {
    "B": 1,
    **{f"{p}B": 1000**i for i, p in enumerate("KMGTP", start=1)},
    **{f"{p}iB": 1024**i for i, p in enumerate("KMGTP", start=1)},
}

_SIZE = re.compile(r"\s*([0-9]{1,20}(?:\.[0-9]{1,20})?)\s*([A-Za-z]*)\s*")
_UNIT_BY_LOWER = {unit.lower(): unit for unit in UNIT_BYTES} | {"": "B"}


def cdiv(a: int, b: int) -> int:
    """Divide and round up: the smallest `n` with `n * b >= a`.

    >>> cdiv(129, 64)
    3
    """
    return -(-a // b)


def round_up(a: int, multiple: int) -> int:
    """Round `a` up to a multiple.

    >>> round_up(4352, 512)
    4608
    """
    return cdiv(a, multiple) * multiple


def checked_int(field: str, value: object, *, minimum: int = 1, maximum: int = MAX_INT) -> int:
    """Return `value` if it is an integer in `[minimum, maximum]`; a bool is not one.

    Raises:
        InputError: It is something else; the message names `field`.

    >>> checked_int("block_size", True)
    Traceback (most recent call last):
    kvslab.errors.InputError: block_size: got True, need an integer from 1 to 9,007,199,254,740,992
    """
    if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= maximum:
        raise InputError(field, value, f"an integer from {minimum:,} to {maximum:,}")
    return value


def parse_bytes(text: str | int, field: str = "budget") -> int:
    """Read a byte size exactly: an integer, or text such as `26.46GiB` or `80GB`.

    A fraction of a byte is dropped (a budget never grows by parsing).  Units are
    decimal (`KB` = 1,000 bytes) or binary (`KiB` = 1,024 bytes); case is ignored.

    Raises:
        InputError: The text is no size, or it is outside 1 to 2**53 bytes.

    >>> parse_bytes("26.46GiB")
    28411208663
    >>> parse_bytes("80GB")
    80000000000
    """
    if not isinstance(text, str):
        return checked_int(field, text)
    match = _SIZE.fullmatch(text)
    unit = _UNIT_BY_LOWER.get(match[2].lower()) if match else None
    if match is None or unit is None:
        raise InputError(field, text, f"bytes, or a number with one of {', '.join(UNIT_BYTES)}")
    size = int(Fraction(match[1]) * UNIT_BYTES[unit])
    if not 1 <= size <= MAX_INT:
        raise InputError(field, text, f"a size from 1 to {MAX_INT:,} bytes")
    return size
