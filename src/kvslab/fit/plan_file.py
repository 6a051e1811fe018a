"""A plan file: a plan as JSON that another engine can read, and that comes back equal.

It holds the layers with the block sizes that the plan gives them, and for each group
its layers, their pages and their offsets in a block.  Byte `offset + block_id *
block_stride` of the pool is the first byte of a layer's page.
"""

from typing import Any

from kvslab.errors import InputError, LayoutError
from kvslab.files import Fields
from kvslab.groups import CacheGroup
from kvslab.layers import layers_from_json, layers_to_json
from kvslab.plan import Plan
from kvslab.slab import SlabLayout

FORMAT = "kvslab-plan-1"


def plan_to_json(plan: Plan) -> dict[str, Any]:
    """The plan file of a plan whose blocks stand outermost, ready for `json.dump`.

    Raises:
        LayoutError: The slab keeps layers outermost, or has shared slots or lockstep sets,
            which the file could not give back.
    """
    slab = plan.slab
    if not slab.block_outermost or slab.slots or slab.lockstep:
        raise LayoutError("a plan file needs blocks outermost, no shared slot and no lockstep set")
    layers = [layer for group in slab.groups for layer in group.layers]
    return {
        "format": FORMAT,
        "budget_bytes": plan.budget_bytes,
        "num_blocks": plan.num_blocks,
        "block_stride": slab.block_stride,
        "null_block_id": 0,
        "groups": [
            {
                "block_size": group.block_size,
                "layers": [
                    {"name": layer.name, "offset": offset, "page_bytes": page}
                    for layer, offset, page in zip(group.layers, row, group.page_bytes, strict=True)
                ],
            }
            for group, row in zip(slab.groups, slab.offsets, strict=True)
        ],
        **layers_to_json(layers),
    }


_FIELDS = ("format", "budget_bytes", "num_blocks", "block_stride", "null_block_id", "groups", "layers")


def plan_from_json(value: object, where: str = "plan file") -> Plan:
    """Read the parsed JSON of a plan file; the slab proves itself again.

    Args:
        value: The parsed JSON.
        where: How errors call the file.

    Raises:
        InputError: A field is missing, unknown, of another type or contradicts another.
        LayoutError: Pages overlap, or one ends past the stride.
        BudgetError: The budget holds no block.
    """
    top = Fields(value, where)
    top.refuse_unknown(_FIELDS)
    top.text("format", choices=(FORMAT,))
    top.integer("null_block_id", minimum=0, maximum=0)
    named = {layer.name: layer for layer in layers_from_json({"layers": top.sequence("layers")}, where)}
    groups, offsets = [], []
    for i, entry in enumerate(top.sequence("groups")):
        fields = Fields(entry, top.path(f"groups[{i}]"))
        fields.refuse_unknown(("block_size", "layers"))
        members, row = [], []
        for j, item in enumerate(fields.sequence("layers")):
            page = Fields(item, fields.path(f"layers[{j}]"))
            page.refuse_unknown(("name", "offset", "page_bytes"))
            name = page.text("name")
            if name not in named:
                raise InputError(page.path("name"), name, "a layer of `layers` that no group has yet")
            members.append((named.pop(name), page.integer("page_bytes")))
            row.append(page.integer("offset", minimum=0))
        if not members:
            raise InputError(fields.path("layers"), [], "at least one layer")
        group = CacheGroup(
            layers=tuple(layer for layer, _ in members), page_bytes=tuple(size for _, size in members)
        )
        if fields.integer("block_size") != group.block_size:
            need = f"{group.block_size}, as its layers say"
            raise InputError(fields.path("block_size"), fields.get("block_size"), need)
        groups.append(group)
        offsets.append(tuple(row))
    if named:
        raise InputError(top.path("groups"), next(iter(named)), "every layer in one group")
    slab = SlabLayout(groups=tuple(groups), offsets=tuple(offsets), block_stride=top.integer("block_stride"))
    plan = Plan(slab=slab, budget_bytes=top.integer("budget_bytes"))
    if top.integer("num_blocks") != plan.num_blocks:
        raise InputError(
            top.path("num_blocks"), top.get("num_blocks"), f"{plan.num_blocks:,}, as the budget says"
        )
    return plan
