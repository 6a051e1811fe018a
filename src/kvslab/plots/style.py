"""What all figures share: the style, the colours, the byte axis and saving."""

import io
from collections.abc import Mapping
from importlib import resources
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

from kvslab.errors import InputError
from kvslab.files import write_atomically

INK = "#1f2328"
BOUND = "#808890"
HATCH = "////"

COLOURS: Mapping[str, str] = {
    "latent KV": "#0072B2",
    "indexer keys": "#D55E00",
    "sliding window": "#009E73",
    "compressor state": "#E69F00",
    "indexer state": "#CC79A7",
    "full attention": "#56B4E9",
    "local chunk": "#8C6BB1",
    "recurrent state": "#B8A000",
}
"""One colour for each role in `kvslab.tables.ROLES`."""

BEFORE, AFTER = "#999999", "#0072B2"


def use_style() -> None:
    """Apply the project's matplotlib style for the rest of the process."""
    with resources.as_file(resources.files(__package__).joinpath("kvslab.mplstyle")) as path:
        mpl.style.use(path)


def save_figure(ax: Axes, path: Path) -> None:
    """Save the figure of an `Axes` on white, whole or not at all; the suffix picks the format.

    Raises:
        InputError: The suffix is none of .svg, .pdf and .png, or the file cannot be written.
    """
    if path.suffix not in (".svg", ".pdf", ".png"):
        raise InputError("output", str(path), "a file name that ends in .svg, .pdf or .png")
    stream = io.BytesIO()
    figure = ax.get_figure(root=True)
    assert figure is not None  # an Axes that a function here returns has one
    metadata = {"Date": None} if path.suffix == ".svg" else {}
    figure.savefig(stream, format=path.suffix[1:], metadata=metadata, bbox_inches="tight", facecolor="white")
    plt.close(figure)
    write_atomically(path, stream.getvalue())


def bytes_axis(ax: Axes, end: int) -> None:
    """Let the x axis run from 0 to `end` bytes, labelled in KiB."""
    ax.set_xlim(0, end)
    ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x / 1024:,.0f}"))
    step = 1024 * max(2 ** max(0, (end // 1024 // 6).bit_length() - 1), 1)
    ax.set_xticks(range(0, end + 1, step))
