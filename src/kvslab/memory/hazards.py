"""What goes wrong when a block's bytes outlive their owner, and which layers it can hurt.

A block that changes its group keeps its old bytes.  A kernel that masks unwritten
rows by multiplying with zero still reads them, and `0 * NaN = NaN`.  Whether old
bytes can be NaN depends on who wrote and who reads:

=========  ==========================================  =============================
read as    NaN where                                   finite bytes that can look so
=========  ==========================================  =============================
fp8        the byte is 0x7F or 0xFF                    bf16, fp32, e2m1, ue8m0
bf16       exponent all ones, mantissa not 0           fp32, e2m1, ue8m0
fp32       exponent all ones, mantissa not 0           e2m1, ue8m0
ue8m0      the byte is 0xFF                            bf16, fp32, e2m1
e2m1       never                                       none
=========  ==========================================  =============================

Finite FP8 bytes are harmless to everyone: they hold neither 0x7F nor 0xFF, which
every NaN of the other formats needs.  Bytes of the reader's own format are too.

Source: vLLM PR 35219 (states) and PR 47574 (windows beside FP8); OCP 8-bit floating
point specification, OCP Microscaling Formats 1.0.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch

from kvslab.errors import InputError, OwnershipError
from kvslab.formats import INDEXER_FORMATS, RowFormat, indexer_row, latent_row, state_row
from kvslab.intmath import checked_int
from kvslab.layers import CacheLayer
from kvslab.memory.pool import BlockPool
from kvslab.memory.views import SlabMemory, allocate
from kvslab.plan import Plan
from kvslab.slab import PlacedPage, SlabLayout

MAKES_NAN: Mapping[str, frozenset[str]] = {
    "fp8": frozenset({"bf16", "fp32", "e2m1", "ue8m0"}),
    "bf16": frozenset({"fp32", "e2m1", "ue8m0"}),
    "fp32": frozenset({"e2m1", "ue8m0"}),
    "ue8m0": frozenset({"bf16", "fp32", "e2m1"}),
    "e2m1": frozenset(),
}
"""Element that is read -> elements whose finite bytes can decode as NaN there."""

ELEMENT_OF_PART: Mapping[str, str] = {
    "FP8 values": "fp8",
    "BF16 values": "bf16",
    "BF16 RoPE": "bf16",
    "FP32 scale": "fp32",
    "FP32 state": "fp32",
    "E2M1 values": "e2m1",
    "UE8M0 scales": "ue8m0",
    "scales": "ue8m0",
}

_HEAD_DIM, _ROPE_DIM, _INDEX_HEAD_DIM = 512, 64, 128


def deepseek_v4_format(layer: CacheLayer) -> RowFormat:
    """The row format of a DeepSeek-V4 cache layer, from its name and row length.

    Raises:
        InputError: No format of that kind has such a row.
    """
    row_bytes = layer.spec.row_bytes
    if layer.name.endswith("state_cache"):
        known = [state_row(row_bytes // 4)]
    elif layer.name.endswith("k_cache"):
        known = [indexer_row(indexer, _INDEX_HEAD_DIM) for indexer in INDEXER_FORMATS]
    else:
        known = [latent_row(latent, _HEAD_DIM, _ROPE_DIM) for latent in ("fp8", "bf16", "fp8_ds_mla")]
    for row_format in known:
        if row_format.row_bytes == row_bytes:
            return row_format
    need = f"rows of {', '.join(str(row_format.row_bytes) for row_format in known)} bytes"
    raise InputError(f"row_bytes of {layer.name}", row_bytes, need)


FormatRule = Callable[[CacheLayer], RowFormat]


@dataclass(frozen=True, slots=True, kw_only=True)
class ZeroNeed:
    """A layer whose page must be cleared when a block changes its owner.

    Args:
        layer: The layer that would read NaN.
        group_id: Its group.
        read_as: The element of its row that can turn out NaN.
        written_by: A layer of another group that shares bytes with it.
        written_as: The element of that layer which can look so.
    """

    layer: str
    group_id: int
    read_as: str
    written_by: str
    written_as: str


def layers_to_zero(slab: SlabLayout, format_of: FormatRule = deepseek_v4_format) -> tuple[ZeroNeed, ...]:
    """The layers that need zeroing on reuse, each with one cause.

    A layer needs it if a page of another group shares a byte with its page and
    holds an element that can decode as NaN in it (groups of a lockstep set share
    no byte).  Where inside the page the
    elements meet is not looked at, so a layer may be named that is safe by luck.
    """
    pages = list(slab.pages)
    elements = {page.layer.name: _elements(format_of(page.layer)) for page in pages}
    needs = []
    for page in pages:
        others = (p for p in pages if p.group_id != page.group_id and _share_a_byte(p, page))
        cause = next(_causes(page, others, elements), None)
        if cause is not None:
            needs.append(cause)
    return tuple(needs)


def _elements(row_format: RowFormat) -> tuple[str, ...]:
    return tuple(ELEMENT_OF_PART[what] for what, _ in row_format.parts)


def _share_a_byte(one: PlacedPage, other: PlacedPage) -> bool:
    return one.offset < other.end and other.offset < one.end


def _causes(
    page: PlacedPage, others: Iterable[PlacedPage], elements: Mapping[str, tuple[str, ...]]
) -> Iterator[ZeroNeed]:
    for other in others:
        for read_as in elements[page.layer.name]:
            for written_as in elements[other.layer.name]:
                if written_as in MAKES_NAN[read_as]:
                    yield ZeroNeed(
                        layer=page.layer.name,
                        group_id=page.group_id,
                        read_as=read_as,
                        written_by=other.layer.name,
                        written_as=written_as,
                    )


@dataclass(frozen=True, slots=True, kw_only=True)
class NanCount:
    """What one part of one group's layers reads in a block that a state group left.

    Args:
        layers: The name of the first such layer, for many of one spec.
        num_layers: How many they are.
        group_id: Their group, the new owner.
        part: The part of the row, as `kvslab.formats` names it.
        elements: Elements read.
        nans: NaN among them before the block is cleared.
        nans_after_zeroing: NaN after `BlockPool.zero_spans` was cleared.
    """

    layers: str
    num_layers: int
    group_id: int
    part: str
    elements: int
    nans: int
    nans_after_zeroing: int


def nan_experiment(
    slab: SlabLayout, state_group: int, *, format_of: FormatRule = deepseek_v4_format, seed: int = 0
) -> tuple[NanCount, ...]:
    """Let a group of FP32 states write one block, then let every other owner read it.

    The states are standard normal, an ordinary finite thing to store.

    Args:
        slab: The slab.
        state_group: The group that owns the block first; all its rows are FP32.
        format_of: The row format of each layer.
        seed: Of the normal values.

    Raises:
        InputError: There is no such group, or its rows are not FP32.
    """
    checked_int("state_group", state_group, minimum=0, maximum=len(slab.groups) - 1)
    for layer in slab.groups[state_group].layers:
        if _elements(format_of(layer)) != ("fp32",):
            raise InputError(
                "state_group", state_group, f"FP32 rows in every layer, {layer.name!r} has others"
            )
    plan = Plan(slab=slab, budget_bytes=2 * slab.block_stride)
    memory, pool = allocate(plan), BlockPool(plan)
    memory.backing.zero_()
    noise = torch.Generator().manual_seed(seed)
    counts: list[NanCount] = []
    for reader in range(len(slab.groups)):
        if slab.owner_id(reader) == slab.owner_id(state_group):
            continue
        (block,) = pool.allocate(state_group)
        for layer in slab.groups[state_group].layers:
            rows = memory.typed(layer.name, torch.float32)[block]
            rows.copy_(torch.randn(rows.shape, generator=noise))
        pool.free(state_group, [block])
        pool.claim(reader, block)
        before = _nans_by_part(memory, reader, block, format_of)
        memory.zero(pool.zero_spans(reader, block))
        after = _nans_by_part(memory, reader, block, format_of)
        pool.free(reader, [block])
        counts += [
            NanCount(
                layers=names[0],
                num_layers=len(names),
                group_id=reader,
                part=part,
                elements=elements,
                nans=nans,
                nans_after_zeroing=after[key][2],
            )
            for key, (names, elements, nans) in before.items()
            for part in [key[1]]
        ]
    return tuple(counts)


def _nans_by_part(
    memory: SlabMemory, group_id: int, block: int, format_of: FormatRule
) -> dict[tuple[str, str], tuple[list[str], int, int]]:
    """`{(row format, part): (layers, elements, NaN)}` of one group's pages in one block."""
    found: dict[tuple[str, str], tuple[list[str], int, int]] = {}
    for layer in memory.plan.slab.groups[group_id].layers:
        row_format = format_of(layer)
        label = f"{row_format.name}, {layer.spec.rows_per_page} rows"
        for part, view in memory.parts(layer.name, row_format).items():
            names, elements, nans = found.get((label, part), ([], 0, 0))
            here = view[block]
            found[label, part] = (
                [*names, layer.name],
                elements + here.numel() * (2 if ELEMENT_OF_PART[part] == "e2m1" else 1),
                nans + count_nan(here, ELEMENT_OF_PART[part]),
            )
    return found


