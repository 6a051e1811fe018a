"""How close to the limit: peers against length, where the bytes go, what more groups buy."""

from collections.abc import Mapping

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

from kvslab.errors import InputError
from kvslab.plots.style import BOUND, HATCH, INK, use_style
from kvslab.tables.fitting import PARTS

PEER_COLOURS: Mapping[str, str] = {
    "padded": "#999999",
    "bucketed": "#E69F00",
    "overlay": INK,
    "fixed_pools": "#CC79A7",
    "lcm_pages": "#009E73",
    "layer_pools": "#56B4E9",
    "fitted": "#0072B2",
}
"""One colour a peer; a peer that is not here is drawn in grey."""
NOT_DRAWN = ("standard",)
"""It cuts DeepSeek-V4 as `overlay` does."""
PEER_MARKERS: Mapping[str, str] = {
    "padded": "s",
    "bucketed": "o",
    "overlay": "",
    "fixed_pools": "v",
    "lcm_pages": "D",
    "layer_pools": "P",
    "fitted": "^",
}
PART_COLOURS: Mapping[str, str] = {
    "live_bytes": "#0072B2",
    "inside_pages_bytes": "#E69F00",
    "inside_blocks_bytes": "none",
    "padding_bytes": "#CC79A7",
    "transient_bytes": "#009E73",
    "null_block_bytes": INK,
    "left_over_bytes": "#999999",
}
OTHER_COLOUR, OTHER_MARKER = "#666666", "X"
RULE_COLOURS: Mapping[str, str] = {"keep": "#999999", "kernel-legal": "#0072B2", "free": "#D55E00"}
RULE_MARKERS: Mapping[str, str] = {"keep": "s", "kernel-legal": "o", "free": "^"}


def _drawn(frame: pd.DataFrame) -> dict[str, str]:
    """The peers of a table that a figure draws, with their colours, those known first."""
    found = [str(name) for name in dict.fromkeys(frame["peer"]) if name not in NOT_DRAWN]
    return {name: colour for name, colour in PEER_COLOURS.items() if name in found} | {
        name: OTHER_COLOUR for name in found if name not in PEER_COLOURS
    }


def _tokens(value: float, _: object = None) -> str:
    tokens = round(value)
    if tokens >= 2**20:
        return f"{tokens // 2**20}M"
    return f"{tokens // 1024}K" if tokens >= 1024 else str(tokens)


def _setup(model: str, backend: str) -> str:
    return f"{model.removeprefix('deepseek-v4-')}, {backend}"


def _length_axis(ax: Axes, lengths: list[int]) -> None:
    ax.set_xscale("log", base=2)
    ax.set_xticks(lengths, [_tokens(value) for value in lengths])
    ax.xaxis.set_minor_locator(NullLocator())


def _panels(frame: pd.DataFrame) -> list[tuple[str, str]]:
    pairs = frame[["model", "backend"]].drop_duplicates()
    return [(str(model), str(backend)) for model, backend in pairs.itertuples(index=False, name=None)]


def peers_figure(frame: pd.DataFrame, *, lowest_percent: float = -20) -> Axes:
    """Draw how many more requests each peer serves than overlay, against the context length.

    Peers below the axis are named with their values instead of drawn.

    Args:
        frame: `kvslab.tables.peers_table(...)`.
        lowest_percent: Where the axis begins.

    Raises:
        InputError: The frame is empty.
    """
    if frame.empty:
        raise InputError("peers", len(frame), "at least one row")
    use_style()
    models, backends = (list(dict.fromkeys(frame[name])) for name in ("model", "backend"))
    figure, axes = plt.subplots(
        len(models),
        len(backends),
        sharex=True,
        sharey="row",
        squeeze=False,
        figsize=(7.6, 2.6 * len(models) + 0.6),
    )
    lengths = sorted({int(value) for value in frame["max_model_len_tokens"]})
    for i, model in enumerate(models):
        for j, backend in enumerate(backends):
            ax = axes[i, j]
            part = frame[(frame["model"] == model) & (frame["backend"] == backend)]
            _peers_panel(ax, part, lowest_percent)
            ax.annotate(
                _setup(str(model), str(backend)), (0, 1), xycoords="axes fraction", xytext=(2, 2),
                textcoords="offset points", fontsize=9,
            )  # fmt: skip
            _length_axis(ax, lengths)
        highest = max(_bound_percent(frame[frame["model"] == model]))
        axes[i, 0].set_ylim(lowest_percent, 1.1 * highest + 4)  # room for the panel's name
        axes[i, 0].set_ylabel("requests over overlay (%)")
    figure.supxlabel("tokens of a request", fontsize=10)
    seen = {
        label: line for ax in axes.flat for line, label in zip(*ax.get_legend_handles_labels(), strict=True)
    }
    figure.legend(list(seen.values()), list(seen), loc="outside upper left", ncols=4, handlelength=1.6)
    first: Axes = axes[0, 0]
    return first


