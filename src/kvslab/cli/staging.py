"""What `kvslab plan` prints of several pipeline stages."""

from collections.abc import Sequence
from typing import Any

from kvslab.capacity import FORMULAS, Load, StagedPlan
from kvslab.cli.common import print_table


def _stages(staged: StagedPlan) -> list[dict[str, Any]]:
    alone = [plan.budget_bytes // plan.slab.block_stride for plan in staged.stages]
    return [
        {
            "stage": i,
            "num_layers": sum(len(group.layers) for group in plan.slab.groups),
            "num_groups": len(plan.slab.groups),
            "block_stride": plan.slab.block_stride,
            "budget_bytes": plan.budget_bytes,
            "blocks_alone": blocks,
            "num_blocks": plan.num_blocks,
            "remaining_bytes": plan.remaining_bytes,
        }
        for i, (plan, blocks) in enumerate(zip(staged.stages, alone, strict=True))
    ]


def stages_json(model: str, slab: str, staged: StagedPlan, requests: Load | None) -> dict[str, Any]:
    """The stages, the pool that all of them have, and the requests that it serves."""
    return {
        "model": model,
        "slab": slab,
        "num_blocks": staged.num_blocks,
        "stages": _stages(staged),
        "max_concurrency": {formula: float(staged.max_concurrency(requests, formula)) for formula in FORMULAS}
        if requests
        else None,
    }


def print_stages(
    model: str, slab: str, staged: StagedPlan, requests: Load | None, notes: Sequence[str]
) -> None:
    """Print one row a stage; the pool is the smallest one's."""
    print_table(f"{model}, {slab} slab, {len(staged.stages)} pipeline stages", _stages(staged))
    for note in notes:
        print(f"note           {note}")
    print(f"blocks         {staged.num_blocks:,} on every stage, the smallest pool (one is the null block)")
    if requests:
        print(f"one request    {requests.longest:,} tokens")
        for formula in FORMULAS:
            print(f"requests       {float(staged.max_concurrency(requests, formula)):,.2f} ({formula})")
