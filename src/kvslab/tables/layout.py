"""Tables of layers, groups, pages and strides."""

from collections.abc import Collection, Iterable, Sequence
from fractions import Fraction

import pandas as pd

from kvslab.errors import RefusedError
from kvslab.formats import BACKENDS, INDEXER_FORMATS
from kvslab.generations import GENERATIONS
from kvslab.layers import CacheLayer, LayerSpec
from kvslab.models import PRESETS
from kvslab.plan import Plan
from kvslab.published import BUDGETS, Setup, after, before, slab_of
from kvslab.slab import PlacedPage, SlabLayout

COMPUTED = "kvslab, from the published config.json"

ROLES = (
    "latent KV",
    "indexer keys",
    "sliding window",
    "compressor state",
    "indexer state",
    "full attention",
    "local chunk",
    "recurrent state",
)
"""What a cache layer can store, in the words of the figures."""


def role_of(layer: CacheLayer) -> str:
    """What a layer stores, in the words of the figures: one of `ROLES`."""
    match layer.spec.kind:
        case "mla_attention":
            return "indexer keys" if layer.name.endswith("indexer.k_cache") else "latent KV"
        case "sliding_window_mla" if layer.name.endswith("indexer.compressor.state_cache"):
            return "indexer state"
        case "sliding_window_mla" if layer.name.endswith("compressor.state_cache"):
            return "compressor state"
        case "sliding_window" | "sliding_window_mla":
            return "sliding window"
        case "full_attention":
            return "full attention"
        case "chunked_local_attention":
            return "local chunk"
        case _:
            return "recurrent state"


def percent(value: Fraction, digits: int = 2) -> float:
    """A ratio's change in per cent, rounded for printing: the only float in a table."""
    return float(round(100 * (value - 1), digits))


def layers_table(layers: Sequence[CacheLayer]) -> pd.DataFrame:
    """One row per distinct cache layer, with the number of layers like it.

    Columns: cache, kind, num_layers, block_size_tokens, tokens_per_row,
    rows_per_page, row_bytes, payload_bytes, page_bytes, padding_bytes.
    """
    counts: dict[tuple[str, LayerSpec], int] = {}
    first: dict[tuple[str, LayerSpec], CacheLayer] = {}
    for layer in layers:
        key = (role_of(layer), layer.spec)
        counts[key] = counts.get(key, 0) + 1
        first.setdefault(key, layer)
    rows = []
    for distinct, layer in first.items():
        spec = layer.spec
        rows.append(
            {
                "cache": role_of(layer),
                "kind": spec.kind,
                "num_layers": counts[distinct],
                "block_size_tokens": spec.block_size,
                "tokens_per_row": spec.compress_ratio,
                "rows_per_page": spec.rows_per_page,
                "row_bytes": spec.row_bytes,
                "payload_bytes": spec.payload_bytes,
                "page_bytes": spec.page_bytes,
                "padding_bytes": spec.page_bytes - spec.payload_bytes,
            }
        )
    return pd.DataFrame(rows)


def groups_table(slab: SlabLayout) -> pd.DataFrame:
    """One row per cache group: what it holds, and where its share of a block goes.

    `payload_bytes + page_padding_bytes + unused_bytes` is the block stride.
    """
    rows = []
    for group_id, group in enumerate(slab.groups):
        payload = group.payload_bytes
        rows.append(
            {
                "group": group_id,
                "caches": ", ".join(dict.fromkeys(role_of(layer) for layer in group.layers)),
                "num_layers": len(group.layers),
                "block_size_tokens": group.block_size,
                "group_bytes": group.group_bytes,
                "payload_bytes": payload,
                "page_padding_bytes": group.group_bytes - payload,
                "unused_bytes": slab.unused_bytes(group_id),
            }
        )
    return pd.DataFrame(rows)


def _page_row(page: PlacedPage) -> dict[str, object]:
    spec = page.layer.spec
    return {
        "layer": page.layer.name,
        "cache": role_of(page.layer),
        "group": page.group_id,
        "offset_bytes": page.offset,
        "block_size_tokens": spec.block_size,
        "rows_per_page": spec.rows_per_page,
        "row_bytes": spec.row_bytes,
        "payload_bytes": page.payload_bytes,
        "page_bytes": page.page_bytes,
        "padding_bytes": page.padding_bytes,
    }


