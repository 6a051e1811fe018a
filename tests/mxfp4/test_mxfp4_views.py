"""Guards the seam between planner and kernels: a real plan's indexer view goes into the kernels unchanged."""

import pytest
import torch

from kvslab import mxfp4
from kvslab.generations import generation_named
from kvslab.memory.views import allocate
from kvslab.models import load_layers
from kvslab.mxfp4.contract import ROW_BYTES
from kvslab.plan import Plan

KEYS = "model.layers.2.attn.indexer.k_cache"


@pytest.mark.parametrize("slab", ["overlay", "standard"])
@pytest.mark.parametrize("backend", ["flashinfer", "flashmla"])
@pytest.mark.parametrize("kernels", ["cpu", "reference"])
def test_insert_and_gather_in_a_planned_slab(slab: str, backend: str, kernels: str) -> None:
    layout = generation_named(slab).lay_out(load_layers("deepseek-v4-pro", backend=backend))
    plan = Plan(slab=layout, budget_bytes=6 * layout.block_stride)
    memory = allocate(plan)
    memory.backing.fill_(0x5A)
    view = memory.raw_pages(KEYS)
    assert view.stride(0) == layout.block_stride
    x = torch.randn(100, 128, generator=torch.Generator().manual_seed(1))
    # Rows 0 to 99 of a request whose blocks are 4, 1: two pages of 64 rows.
    slots = torch.tensor([(4, 1)[i // 64] * 64 + i % 64 for i in range(100)])
    mxfp4.insert(view, x, slots, rows_per_page=64, backend=kernels)
    table, lengths = torch.tensor([[4, 1]]), torch.tensor([100])
    back = mxfp4.gather(view, table, lengths, rows_per_page=64, backend=kernels)[0]
    values, scales = mxfp4.quantize(x, backend=kernels)
    assert torch.equal(back, mxfp4.dequantize(values, scales, backend=kernels))
    # Nothing but 100 rows of one layer has changed in the whole slab.
    other = memory.backing.clone().view(-1)
    changed = int((other != 0x5A).sum())
    assert changed <= 100 * ROW_BYTES
    for name, rows in memory.all_rows().items():
        if name != KEYS and memory.page(name).group_id == memory.page(KEYS).group_id:
            assert bool((rows == 0x5A).all()), name