def count_nan(values: torch.Tensor, element: str) -> int:
    """NaN among the elements of a part, as `SlabMemory.parts` returns it."""
    match element:
        case "e2m1":
            return 0
        case "ue8m0":
            return int((values == 255).sum())
        case _:
            return int(values.float().isnan().sum())


@dataclass(frozen=True, slots=True, kw_only=True)
class Overwrite:
    """What one group loses when another one writes the same block.

    Args:
        first_group: Wrote the block, and still needs it.
        second_group: Wrote it afterwards.
        payload_bytes: What the first group stored.
        lost_bytes: Bytes of that which are gone.
        rows: Rows that the first group stored.
        lost_rows: Rows with a byte lost.
        refusal: What `BlockPool.claim` says to the second group.
    """

    first_group: int
    second_group: int
    payload_bytes: int
    lost_bytes: int
    rows: int
    lost_rows: int
    refusal: str


def double_write_experiment(slab: SlabLayout, first_group: int, second_group: int) -> Overwrite:
    """Let two groups write one block on purpose; then ask the pool.

    Raises:
        InputError: There is no such group, or the two are one owner.
    """
    for name, group_id in (("first_group", first_group), ("second_group", second_group)):
        checked_int(name, group_id, minimum=0, maximum=len(slab.groups) - 1)
    if slab.owner_id(first_group) == slab.owner_id(second_group):
        raise InputError("second_group", second_group, f"a group of another owner than group {first_group}")
    plan = Plan(slab=slab, budget_bytes=2 * slab.block_stride)
    memory, pool = allocate(plan), BlockPool(plan)
    (block,) = pool.allocate(first_group)
    first, second = (slab.groups[i].layers for i in (first_group, second_group))
    for layers, mark in ((first, 0x55), (second, 0xAA)):
        for layer in layers:
            memory.rows(layer.name)[block] = mark
    lost = [memory.rows(layer.name)[block] != 0x55 for layer in first]
    refusal = ""
    try:
        pool.claim(second_group, block)
    except OwnershipError as error:
        refusal = str(error)
    return Overwrite(
        first_group=first_group,
        second_group=second_group,
        payload_bytes=sum(rows.numel() for rows in lost),
        lost_bytes=sum(int(rows.sum()) for rows in lost),
        rows=sum(rows.shape[0] for rows in lost),
        lost_rows=sum(int(rows.any(dim=1).sum()) for rows in lost),
        refusal=refusal,
    )
