"""Guards the silent bug that a figure of memory shows other bytes than the library computes."""

import matplotlib as mpl
import pytest

mpl.use("agg")

import matplotlib.pyplot as plt
from matplotlib.patches import Rectangle

from kvslab.errors import InputError
from kvslab.generations import generation_named
from kvslab.layers import CacheLayer
from kvslab.layouts import LAYOUTS, CacheShape, stride_axes
from kvslab.memory import BlockPool
from kvslab.models import load_layers
from kvslab.plan import Plan
from kvslab.plots.memory import layouts_figure, pool_figure
from memory_strategies import FULL

SHAPE = CacheShape(num_layers=2, num_blocks=3, num_heads=2, rows_per_page=2, content_bytes=8)


@pytest.fixture(autouse=True)
def close_figures():
    yield
    plt.close("all")


def test_every_box_stands_at_its_address():
    ax = layouts_figure(SHAPE)
    boxes = [p for p in ax.patches if isinstance(p, Rectangle) and p.get_width() == SHAPE.content_bytes]
    for y, layout in enumerate(LAYOUTS.values()):
        strides = stride_axes(layout, SHAPE)
        expect = [
            strides.address(layer, b, h, n)
            for layer in range(2)
            for b in range(3)
            for h in range(2)
            for n in range(2)
        ]
        assert sorted(p.get_x() for p in boxes if round(p.get_y() + 0.36) == y) == sorted(expect)
    assert [label.get_text() for label in ax.get_yticklabels()] == list(LAYOUTS)
    assert ax.get_xlim()[0] == 0 and "bytes" in ax.get_xlabel()


def test_a_padded_page_is_refused_in_the_figure_where_the_layout_refuses_it():
    ax = layouts_figure(SHAPE, page_bytes=40)
    assert sum("refused" in text.get_text() for text in ax.texts) == 2


def test_too_large_a_shape_is_refused():
    with pytest.raises(InputError, match="at most 64 boxes"):
        layouts_figure(CacheShape(num_layers=2, num_blocks=33, rows_per_page=1, content_bytes=4))


def test_spans_are_drawn_in_their_blocks():
    slab = generation_named("standard").lay_out(load_layers("deepseek-v4-flash"))
    pool = BlockPool(Plan(slab=slab, budget_bytes=6 * slab.block_stride))
    (block,) = pool.allocate(3)
    spans = pool.zero_spans(3, block)
    ax = pool_figure(pool, spans, num_blocks=6)
    drawn = sorted((line.get_xdata()[0], line.get_xdata()[1]) for line in ax.lines)
    start = block * slab.block_stride
    assert drawn == sorted((a - start, b - start) for span in spans for a, b in span.ranges)
    assert {"null block", "free", "group 3"} <= {text.get_text() for text in ax.texts}


def test_layers_outermost_is_refused():
    layers = [CacheLayer(name=f"l{i}", spec=FULL) for i in range(2)]
    slab = generation_named("standard").lay_out(layers)
    with pytest.raises(InputError, match="pool: got 'a plan with layers outermost'"):
        pool_figure(BlockPool(Plan(slab=slab, budget_bytes=4 * slab.block_stride)))
