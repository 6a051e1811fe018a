"""Recurrent states beside attention: their sizes, and how the engine makes pages equal.

A state has no rows, so its page cannot grow with the block size.  The engine turns
it round: the *attention* block grows until its page holds a state, and the state's
page is then padded to it::

    block_size   = round_up(ceil(state_bytes / attention bytes a token), block size asked for)
    padding      = block_size * attention bytes a token - state_bytes

where 16 tokens are asked for by default, 64 by the MLA kernels.

The smaller the attention row (FP8, fewer heads), the larger the block.

Source: vLLM's `_align_hybrid_block_size` ("Setting attention block size to N tokens",
"Padding mamba page size by P %") and `MambaStateShapeCalculator`.
"""

from dataclasses import dataclass, replace
from fractions import Fraction

from kvslab.files import Fields
from kvslab.intmath import cdiv, round_up
from kvslab.layers import CacheLayer, LayerSpec, RecurrentState
from kvslab.models.options import CacheOptions, ModelStack

BYTES = {"bf16": 2, "fp32": 4}
_PUBLISHED = {
    "bfloat16": "bf16",
    "float16": "bf16",
    "float32": "fp32",
    "auto": "bf16",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSize:
    """The bytes of one recurrent state on one worker.

    Args:
        conv_elements: Inputs that the convolution still needs; kept in 16 bits.
        ssm_elements: The state itself.
        ssm_bytes: Bytes of one element of it.
    """

    conv_elements: int
    ssm_elements: int
    ssm_bytes: int

    @property
    def total_bytes(self) -> int:
        """All bytes of the state.

        >>> StateSize(conv_elements=3 * 8192, ssm_elements=32 * 128 * 128, ssm_bytes=2).total_bytes
        1097728
        """
        return 2 * self.conv_elements + self.ssm_bytes * self.ssm_elements


def ssm_bytes(fields: Fields, options: CacheOptions, *names: str) -> int:
    """Bytes of one element of a recurrent state: the option's, the config's, or two.

    Args:
        fields: The config; the first of `names` that it has counts.
        options: `ssm_dtype` goes before the config.
        names: Fields that name a dtype.

    Raises:
        InputError: The field names another dtype.
    """
    if options.ssm_dtype != "auto":
        return BYTES[options.ssm_dtype]
    for name in names:
        if fields.get(name) is not None:
            return BYTES[_PUBLISHED[fields.text(name, choices=_PUBLISHED)]]
    return BYTES["bf16"]


def state_layer(name: str, state: StateSize) -> CacheLayer:
    """A recurrent layer before its page is made equal to attention's."""
    size = state.total_bytes
    spec = LayerSpec(
        kind="mamba", block_size=1, row_bytes=size, retention=RecurrentState(), fixed_page_bytes=size
    )
    return CacheLayer(name=name, spec=spec)


def align_pages(stack: ModelStack) -> ModelStack:
    """Grow the attention blocks until a page holds a state; pad the states' pages to it.

    The grown block is a multiple of the one asked for, which the kernels can read; one
    that is large enough stays.  The notes say what became how large.

    Args:
        stack: Attention layers of one block size, and states.
    """
    layers = stack.layers
    states = [layer for layer in layers if layer.spec.kind == "mamba"]
    attention = [layer for layer in layers if layer.spec.kind != "mamba"]
    if not states or not attention:
        return stack
    state = max(states, key=lambda layer: layer.spec.payload_bytes)
    size, widest = state.spec.payload_bytes, max(layer.spec.row_bytes for layer in attention)
    asked = attention[0].spec.block_size
    block_size = round_up(cdiv(size, widest), asked)
    page = block_size * widest

    def aligned(layer: CacheLayer) -> CacheLayer:
        spec = layer.spec
        if spec.kind == "mamba":
            spec = replace(spec, block_size=block_size, fixed_page_bytes=page)
        else:
            spec = spec.with_block_size(block_size)
        return CacheLayer(name=layer.name, spec=spec)

    notes = []
    if block_size > asked:
        notes.append(
            f"attention block raised from {asked:,} to {block_size:,} tokens in {len(attention)} layers:"
            f" their page of {page:,} bytes must hold the {size:,} bytes of {state.name!r}"
        )
    if page > size:
        share = round(100 * (Fraction(page, size) - 1), 2)
        notes.append(
            f"state pages padded from {size:,} to {page:,} bytes (+{float_text(share)} %)"
            f" in {len(states)} layers, from {states[0].name!r} on"
        )
    return stack.map_layers(aligned, *notes)


def float_text(value: Fraction) -> str:
    """A number with two decimals, without a float.

    >>> float_text(Fraction(149, 100)), float_text(Fraction(2, 1))
    ('1.49', '2.00')
    """
    whole = round(100 * value)
    return f"{whole // 100}.{whole % 100:02}"
