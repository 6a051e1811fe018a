"""Every published number that the project derives again, with its source.

`STATED` are numbers that the engine's pull requests state; `MEASURED` are block
strides that engine releases gave on the same layers.  Nothing here is computed: it is
what `kvslab reproduce` is held against.
"""

from dataclasses import dataclass
from typing import Literal

PR_48993 = "vLLM PR 48993"
"""The pull request of MXFP4 rows and overlaid groups."""
PR_48993_URL = "https://github.com/vllm-project/vllm/pull/48993"
"""Its address."""
PR_44454 = "vLLM PR 44454"
"""The pull request of the bucketed slab."""
PR_44454_URL = "https://github.com/vllm-project/vllm/pull/44454"
"""Its address."""
RELEASES = "vLLM 0.22.1, 0.26.0 and 0.27.0, run on these layers; tests/data/planner_vectors.json.xz"

Quantity = Literal["row_bytes", "block_stride", "num_blocks", "blocks_per_byte", "num_groups"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What was planned: a model, how its rows are stored, and by which generation."""

    model: str
    backend: str
    indexer: str
    slab: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """KV-cache memory as a source prints it, rounded to 0.01 GiB.

    Args:
        backend: The backend measured with it.
        printed_gib: The two-decimal figure.
        source: Where it stands.
    """

    backend: str
    printed_gib: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedNumber:
    """One number that somebody stated.

    Args:
        id: Unique.
        quantity: What it counts.
        value: As printed in the source, without thousands separators.
        unit: `bytes`, `blocks`, `groups` or `%`.
        setup: What it was measured on.
        source: Short name of the source.
        url: Its address.
        baseline: Where given, `value` is the quantity's change from this setup, in per cent.
    """

    id: str
    quantity: Quantity
    value: str
    unit: str
    setup: Setup
    source: str
    url: str = ""
    baseline: Setup | None = None


BUDGETS = {
    "flashinfer": Budget(backend="flashinfer", printed_gib="26.46", source=PR_48993),
    "flashmla": Budget(backend="flashmla", printed_gib="26.09", source=PR_48993),
}
"""The GB200 budgets of PR 48993, by backend."""


def _pro(backend: str, indexer: str, slab: str) -> Setup:
    return Setup(model="deepseek-v4-pro", backend=backend, indexer=indexer, slab=slab)


def before(backend: str) -> Setup:
    """DeepSeek-V4-Pro as PR 48993 found it: bucketed slab, FP8 indexer rows."""
    return _pro(backend, "fp8", "bucketed")


def after(backend: str) -> Setup:
    """DeepSeek-V4-Pro as PR 48993 left it: overlaid groups, MXFP4 indexer rows."""
    return _pro(backend, "mxfp4", "overlay")


def _stated(id: str, quantity: Quantity, value: str, unit: str, setup: Setup) -> PublishedNumber:
    return PublishedNumber(
        id=id,
        quantity=quantity,
        value=value,
        unit=unit,
        setup=setup,
        baseline=before(setup.backend) if unit == "%" else None,
        source=PR_48993,
        url=PR_48993_URL,
    )


def _flash(slab: str) -> Setup:
    return Setup(model="deepseek-v4-flash", backend="flashmla", indexer="fp8", slab=slab)


STATED: tuple[PublishedNumber, ...] = (
    _stated("row-before", "row_bytes", "132", "bytes", before("flashinfer")),
    _stated("row-after", "row_bytes", "68", "bytes", after("flashinfer")),
    _stated("flashinfer-stride-before", "block_stride", "1308672", "bytes", before("flashinfer")),
    _stated("flashinfer-stride-after", "block_stride", "1228800", "bytes", after("flashinfer")),
    _stated("flashinfer-stride-change", "block_stride", "-6.10", "%", after("flashinfer")),
    _stated("flashinfer-blocks-before", "num_blocks", "21709", "blocks", before("flashinfer")),
    _stated("flashinfer-blocks-after", "num_blocks", "23120", "blocks", after("flashinfer")),
    _stated("flashinfer-blocks-change", "num_blocks", "+6.50", "%", after("flashinfer")),
    _stated("flashmla-stride-before", "block_stride", "1473408", "bytes", before("flashmla")),
    _stated("flashmla-stride-after", "block_stride", "1315008", "bytes", after("flashmla")),
    _stated("flashmla-stride-change", "block_stride", "-10.75", "%", after("flashmla")),
    _stated("flashmla-blocks-before", "num_blocks", "19015", "blocks", before("flashmla")),
    _stated("flashmla-blocks-after", "num_blocks", "21306", "blocks", after("flashmla")),
    _stated("flashmla-blocks-change", "num_blocks", "+12.05", "%", after("flashmla")),
    PublishedNumber(
        id="bucketed-over-padded",
        quantity="blocks_per_byte",
        value="+1.16",
        unit="%",
        setup=_flash("bucketed"),
        baseline=_flash("padded"),
        source=PR_44454,
        url=PR_44454_URL,
    ),
)
"""Numbers that the pull requests state."""

# model, backend, indexer, then the stride of each generation where one is on record
_STRIDES = (
    ("deepseek-v4-pro", "flashinfer", "fp8", 1_317_376, 1_308_672, 1_275_904),
    ("deepseek-v4-pro", "flashinfer", "mxfp4", None, 1_185_792, 1_228_800),
    ("deepseek-v4-pro", "flashmla", "fp8", 1_482_048, 1_473_408, 1_435_968),
    ("deepseek-v4-pro", "flashmla", "mxfp4", None, 1_352_448, 1_315_008),
    ("deepseek-v4-pro", "flashinfer-bf16", "fp8", None, 2_356_224, 2_290_688),
    ("deepseek-v4-pro", "flashinfer-bf16", "mxfp4", None, 2_233_344, 2_167_808),
    ("deepseek-v4-flash", "flashinfer", "fp8", None, 924_160, 891_392),
    ("deepseek-v4-flash", "flashinfer", "mxfp4", None, 838_144, 860_160),
    ("deepseek-v4-flash", "flashmla", "fp8", 1_051_776, 1_039_680, 1_002_240),
    ("deepseek-v4-flash", "flashmla", "mxfp4", None, 955_008, 917_568),
)
_SIX_GROUPS = (("flashinfer", "mxfp4"), ("flashmla", "mxfp4"))


def _measured() -> tuple[PublishedNumber, ...]:
    numbers = []
    for model, backend, indexer, *strides in _STRIDES:
        for slab, stride in zip(("padded", "bucketed", "overlay"), strides, strict=True):
            if stride is None:
                continue
            setup = Setup(model=model, backend=backend, indexer=indexer, slab=slab)
            numbers.append(
                PublishedNumber(
                    id=f"stride-{model.removeprefix('deepseek-v4-')}-{backend}-{indexer}-{slab}",
                    quantity="block_stride",
                    value=str(stride),
                    unit="bytes",
                    setup=setup,
                    source=RELEASES,
                )
            )
    for backend, indexer in _SIX_GROUPS:
        numbers.append(
            PublishedNumber(
                id=f"groups-pro-{backend}-{indexer}-bucketed",
                quantity="num_groups",
                value="6",
                unit="groups",
                setup=_pro(backend, indexer, "bucketed"),
                source=RELEASES,
            )
        )
    return tuple(numbers)


MEASURED: tuple[PublishedNumber, ...] = _measured()
"""Block strides that engine releases gave on these layers, bytes."""

PUBLISHED: tuple[PublishedNumber, ...] = STATED + MEASURED
"""All of them: `STATED`, then `MEASURED`."""