def _bound_percent(frame: pd.DataFrame) -> list[float]:
    """How far the zero-waste bound lies above overlay, row by row."""
    rows = frame[frame["peer"] == "overlay"]
    return [
        100 * (float(most) / float(own) - 1)
        for most, own in zip(rows["zero_waste_requests"], rows["requests_steady"], strict=True)
    ]


def _peers_panel(ax: Axes, part: pd.DataFrame, lowest_percent: float) -> None:
    overlay = part[part["peer"] == "overlay"]
    lengths = [int(value) for value in overlay["max_model_len_tokens"]]
    bound = _bound_percent(part)
    ax.plot(lengths, bound, color=BOUND, ls="--", lw=1.2, label="zero-waste bound")
    ax.annotate(
        f"{bound[0]:.0f} %",
        (lengths[0], bound[0]),
        xytext=(3, 2),
        textcoords="offset points",
        color=BOUND,
        fontsize=9,
    )
    below = []
    for name, colour in _drawn(part).items():
        rows = part[(part["peer"] == name) & part["change_from_overlay_percent"].notna()]
        values = [float(value) for value in rows["change_from_overlay_percent"]]
        if values and max(values) < lowest_percent:
            below.append(f"{name}: {max(values):.0f} to {min(values):.0f} %")
            continue
        ax.plot(
            [int(value) for value in rows["max_model_len_tokens"]],
            values,
            color=colour,
            marker=PEER_MARKERS.get(name, OTHER_MARKER),
            ms=4,
            lw=1.4,
            label=name,
        )
    if below:
        ax.annotate(
            "\n".join(below), (0.97, 0.03), xycoords="axes fraction", ha="right", va="bottom", fontsize=8
        )


def requests_figure(frame: pd.DataFrame) -> Axes:
    """Draw requests at once against the context length, one line a peer, both axes logarithmic.

    Args:
        frame: `kvslab.tables.peers_table(...)` of one model and backend.

    Raises:
        InputError: There are several.
    """
    if len(_panels(frame)) != 1:
        raise InputError("peers", _panels(frame), "one model and backend")
    use_style()
    _, ax = plt.subplots(figsize=(7.6, 3.4))
    lengths = sorted({int(value) for value in frame["max_model_len_tokens"]})
    for name, colour in _drawn(frame).items():
        rows = frame[(frame["peer"] == name) & frame["requests_steady"].notna()]
        ax.plot(
            [int(value) for value in rows["max_model_len_tokens"]],
            [float(value) for value in rows["requests_steady"]],
            color=colour,
            marker=PEER_MARKERS.get(name, OTHER_MARKER),
            ms=4,
            lw=1.4,
            label=name,
        )
    bound = frame[frame["peer"] == "overlay"]
    most = [float(value) for value in bound["zero_waste_requests"]]
    ax.plot(lengths, most, color=BOUND, ls="--", lw=1.2, label="zero-waste bound")
    ax.annotate(
        f"{most[-1]:,.2f}", (lengths[-1], most[-1]), xytext=(5, 3), textcoords="offset points", color=BOUND
    )
    _length_axis(ax, lengths)
    ax.set_yscale("log")
    ax.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:,.0f}" if y >= 1 else f"{y:g}"))
    ax.margins(x=0.08)
    ax.set_xlabel("tokens of a request")
    ax.set_ylabel("requests at once")
    ax.legend(ncols=2)
    return ax