def tensors_table(plan: Plan) -> pd.DataFrame:
    """One row per strided tensor of a plan: what a figure of its slab shows, as numbers.

    Columns: cache, num_layers, group, offset_bytes, layer_stride_bytes,
    block_stride_bytes, payload_bytes.
    """
    roles = {page.layer.name: role_of(page.layer) for page in plan.slab.pages}
    return pd.DataFrame(
        [
            {
                "cache": roles[tensor.layers[0]],
                "num_layers": len(tensor.layers),
                "group": tensor.group_id,
                "offset_bytes": tensor.offset,
                "layer_stride_bytes": tensor.layer_stride,
                "block_stride_bytes": tensor.block_stride,
                "payload_bytes": tensor.payload_bytes,
            }
            for tensor in plan.tensors
        ]
    )


def slab_pages_table(slab: SlabLayout) -> pd.DataFrame:
    """One row per cache layer: its place in the block and its bytes."""
    return pd.DataFrame([_page_row(page) for page in slab.pages])


def setup_columns(setup: Setup) -> dict[str, object]:
    """The columns that say what was planned."""
    return {"model": setup.model, "backend": setup.backend, "indexer": setup.indexer, "slab": setup.slab}


def pages_table() -> pd.DataFrame:
    """One row per cache layer of DeepSeek-V4-Pro, before and after PR 48993, both backends."""
    rows = []
    for setup in (make(backend) for backend in BUDGETS for make in (before, after)):
        for page in slab_of(setup).pages:
            rows.append(setup_columns(setup) | _page_row(page) | {"source": COMPUTED})
    return pd.DataFrame(rows)


def strides_table() -> pd.DataFrame:
    """Block stride of every preset, backend, row format and generation."""
    setups = [
        Setup(model=model, backend=backend, indexer=indexer, slab=slab)
        for model in PRESETS
        for backend in BACKENDS
        for indexer in INDEXER_FORMATS
        for slab in GENERATIONS
    ]
    rows = []
    for setup in setups:
        slab = slab_of(setup)
        rows.append(
            setup_columns(setup)
            | {
                "num_layers": sum(len(group.layers) for group in slab.groups),
                "num_groups": len(slab.groups),
                "block_stride_bytes": slab.block_stride,
                "largest_group_bytes": max(group.group_bytes for group in slab.groups),
                "padding_bytes": slab.padding_bytes,
                "source": COMPUTED,
            }
        )
    return pd.DataFrame(rows)


def compare_table(
    stacks: Iterable[tuple[str, Sequence[CacheLayer]]],
    budget_bytes: int,
    *,
    packed: bool = False,
    packed_labels: Collection[str] = (),
) -> pd.DataFrame:
    """Every generation on every stack of layers, at one budget.

    Args:
        stacks: `(label, layers)`; the label names the row format.
        budget_bytes: Bytes for the pool.
        packed: Opt in to packing where the engine does not pack by itself.
        packed_labels: Opt in for the stacks of these labels only; a generation that
            packs no such stack leaves them out.

    Columns: slab, rows, num_groups, block_stride_bytes, num_blocks, change_percent,
    refused.  `change_percent` is the change of num_blocks from the bucketed slab of
    the first stack.  A generation that refuses a stack has its reason in `refused`
    and no numbers.
    """
    stacks = list(stacks)
    rows: list[dict[str, object]] = []
    blocks: dict[tuple[str, str], int] = {}
    for generation in GENERATIONS.values():
        for label, layers in stacks:
            if label in packed_labels and not generation.packs_other_hybrids:
                continue
            row: dict[str, object] = {"slab": generation.name, "rows": label, "refused": ""}
            rows.append(row)
            try:
                slab = generation.lay_out(layers, packed=packed or label in packed_labels)
            except RefusedError as error:
                row["refused"] = str(error)
                continue
            blocks[generation.name, label] = num_blocks = budget_bytes // slab.block_stride
            row |= {
                "num_groups": len(slab.groups),
                "block_stride_bytes": slab.block_stride,
                "num_blocks": num_blocks,
            }
    baseline = blocks.get(("bucketed", stacks[0][0]), 0)
    for row in rows:
        num_blocks = blocks.get((str(row["slab"]), str(row["rows"])), 0)
        if baseline and num_blocks:
            row["change_percent"] = percent(Fraction(num_blocks, baseline))
    columns = ["slab", "rows", "num_groups", "block_stride_bytes", "num_blocks", "change_percent", "refused"]
    frame = pd.DataFrame(rows, columns=columns)
    return frame.astype(dict.fromkeys(columns[2:5], "Int64"))
