"""What about other models: padding of each model's slab today, and what packing can bring."""

from fractions import Fraction

import pandas as pd

from kvslab.capacity import Load, held_blocks, max_concurrency
from kvslab.errors import BudgetError
from kvslab.fit import NOTICEABLE, fit
from kvslab.generations import generation_named
from kvslab.layers import CacheLayer, RecurrentState
from kvslab.models import OTHER_PRESETS, PRESETS, default_max_model_len, load_model, preset_config
from kvslab.slab import SlabLayout
from kvslab.tables.change import IN_FLIGHT_TOKENS
from kvslab.tables.layout import COMPUTED, percent, role_of

BUDGET_BYTES = 40 * 2**30
LENGTH_TOKENS = 8_192


def models_table(
    length_tokens: int = LENGTH_TOKENS,
    *,
    budget_bytes: int = BUDGET_BYTES,
    max_in_flight_tokens: int = IN_FLIGHT_TOKENS,
) -> pd.DataFrame:
    """One row per preset, DeepSeek-V4 first, all on one worker.

    `today` is the bucketed planner without opting in to packing (vLLM 0.23 to 0.26).
    A request has `length_tokens`, or as many as the model is made for; requests are
    counted by the `steady` formula.  The longer a request, the more of it is in the
    fullest group, and the less its padding weighs.

    Columns: model, caches, num_layers, num_page_sizes, num_groups, block_stride_bytes,
    max_model_len_tokens, requests, padding_percent, overlay_change_percent,
    standard_change_percent, fitted_change_percent, bound_percent, why, source.

    * `padding_percent`: of the bytes that a request holds, those that no row uses
    * `overlay_change_percent`, `standard_change_percent`: change of the requests with that
      planner, packed; missing where it refuses
    * `fitted_change_percent`: the same with a plan searched for this load
    * `bound_percent`: change of the requests if no byte of today's blocks were padded; only other
      block sizes can pass it

    Raises:
        BudgetError: Some model's tokens in flight alone fill the budget.
    """
    return pd.DataFrame(
        [_row(name, length_tokens, budget_bytes, max_in_flight_tokens) for name in (*PRESETS, *OTHER_PRESETS)]
    )


def _row(name: str, length_tokens: int, budget_bytes: int, max_in_flight_tokens: int) -> dict[str, object]:
    layers = load_model(name).layers
    length = min(default_max_model_len(preset_config(name)) or length_tokens, length_tokens)
    load = Load.of(length, max_in_flight_tokens=max_in_flight_tokens)

    def requests(slab: SlabLayout) -> Fraction:
        return max_concurrency(slab.groups, budget_bytes // slab.block_stride, load, "steady")

    today = generation_named("bucketed").lay_out(layers)
    overlay, standard = (generation_named(n).lay_out(layers, packed=True) for n in ("overlay", "standard"))
    served, padding = requests(today), _padding(today, load)
    if not served:
        need = f"more than {max_in_flight_tokens:,} tokens in flight of {name} take"
        raise BudgetError(f"budget: got {budget_bytes:,} bytes, need {need}")
    fitted = fit(layers, load, budget_bytes, min_gain=NOTICEABLE).requests / served
    gains = [percent(requests(slab) / served) for slab in (overlay, standard)]
    return {
        "model": name,
        "caches": ", ".join(dict.fromkeys(role_of(layer) for layer in layers)),
        "num_layers": len(layers),
        "num_page_sizes": len({layer.spec.page_bytes for layer in layers}),
        "num_groups": len(today.groups),
        "block_stride_bytes": today.block_stride,
        "max_model_len_tokens": length,
        "requests": float(round(served, 2)),
        "padding_percent": float(round(100 * padding, 2)),
        "overlay_change_percent": gains[0],
        "standard_change_percent": gains[1],
        "fitted_change_percent": percent(Fraction(fitted)),
        "bound_percent": percent(1 / (1 - padding)),
        "why": _why(layers, today, padding),
        "source": COMPUTED,
    }


def _padding(slab: SlabLayout, load: Load) -> Fraction:
    """The share of the bytes that a request holds between steps that no row uses."""
    held = [held_blocks(group, load.longest, load) for group in slab.groups]
    payload = sum(count * group.payload_bytes for count, group in zip(held, slab.groups, strict=True))
    return 1 - Fraction(payload, slab.block_stride * sum(held))


def _why(layers: tuple[CacheLayer, ...], today: SlabLayout, padding: Fraction) -> str:
    """Where the padding of today's slab comes from, or why there is none."""
    if len({page for group in today.groups for page in group.page_bytes}) > 1 and len(today.groups) > 1:
        return "pages of several sizes: groups padded to one another"
    if len(today.groups) == 1:
        return "one group: nothing to pad it to"
    if not padding:
        return "uniform pages, groups of one depth: every block is full"
    reasons = []
    if len({len(group.layers) for group in today.groups}) > 1:
        reasons.append("groups of unequal depth leave slots empty")
    if any(isinstance(layer.spec.retention, RecurrentState) for layer in layers):
        reasons.append("states are padded to the attention page")
    return "uniform pages: " + ", ".join(reasons)
