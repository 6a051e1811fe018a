"""The MXFP4 row and page, written down once: what every backend must read and write.

A row is one indexer key of 128 elements.  Four *microblocks* of 32 elements share one
scale byte each::

    element = E2M1(code) * 2**(scale_byte - 127)        scale byte 255: every element is NaN

    code = s e e m      bit 3 is the sign, bits 0 to 2 the magnitude 0 .5 1 1.5 2 3 4 6

Byte `i` of the 64 value bytes holds element `2i` in bits 0 to 3 and element `2i + 1` in
bits 4 to 7.  A page of R rows holds R x 64 value bytes, then R x 4 scale bytes, then
padding.  The page of block `b` starts `b * block_stride` bytes after the first one, so the
bytes of row `r` are::

    values  b * block_stride + r * 64            64 bytes
    scales  b * block_stride + R * 64 + r * 4     4 bytes

The block stride has nothing to do with the page's size; offsets are 64-bit (at a stride of
1,228,800 bytes block 1,748 lies past byte 2**31).

A *slot* names a row's place, `block_id * R + row`; slot -1 means that nothing is written.

Source: OCP Microscaling Formats (MX) v1.0, sections 5.2 and 5.3 (E2M1, E8M0); the page is
that of vLLM's DeepSeek-V4 indexer cache (vllm/models/deepseek_v4).
"""

import enum
from dataclasses import dataclass

from kvslab.errors import InputError
from kvslab.intmath import checked_int

HEAD_DIM = 128
"""Elements of one row."""
MICROBLOCK = 32
SCALES_PER_ROW = HEAD_DIM // MICROBLOCK
VALUE_BYTES = HEAD_DIM // 2
"""Bytes of one row's values: two E2M1 codes a byte, element 2i in bits 0 to 3."""
SCALE_BYTES = SCALES_PER_ROW
"""Bytes of one row's scales: one UE8M0 byte a microblock."""
ROW_BYTES = VALUE_BYTES + SCALE_BYTES
"""Bytes of one row: values, then scales."""

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
"""The value of each of the 16 codes."""

SCALE_BIAS = 127
NAN_SCALE = 255
SKIP_SLOT = -1

FP8_VALUE_BYTES = 128
FP8_SCALE_BYTES = 4
FP8_FLOOR_BYTE = 105
"""Scale byte of 2**-22, the power of two that 1e-4 / 448 rounds up to."""


class Rule(enum.StrEnum):
    """How a microblock's scale is chosen and its elements are rounded.

    Public implementations write different bytes for the same input; each member is one of
    them, and `RULES` holds its formula.  Only `VLLM` is a contract of this package; the
    others exist so that their bytes can be shown side by side.

    Attributes:
        VLLM: The smallest scale that keeps the largest element within 6; ties to even.
            Source: vLLM, `models/deepseek_v4/common/ops/fused_indexer_q.py`; the floor of
            the largest element, 6 * 2**-126, is that of DeepSeek-V4's reference code.
        OCP_FLOOR: `2**(floor(log2(amax)) - 2)`, so an element may saturate.
            Source: OCP MX v1.0, section 6.3; torchao 0.18, `ScaleCalculationMode.FLOOR`.
        TORCHAO_EVEN: As `OCP_FLOOR` after the largest element is rounded to two significant
            bits.  Source: torchao 0.18, `prototype/mx_formats/mx_tensor.py`, mode `EVEN`.
        DEEPGEMM: As `VLLM` but the largest element is floored at 1e-4, ties go toward zero
            and a negative zero loses its sign.  Source: DeepGEMM, `deep_gemm/utils/math.py`.
        SGLANG: As `DEEPGEMM` but the floor, 1e-4, is of the scale.
            Source: SGLang's FP4 indexer quantizer and its reference
            (`_ref_quantize_fp4_indexer` in its unit tests).
    """

    VLLM = "vllm"
    OCP_FLOOR = "ocp_floor"
    TORCHAO_EVEN = "torchao_even"
    DEEPGEMM = "deepgemm"
    SGLANG = "sglang"


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleFormula:
    """A rule as numbers, on `bits`, the fp32 pattern of a microblock's largest magnitude.

    `byte = max(((bits + add) >> 23) - 2, floor_byte)` for a finite largest magnitude, and
    elements are divided by `2**(max(byte, 1) - 127)`.

    Attributes:
        add: Added before the exponent is taken: 0x3FFFFF rounds `amax / 6` up to a power of
            two, 0 takes the exponent of `amax`, 0x200000 rounds `amax` to two bits first.
        floor_byte: The scale byte of a microblock of zeros.
        ties_to_even: False: a tie goes to the smaller magnitude.
        keeps_negative_zero: False: what rounds to zero has sign bit 0.
        nan_byte: Scale byte of a microblock that holds a NaN.
        inf_byte: Scale byte of a microblock that holds an infinity and no NaN.
        nan_code: Code of the NaN element itself (torchao: of one without payload); the sign bit
            is the element's where `keeps_negative_zero`.
        nan_zeroes: A NaN in a microblock sets the codes of all its elements to 0.

    >>> RULES[Rule.VLLM].byte_of(0x40C00000), RULES[Rule.VLLM].byte_of(0x40C00001)
    (127, 128)
    """

    add: int
    floor_byte: int
    ties_to_even: bool
    keeps_negative_zero: bool
    nan_byte: int
    inf_byte: int
    nan_code: int
    nan_zeroes: bool = False

    def byte_of(self, bits: int) -> int:
        """The scale byte for the fp32 pattern of a finite largest magnitude."""
        return max(((bits + self.add) >> 23) - 2, self.floor_byte)


