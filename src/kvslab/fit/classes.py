"""What the fitted planner may choose: for each class of layers a split and a block size.

A *class* is the layers that could share one block table: one retention, one declared
block size, one kind of attention.  Cut into `k` groups by taking every k-th layer
tuple, its largest group has::

    largest_bytes(k, b) = sum over page sizes of page_bytes(b) * ceil(num_layers / k)

and one request holds `k` times the blocks.  `ceil(n / k)` takes about `2 * sqrt(n)`
values, so a class has few options that differ, whatever its depth.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from kvslab.capacity import Load, held_blocks, transient_blocks
from kvslab.errors import InputError
from kvslab.generations.standard import uniform_type
from kvslab.groups import CacheGroup, classes_of, cut_evenly, own_pages
from kvslab.intmath import cdiv, round_up
from kvslab.layers import CacheLayer, FullHistory, LayerSpec, LocalChunk, RecurrentState, SlidingWindow

BlockSizes = Literal["kernel-legal", "free", "keep"]
"""One of `BLOCK_SIZES`."""
BLOCK_SIZES: tuple[BlockSizes, ...] = ("kernel-legal", "free", "keep")
"""Which block sizes a search may use: the declared ones, those a kernel reads, or any."""

INDEXER_PAGE_ROWS = (32, 64)
"""Rows of a latent page that the kernels read."""
WINDOW_PAGE_ROWS = 64
"""A window's page has a multiple of so many rows."""
MOST_WINDOW_PAGES = 16
"""Multiples that are tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One way to hold a class of layers.

    Args:
        block_size: Tokens of one block.
        num_groups: Groups that the class is cut into.
        largest_bytes: Bytes of the largest of them.
        held: Blocks that requests hold between steps, over all groups, each length
            times its weight.
        transient: Blocks that one batch in flight needs, over all groups.
        is_changed: Whether the block size is another than the declared one.
    """

    block_size: int
    num_groups: int
    largest_bytes: int
    held: int
    transient: int
    is_changed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerClass:
    """Layers that could share one block table.

    Args:
        layers: In the order of the stack.
        specs: How many layers have each spec.
    """

    layers: tuple[CacheLayer, ...]
    specs: tuple[tuple[LayerSpec, int], ...]

    @property
    def declared_block_size(self) -> int:
        """Tokens of one block as the model's layers state it."""
        return self.specs[0][0].block_size

    def columns(self, block_size: int) -> dict[int, int]:
        """Layers of each page size, at this block size."""
        counts: dict[int, int] = {}
        for spec, count in self.specs:
            page = _resized(spec, block_size).page_bytes
            counts[page] = counts.get(page, 0) + count
        return counts

    def probe(self, block_size: int) -> CacheGroup:
        """A group of one of the layers: enough to count blocks with."""
        spec = _resized(self.specs[0][0], block_size)
        return own_pages([CacheLayer(name=self.layers[0].name, spec=spec)])

    def cut(self, block_size: int, num_groups: int) -> tuple[CacheGroup, ...]:
        """The groups of one option."""
        resized = {spec: _resized(spec, block_size) for spec, _ in self.specs}
        layers = [
            layer
            if layer.spec.block_size == block_size
            else CacheLayer(name=layer.name, spec=resized[layer.spec])
            for layer in self.layers
        ]
        return cut_evenly(layers, [layer.spec.page_bytes for layer in layers], num_groups)


def _resized(spec: LayerSpec, block_size: int) -> LayerSpec:
    return spec if spec.block_size == block_size else spec.with_block_size(block_size)


def layer_classes(layers: Iterable[CacheLayer]) -> tuple[LayerClass, ...]:
    """The classes of a stack: full histories first, then in order of first appearance.

    Engines take the first group for the one whose table has an entry for every token.
    """
    classes = [
        LayerClass(layers=members, specs=tuple(Counter(layer.spec for layer in members).items()))
        for members in classes_of(layers, uniform_type)
    ]
    return tuple(sorted(classes, key=lambda c: not isinstance(c.specs[0][0].retention, FullHistory)))


