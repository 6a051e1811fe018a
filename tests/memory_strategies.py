"""Small stacks, groups and plans for the memory tests, from two layers and two blocks up.

A strategy that allowed one layer or one block would miss a dropped stride term.
"""

from hypothesis import settings
from hypothesis import strategies as st

from kvslab.generations import standard
from kvslab.groups import CacheGroup, own_pages
from kvslab.layers import CacheLayer, LayerSpec, SlidingWindow
from kvslab.plan import Plan
from kvslab.slab import SlabLayout, pack_dense, pack_ranks

settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

LATENT = LayerSpec(kind="mla_attention", block_size=8, row_bytes=12, compress_ratio=2, alignment=16)
KEYS = LayerSpec(kind="mla_attention", block_size=8, row_bytes=5, compress_ratio=4, alignment=16)
WINDOW = LayerSpec(
    kind="sliding_window_mla",
    block_size=4,
    row_bytes=12,
    alignment=16,
    retention=SlidingWindow(window_tokens=8),
)
STATE = LayerSpec(
    kind="sliding_window_mla",
    block_size=2,
    row_bytes=20,
    alignment=16,
    retention=SlidingWindow(window_tokens=4),
)
SMALL_STATE = LayerSpec(
    kind="sliding_window_mla",
    block_size=2,
    row_bytes=7,
    alignment=16,
    retention=SlidingWindow(window_tokens=4),
)
FAMILIES = ((LATENT, KEYS), (WINDOW,), (STATE, SMALL_STATE))


@st.composite
def cache_groups(draw: st.DrawFn, num_groups: tuple[int, int] = (2, 4)) -> tuple[CacheGroup, ...]:
    """Groups of two to five layers, each of one family, specs in any order."""
    count = draw(st.integers(*num_groups))
    groups = []
    for i in range(count):
        family = draw(st.sampled_from(FAMILIES))
        specs = draw(st.lists(st.sampled_from(family), min_size=2, max_size=5))
        groups.append(own_pages(CacheLayer(name=f"g{i}.l{j}", spec=s) for j, s in enumerate(specs)))
    return tuple(groups)


@st.composite
def equal_page_groups(draw: st.DrawFn) -> tuple[CacheGroup, ...]:
    """Groups of windows only: one page size, so layers can be outermost."""
    sizes = draw(st.lists(st.integers(2, 5), min_size=2, max_size=4))
    return tuple(
        own_pages(CacheLayer(name=f"g{i}.l{j}", spec=WINDOW) for j in range(size))
        for i, size in enumerate(sizes)
    )


@st.composite
def slabs(draw: st.DrawFn) -> SlabLayout:
    """Slabs with blocks outermost (dense, spec by spec) or layers outermost."""
    pack = draw(st.sampled_from((pack_dense, standard.pack, pack_ranks)))
    return pack(draw(equal_page_groups() if pack is pack_ranks else cache_groups()))


@st.composite
def plans(draw: st.DrawFn, num_blocks: tuple[int, int] = (3, 9)) -> Plan:
    """Plans of a few blocks."""
    slab = draw(slabs())
    return Plan(slab=slab, budget_bytes=draw(st.integers(*num_blocks)) * slab.block_stride)


FULL = LayerSpec(kind="full_attention", block_size=4, row_bytes=12)
WINDOW_16 = LayerSpec(
    kind="sliding_window", block_size=4, row_bytes=12, retention=SlidingWindow(window_tokens=16)
)