_ROUND_UP = 0x3FFFFF
RULES: dict[Rule, RuleFormula] = {
    Rule.VLLM: RuleFormula(
        add=_ROUND_UP,
        floor_byte=1,
        ties_to_even=True,
        keeps_negative_zero=True,
        nan_byte=NAN_SCALE,
        inf_byte=254,
        nan_code=0,
        nan_zeroes=True,
    ),
    Rule.OCP_FLOOR: RuleFormula(
        add=0,
        floor_byte=0,
        ties_to_even=True,
        keeps_negative_zero=True,
        nan_byte=NAN_SCALE,
        inf_byte=253,
        nan_code=3,
    ),
    Rule.TORCHAO_EVEN: RuleFormula(
        add=0x200000,
        floor_byte=0,
        ties_to_even=True,
        keeps_negative_zero=True,
        nan_byte=NAN_SCALE,
        inf_byte=253,
        nan_code=3,
    ),
    Rule.DEEPGEMM: RuleFormula(
        add=_ROUND_UP,
        floor_byte=112,
        ties_to_even=False,
        keeps_negative_zero=False,
        nan_byte=254,
        inf_byte=254,
        nan_code=7,
    ),
    Rule.SGLANG: RuleFormula(
        add=_ROUND_UP,
        floor_byte=114,
        ties_to_even=False,
        keeps_negative_zero=False,
        nan_byte=254,
        inf_byte=254,
        nan_code=0,
    ),
}
"""What each rounding rule does, as numbers that every backend reads."""


def checked_rule(rule: Rule | str) -> Rule:
    """The rule of that name.

    Raises:
        InputError: There is none.

    >>> checked_rule("vllm")
    <Rule.VLLM: 'vllm'>
    """
    try:
        return Rule(rule)
    except ValueError:
        raise InputError("rule", rule, f"one of {', '.join(Rule)}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class PageGeometry:
    """Where the rows of one page lie, in bytes from the page's start.

    Args:
        rows_per_page: R, the rows of one page.
        value_bytes: Value bytes of one row.
        scale_bytes: Scale bytes of one row.

    Raises:
        InputError: `rows_per_page` is no positive integer.

    >>> page = PageGeometry(rows_per_page=64)
    >>> page.payload_bytes, page.values_at(1), page.scales_at(1)
    (4352, 64, 4100)
    """

    rows_per_page: int
    value_bytes: int = VALUE_BYTES
    scale_bytes: int = SCALE_BYTES

    def __post_init__(self) -> None:
        checked_int("rows_per_page", self.rows_per_page)

    @property
    def payload_bytes(self) -> int:
        """Bytes of one page that rows use."""
        return self.rows_per_page * (self.value_bytes + self.scale_bytes)

    def values_at(self, row: int) -> int:
        """Offset of a row's value bytes in its page."""
        return row * self.value_bytes

    def scales_at(self, row: int) -> int:
        """Offset of a row's scale bytes in its page."""
        return self.rows_per_page * self.value_bytes + row * self.scale_bytes

    def slot(self, block_id: int, row: int) -> int:
        """The slot of a row, `block_id * rows_per_page + row`."""
        return block_id * self.rows_per_page + row

    def place(self, slot: int) -> tuple[int, int]:
        """The block id and row of a slot that is not -1.

        >>> PageGeometry(rows_per_page=7).place(15)
        (2, 1)
        """
        return divmod(slot, self.rows_per_page)