def allowed_block_sizes(members: LayerClass, load: Load, rule: BlockSizes) -> tuple[int, ...]:
    """Block sizes that a class may take, in tokens, ascending.

    * `keep`: the declared one.
    * `kernel-legal`: latent pages of 32 or 64 rows may become the other; a window page
      of a multiple of 64 rows any such multiple up to 16; a page of a sliding-window
      MLA layer with other rows is a compressor's state, which takes any power of two.
      Everything else keeps its block size.
    * `free`: any power of two that covers whole rows, for study.

    Powers of two end with the first that holds a whole window (or the whole request)
    and the tokens in flight: a larger block holds no fewer blocks.

    Raises:
        InputError: There is no such rule.
    """
    if rule not in BLOCK_SIZES:
        raise InputError("block_sizes", rule, f"one of {', '.join(BLOCK_SIZES)}")
    declared = members.declared_block_size
    specs = [spec for spec, _ in members.specs]
    retention = specs[0].retention
    fixed = isinstance(retention, RecurrentState) or any(spec.fixed_page_bytes is not None for spec in specs)
    if rule == "keep" or fixed:
        return (declared,)
    unit = math.lcm(*(spec.compress_ratio for spec in specs))
    if rule == "free":
        sizes = _doublings(unit, _useful_tokens(retention, load))
    elif all(spec.kind == "mla_attention" for spec in specs):
        sizes = [size for size in (declared // 2, 2 * declared) if _are_latent_rows_legal(specs, size)]
    elif all(spec.kind == "sliding_window_mla" for spec in specs):
        if all(spec.rows_per_page % WINDOW_PAGE_ROWS == 0 for spec in specs):
            step = WINDOW_PAGE_ROWS * unit
            most = min(MOST_WINDOW_PAGES * step, round_up(_useful_tokens(retention, load), step))
            sizes = list(range(step, most + 1, step))
        else:
            sizes = _doublings(unit, _useful_tokens(retention, load))
    else:
        sizes = []
    return tuple(sorted({declared, *sizes}))


def _useful_tokens(retention: object, load: Load) -> int:
    """Tokens beyond which a larger block saves nothing."""
    match retention:
        case SlidingWindow(window_tokens=tokens) | LocalChunk(chunk_tokens=tokens):
            return max(tokens, load.max_in_flight_tokens)
        case _:
            return load.longest


def _doublings(unit: int, end: int) -> list[int]:
    sizes = [unit]
    while sizes[-1] < end:
        sizes.append(2 * sizes[-1])
    return sizes


def _are_latent_rows_legal(specs: Sequence[LayerSpec], block_size: int) -> bool:
    """Whether pages of 32 or 64 rows stay so, and every page holds whole rows; some page must be such."""
    read = [spec for spec in specs if spec.rows_per_page in INDEXER_PAGE_ROWS]
    whole = all(block_size and block_size % spec.compress_ratio == 0 for spec in specs)
    return (
        bool(read) and whole and all(block_size // spec.compress_ratio in INDEXER_PAGE_ROWS for spec in read)
    )


def options_of(
    members: LayerClass, load: Load, weights: Sequence[tuple[int, int]], rule: BlockSizes
) -> tuple[Option, ...]:
    """Every option of a class that differs from the others in more than surplus groups.

    Args:
        members: The class.
        load: The requests.
        weights: `(tokens, weight)` of each request length.
        rule: Which block sizes are allowed.
    """
    options = []
    for block_size in allowed_block_sizes(members, load, rule):
        probe = members.probe(block_size)
        held = sum(weight * held_blocks(probe, tokens, load) for tokens, weight in weights)
        transient = transient_blocks(probe, load)
        for num_groups, largest_bytes in _splits(members.columns(block_size)):
            options.append(
                Option(
                    block_size=block_size,
                    num_groups=num_groups,
                    largest_bytes=largest_bytes,
                    held=num_groups * held,
                    transient=num_groups * transient,
                    is_changed=block_size != members.declared_block_size,
                )
            )
    return tuple(options)


def _splits(columns: dict[int, int]) -> list[tuple[int, int]]:
    """`(num_groups, bytes of the largest group)`: for each size the fewest groups that reach it."""
    splits, num_groups = [], 1
    while True:
        depths = [cdiv(count, num_groups) for count in columns.values()]
        splits.append((num_groups, sum(page * depth for page, depth in zip(columns, depths, strict=True))))
        further = [cdiv(n, depth - 1) for n, depth in zip(columns.values(), depths, strict=True) if depth > 1]
        if not further:
            return splits
        num_groups = min(further)
