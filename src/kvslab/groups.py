"""Cache groups: layers that share one block table, and the rules that cut a stack into them.

All layers of a group allocate together, so they share a block size and a
retention.  Two rules serve every generation so far:

* `group_latent_stack`: latent (MLA) layers with sliding windows beside them, as
  in DeepSeek-V4.  The latent layers form the first group; the rest is cut into
  groups of about equal depth.
* `group_other_hybrid`: any other stack.  Pages are made equal, then each kind of
  layer is cut into groups of one depth.

Source: behaviour of vLLM 0.22.1, 0.26.0, 0.27.0 and 0.32.0 on the stacks in
`tests/data/planner_vectors.json.xz`.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from kvslab.errors import LayoutError, RefusedError
from kvslab.intmath import cdiv, round_up
from kvslab.layers import CacheLayer, FullHistory, RecurrentState, Retention


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheGroup:
    """Layers that share one block table.

    Args:
        layers: In the order in which the engine lists them.
        page_bytes: Bytes that each layer's page takes in this generation: the
            layer's own, or more where the generation raises it to another size.

    Raises:
        LayoutError: Block sizes or retentions differ, or a page is too small.

    Source: vLLM's KV-cache groups; how they are cut is the generation's matter.

    >>> from kvslab import generation_named, load_layers
    >>> state = generation_named("overlay").lay_out(load_layers("deepseek-v4-pro")).groups[4]
    >>> len(state.layers), state.block_size, sorted(set(state.page_bytes)), state.group_bytes
    (60, 4, [8192, 32768], 1228800)
    """

    layers: tuple[CacheLayer, ...]
    page_bytes: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.layers or len(self.layers) != len(self.page_bytes):
            raise LayoutError(
                f"a group needs one page a layer: got {len(self.layers)} layers, {len(self.page_bytes)} pages"
            )
        first = self.layers[0]
        for layer, page in zip(self.layers, self.page_bytes, strict=True):
            spec = layer.spec
            if spec is not first.spec and (spec.block_size, spec.retention) != (
                first.spec.block_size,
                first.spec.retention,
            ):
                raise LayoutError(
                    f"layers of one group differ: {first.name!r} has block_size {first.spec.block_size}"
                    f" and {first.spec.retention}, {layer.name!r} has {spec.block_size} and {spec.retention}"
                )
            if page < spec.payload_bytes:
                raise LayoutError(
                    f"page of {layer.name!r}: got {page:,} bytes, need at least {spec.payload_bytes:,}"
                )

    @property
    def block_size(self) -> int:
        """Tokens of one block."""
        return self.layers[0].spec.block_size

    @property
    def retention(self) -> Retention:
        """Which rows a request keeps in this group."""
        return self.layers[0].spec.retention

    @property
    def group_bytes(self) -> int:
        """Bytes of all pages of one block."""
        return sum(self.page_bytes)

    @property
    def payload_bytes(self) -> int:
        """Bytes of one block that rows use."""
        return sum(layer.spec.payload_bytes for layer in self.layers)

    @property
    def num_tuples(self) -> int:
        """Layer tuples, which are as many as the layers of the most common page size."""
        return max(Counter(self.page_bytes).values())


def own_pages(layers: Iterable[CacheLayer]) -> CacheGroup:
    """A group in which every layer keeps its own page size."""
    stack = tuple(layers)
    return CacheGroup(layers=stack, page_bytes=tuple(layer.spec.page_bytes for layer in stack))


def is_latent_stack(layers: Iterable[CacheLayer]) -> bool:
    """Whether `group_latent_stack` applies: some layer is a sliding window beside MLA."""
    return any(layer.spec.kind == "sliding_window_mla" for layer in layers)


def classes_of(
    layers: Iterable[CacheLayer], key: Callable[[CacheLayer], object]
) -> tuple[tuple[CacheLayer, ...], ...]:
    """Layers with equal keys together, in order of first appearance."""
    classes: dict[object, list[CacheLayer]] = {}
    for layer in layers:
        classes.setdefault(key(layer), []).append(layer)
    return tuple(tuple(members) for members in classes.values())


def chunk_size(first_count: int, counts: Sequence[int]) -> int:
    """Layer tuples per group: the depth that wastes the fewest.

    Over `d` from `first_count` to the largest count, minimise
    `sum(round_up(x, d) - x)`; ties take the larger `d`.

    >>> chunk_size(31, [31, 61, 31, 30])
    31
    """
    times = Counter((first_count, *counts))  # of thousands of counts, most are equal
    candidates = range(first_count, max(times) + 1)
    return min(candidates, key=lambda d: (sum(n * (round_up(x, d) - x) for x, n in times.items()), -d))


def cut_class(
    layers: Sequence[CacheLayer], page_bytes: Sequence[int], max_tuples: int
) -> tuple[CacheGroup, ...]:
    """Cut a class of layers into the fewest groups of at most `max_tuples` layer tuples, see `cut_evenly`."""
    num_tuples = max(Counter(page_bytes).values())
    return cut_evenly(layers, page_bytes, cdiv(num_tuples, max_tuples))


def cut_evenly(
    layers: Sequence[CacheLayer], page_bytes: Sequence[int], num_groups: int
) -> tuple[CacheGroup, ...]:
    """Cut a class of layers into groups of about equal depth.

    A tuple holds one layer of each page size; group `i` of `k` takes every k-th
    tuple from the i-th on, so that the groups' depths differ by one at most and
    group 0 is the largest.

    Args:
        layers: Layers of one block size and retention.
        page_bytes: The page of each.
        num_groups: At most the number of tuples.
    """
    columns: dict[int, list[CacheLayer]] = {}
    for layer, page in zip(layers, page_bytes, strict=True):
        columns.setdefault(page, []).append(layer)
    num_tuples = max(len(column) for column in columns.values())
    groups = []
    for i in range(num_groups):
        members = [
            (column[t], page)
            for t in range(i, num_tuples, num_groups)
            for page, column in columns.items()
            if t < len(column)
        ]
        cut_layers, cut_pages = zip(*members, strict=True)
        groups.append(CacheGroup(layers=cut_layers, page_bytes=cut_pages))
    return tuple(groups)


PageRule = Callable[[CacheLayer, Sequence[int]], int]
"""`(layer, page sizes of the first group, ascending) -> bytes of the layer's page`."""


def keep_page(layer: CacheLayer, first_pages: Sequence[int]) -> int:
    """A `PageRule`: every layer keeps its own page size."""
    return layer.spec.page_bytes


def group_latent_stack(layers: Sequence[CacheLayer], page_rule: PageRule) -> tuple[CacheGroup, ...]:
    """Group latent layers with windows and states beside them.

    Args:
        layers: `mla_attention` and `sliding_window_mla` layers.
        page_rule: The page size of the layers after the first group.

    Raises:
        RefusedError: There is no latent layer, or a layer of another kind.
    """
    others = [layer for layer in layers if layer.spec.kind not in ("mla_attention", "sliding_window_mla")]
    if others:
        raise RefusedError(
            f"layer {others[0].name!r}: got kind {others[0].spec.kind},"
            " need mla_attention or sliding_window_mla in a stack with sliding_window_mla layers"
        )
    latent = tuple(layer for layer in layers if layer.spec.kind == "mla_attention")
    if not latent:
        raise RefusedError(
            "a stack of sliding_window_mla layers needs at least one mla_attention layer, got none"
        )
    if len({layer.spec.block_size for layer in latent}) > 1:
        sizes = sorted({layer.spec.block_size for layer in latent})
        raise RefusedError(
            f"mla_attention layers: got block sizes {sizes}, need one block_size for the first group"
        )
    first = own_pages(latent)
    first_pages = tuple(sorted(set(first.page_bytes)))
    rest = (layer for layer in layers if layer.spec.kind != "mla_attention")
    classes = classes_of(rest, key=lambda layer: (layer.spec.block_size, layer.spec.retention))
    pages = [tuple(page_rule(layer, first_pages) for layer in members) for members in classes]
    counts = [own_pages(members).num_tuples for members in classes]
    depth = chunk_size(first.num_tuples, counts)
    cut = (cut_class(members, sizes, depth) for members, sizes in zip(classes, pages, strict=True))
    return (first, *(group for groups in cut for group in groups))


def equal_pages(layers: Sequence[CacheLayer]) -> tuple[CacheGroup, ...]:
    """Make every page as large as the largest, one group per distinct layer spec.

    A smaller page holds more tokens instead: its `block_size` grows by the
    integer ratio of the pages.  A recurrent state is padded, it has no tokens.

    Raises:
        RefusedError: A page does not divide the largest one.
    """
    largest = max(layers, key=lambda layer: layer.spec.page_bytes)
    target = largest.spec.page_bytes
    scaled = []
    for layer in layers:
        if layer.spec.page_bytes == target or isinstance(layer.spec.retention, RecurrentState):
            scaled.append(layer)
            continue
        ratio, rest = divmod(target, layer.spec.page_bytes)
        grown = layer.spec.with_block_size(layer.spec.block_size * ratio)
        if rest or grown.page_bytes != target:
            raise RefusedError(
                f"pages cannot be made equal: layer {layer.name!r} has {layer.spec.page_bytes:,} bytes,"
                f" which does not divide the {target:,} bytes of {largest.name!r}"
            )
        scaled.append(CacheLayer(name=layer.name, spec=grown))
    classes = classes_of(scaled, key=lambda layer: layer.spec)
    return tuple(CacheGroup(layers=members, page_bytes=(target,) * len(members)) for members in classes)


def group_other_hybrid(layers: Sequence[CacheLayer]) -> tuple[CacheGroup, ...]:
    """Group a stack that `is_latent_stack` does not describe.

    Layers of one type (one block size and retention) stay together as one group,
    whatever their pages.  Otherwise pages are made equal, and every kind is cut
    into groups of one depth: the smallest layer count over the kinds, or the
    largest where that is under 1.5 times the smallest.

    Raises:
        RefusedError: Pages cannot be made equal.
    """
    if _one_type(layers):
        return (own_pages(layers),)
    kinds = equal_pages(layers)
    counts = [len(kind.layers) for kind in kinds]
    smallest, largest = min(counts), max(counts)
    depth = largest if 2 * largest < 3 * smallest else smallest
    cut = [(kind, cdiv(len(kind.layers), depth)) for kind in kinds]
    return tuple(
        CacheGroup(layers=kind.layers[i::k], page_bytes=kind.page_bytes[i::k])
        for kind, k in cut
        for i in range(k)
    )


def _one_type(layers: Sequence[CacheLayer]) -> bool:
    full = all(isinstance(layer.spec.retention, FullHistory) for layer in layers)
    same_kind = full or len({layer.spec.kind for layer in layers}) == 1
    return same_kind and len({(layer.spec.block_size, layer.spec.retention) for layer in layers}) == 1