def breakdown_figure(frame: pd.DataFrame, *, from_percent: float = 75) -> Axes:
    """Draw where the bytes of a budget go, one stacked bar a plan, in per cent of the budget.

    Live rows fill most of every bar, so the axis may begin later; it says so.

    Args:
        frame: `kvslab.tables.breakdown_table(...)`; one bar a row.
        from_percent: Where the axis begins.

    Raises:
        InputError: The frame is empty.
    """
    if frame.empty:
        raise InputError("breakdown", len(frame), "at least one row")
    use_style()
    figure, ax = plt.subplots(figsize=(7.6, 0.34 * len(frame) + 1.3))
    several = len(_panels(frame)) > 1
    names = [
        f"{_setup(str(model), str(backend)) + ', ' if several else ''}{_tokens(int(tokens))}, {slab}"
        for model, backend, tokens, slab in zip(
            frame["model"], frame["backend"], frame["max_model_len_tokens"], frame["slab"], strict=True
        )
    ]
    left = [0.0] * len(frame)
    for column, label in PARTS.items():
        shares = [
            100 * float(part) / float(budget)
            for part, budget in zip(frame[column], frame["budget_bytes"], strict=True)
        ]
        if max(shares) < 0.05:  # thinner than a line: left to the table
            continue
        hatch = HATCH if PART_COLOURS[column] == "none" else ""
        ax.barh(
            range(len(frame)), shares, left=left, height=0.66, color=PART_COLOURS[column], hatch=hatch,
            edgecolor=BOUND, lw=0.5, label=label,
        )  # fmt: skip
        left = [a + b for a, b in zip(left, shares, strict=True)]
    live = [
        100 * float(a) / float(b) for a, b in zip(frame["live_bytes"], frame["budget_bytes"], strict=True)
    ]
    for y, share in enumerate(live):
        ax.annotate(
            f"{share:.1f} % live",
            (min(share, 100), y),
            xytext=(-4, 0),
            textcoords="offset points",
            ha="right",
            va="center",
            color="white",
            fontsize=9,
        )
    ax.set_yticks(range(len(frame)), names)
    ax.invert_yaxis()
    ax.tick_params(axis="y", length=0)
    ax.set_xlim(from_percent, 100)
    began = f", from {from_percent:g} %" if from_percent else ""
    ax.set_xlabel(f"share of the budget (%{began})")
    figure.legend(loc="outside upper left", ncols=4, handlelength=1.2, columnspacing=1.2)
    return ax


def pareto_figure(frame: pd.DataFrame, *, lowest_percent: float = -10) -> Axes:
    """Draw what more groups buy: groups against requests over overlay, one line a rule for block sizes.

    Args:
        frame: `kvslab.tables.frontier_table(...)` of one model, backend and length.
        lowest_percent: Points that serve fewer requests over overlay are not drawn.

    Raises:
        InputError: There are several, or none.
    """
    if frame[["model", "backend", "max_model_len_tokens"]].drop_duplicates().shape[0] != 1:
        raise InputError("frontier", len(frame), "rows of one model, backend and length")
    use_style()
    figure, ax = plt.subplots(figsize=(7.6, 3.6))
    for rule, colour in RULE_COLOURS.items():
        rows = frame[
            (frame["block_sizes"] == rule) & (frame["change_from_overlay_percent"] >= lowest_percent)
        ]
        groups = [int(value) for value in rows["num_groups"]]
        values = [float(value) for value in rows["change_from_overlay_percent"]]
        if not groups:
            continue
        entries = float(rows["table_entries"].iloc[-1])
        ax.plot(
            groups,
            values,
            color=colour,
            marker=RULE_MARKERS[rule],
            ms=5,
            lw=1.4,
            label=f"{rule}: {values[-1]:+.1f} % with {groups[-1]} groups, {entries:,.0f} entries",
            drawstyle="steps-post",
        )
    ax.axhline(0, color=BOUND, ls="--", lw=1.2)
    ax.annotate(
        "overlay",
        (0, 0),
        xycoords=("axes fraction", "data"),
        xytext=(4, 3),
        textcoords="offset points",
        color=BOUND,
    )
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.margins(y=0.15)
    ax.set_xlabel("cache groups: block tables of one request")
    ax.set_ylabel("requests over overlay (%)")
    figure.legend(loc="outside upper left", title="block sizes, and the last point", alignment="left")
    return ax
