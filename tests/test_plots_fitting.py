"""Guards the figures of the fitted planner: what is drawn is what the tables say."""

from collections.abc import Iterator

import matplotlib.pyplot as plt
import pytest

from kvslab.errors import InputError
from kvslab.plots import breakdown_figure, pareto_figure, peers_figure, requests_figure
from kvslab.tables import breakdown_table, fit_table, frontier_table, peers_table

PRO = {"models": ("deepseek-v4-pro",), "backends": ("flashinfer",)}


@pytest.fixture(autouse=True)
def closed_figures() -> Iterator[None]:
    yield
    plt.close("all")


def test_peers() -> None:
    frame = peers_table((8192, 1_048_576), backends=("flashinfer", "flashmla"))
    ax = peers_figure(frame)
    figure = ax.get_figure(root=True)
    assert figure is not None
    assert len(figure.axes) == 4
    drawn = {str(line.get_label()): line.get_ydata() for line in ax.lines}
    own = frame[(frame["model"] == "deepseek-v4-pro") & (frame["backend"] == "flashinfer")]
    for name in ("overlay", "fitted", "bucketed"):
        assert list(drawn[name]) == list(own[own["peer"] == name]["change_from_overlay_percent"])
    assert "fixed_pools" not in drawn
    assert any("fixed_pools: -" in text.get_text() for text in ax.texts)
    assert (frame["change_from_overlay_percent"][frame["peer"] == "fitted"] >= 0).all()
    one = requests_figure(own)
    lines = {str(line.get_label()): line.get_ydata() for line in one.lines}
    assert list(lines["fitted"]) == list(own[own["peer"] == "fitted"]["requests_steady"])
    with pytest.raises(InputError, match="need one model and backend"):
        requests_figure(frame)
    with pytest.raises(InputError, match="peers: got 0, need at least one row"):
        peers_figure(frame.iloc[:0])


def test_breakdown_adds_up() -> None:
    frame = breakdown_table((8192, 131_072), **PRO)
    parts = [name for name in frame.columns if name.endswith("_bytes") and name != "budget_bytes"]
    # Each part is rounded to a byte.
    assert ((frame[parts].sum(axis=1) - frame["budget_bytes"]).abs() <= len(parts)).all()
    ax = breakdown_figure(frame, from_percent=0)
    assert ax.get_xlim() == (0, 100)
    widths = sum(patch.get_width() for patch in ax.patches if hasattr(patch, "get_width"))
    assert widths == pytest.approx(100 * len(frame), rel=2e-3)
    with pytest.raises(InputError, match="at least one row"):
        breakdown_figure(frame.iloc[:0])


def test_pareto() -> None:
    frame = frontier_table((8192,), **PRO)
    ax = pareto_figure(frame)
    for line in ax.lines:
        if line.get_label() in ("keep", "kernel-legal", "free"):
            rows = frame[frame["block_sizes"] == line.get_label()]
            assert list(line.get_xdata()) == list(rows["num_groups"])
    with pytest.raises(InputError, match="rows of one model, backend and length"):
        pareto_figure(frontier_table((8192, 131_072), **PRO, block_sizes=("keep",)))


def test_fit_table_keeps_below_the_bounds() -> None:
    frame = fit_table((1,), ("keep",))
    assert (frame["gain_percent"] >= 0).all()
    assert (frame["fitted_requests"] <= frame["whole_page_requests"]).all()
    assert (frame["below_zero_waste_percent"] >= frame["below_whole_page_percent"]).all()
