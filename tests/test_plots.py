"""Guards the figures: what is drawn must be the plan, to scale, and legible as text."""

from collections.abc import Iterator
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import pytest
from matplotlib.collections import PolyCollection

from kvslab import plots
from kvslab.errors import InputError
from kvslab.published import after, before, budget_interval, slab_of
from kvslab.tables import ROLES, ablation_table, gb200_table, groups_table


@pytest.fixture(autouse=True)
def clean_pyplot() -> Iterator[None]:
    mpl.use("Agg")
    with mpl.rc_context():
        yield
    plt.close("all")


def test_every_role_has_its_colour() -> None:
    assert set(plots.COLOURS) == set(ROLES)
    assert len(set(plots.COLOURS.values())) == len(ROLES)


def test_pages_are_drawn_where_they_lie() -> None:
    slab = slab_of(after("flashinfer"))
    ax = plots.slab_figure([("overlay", slab)])
    drawn = set()
    for collection in ax.collections:
        assert isinstance(collection, PolyCollection)
        for path in collection.get_paths():
            (x0, y0), (x1, y1) = path.vertices.min(axis=0), path.vertices.max(axis=0)
            drawn.add((round((y0 + y1) / 2), int(x0), int(x1)))
    assert drawn == {(p.group_id, p.offset, p.offset + p.layer.spec.payload_bytes) for p in slab.pages}
    assert any("1,228,800" in text.get_text() for text in ax.texts)


def test_two_slabs_share_one_scale() -> None:
    slabs = [("before", slab_of(before("flashinfer"))), ("after", slab_of(after("flashinfer")))]
    ax = plots.slab_figure(slabs, zoom_bytes=131_072)
    figure = ax.get_figure(root=True)
    assert figure is not None
    first, second, zoom = figure.axes
    assert first.get_xlim() == second.get_xlim()
    assert zoom.get_xlim() == (0, 131_072)


def test_no_slab_is_refused() -> None:
    with pytest.raises(InputError, match="slabs: got 0"):
        plots.slab_figure([])


def test_every_other_figure_draws(tmp_path: Path) -> None:
    from kvslab.formats import indexer_row

    frame = groups_table(slab_of(before("flashinfer")))
    interval = budget_interval("flashinfer")
    figures = {
        "padding": plots.padding_figure([("bucketed", frame)]),
        "rows": plots.rows_figure([indexer_row("fp8", 128), indexer_row("mxfp4", 128)]),
        "microblock": plots.microblock_figure(),
        "page": plots.page_figure([("MXFP4", (("values", 4096), ("scales", 256), ("padding", 256)))]),
        "headline": plots.headline_figure(gb200_table()),
        "interval": plots.interval_figure([("both", interval)], [("printed", interval.low_bytes)]),
        "ablation": plots.ablation_figure(ablation_table().query("backend == 'flashinfer'")),
    }
    expected = {"padding": "payload", "rows": "132 bytes", "microblock": "sign", "page": "4,608 B"}
    expected |= {"headline": "after: 23,120  (+6.50 %)", "interval": "both", "ablation": "23,958"}
    expected["padding"] = "% rows"
    for name, ax in figures.items():
        assert any(expected[name] in text.get_text() for text in ax.texts), name
        path = tmp_path / f"{name}.svg"
        plots.save_figure(ax, path)
        text = path.read_text(encoding="utf-8")
        assert "<text" in text, "text must stay text, for readers and search"
