"""Generation `fitted`, so that everything that takes a generation takes the search too.

A generation is asked for groups without a workload, so the registered one fits
requests of 1,048,576 tokens in a pool so large that neither the null block nor tokens
in flight matter.  `generation_for` makes one for a workload and a budget.
"""

from collections.abc import Sequence

from kvslab.capacity import Load
from kvslab.fit.classes import BlockSizes
from kvslab.fit.planner import Objective, fitted_groups
from kvslab.generations import Generation, register
from kvslab.generations.standard import pack
from kvslab.groups import CacheGroup
from kvslab.intmath import MAX_INT
from kvslab.layers import CacheLayer

DEFAULT_TOKENS = 1_048_576


def generation_for(
    load: Load,
    budget_bytes: int = MAX_INT,
    *,
    objective: Objective = "requests",
    block_sizes: BlockSizes = "kernel-legal",
    name: str = "fitted",
) -> Generation:
    """The fitted planner of one workload, as a generation.

    Args:
        load: Request lengths and tokens in flight.
        budget_bytes: Bytes of the pool that it is fitted to; others can be planned too.
        objective: What to maximise, see `kvslab.fit.fit`.
        block_sizes: Which block sizes are allowed.
        name: The generation's name.
    """

    def group(layers: Sequence[CacheLayer]) -> tuple[CacheGroup, ...]:
        return fitted_groups(layers, load, budget_bytes, objective=objective, block_sizes=block_sizes)

    return Generation(
        name=name,
        releases="no engine",
        rule="the largest group, splits and block sizes searched for a workload",
        group=group,
        pack=pack,
        price="stride",
        formula="steady",
        group_packed=group,
    )


FITTED = register(generation_for(Load.of(DEFAULT_TOKENS, max_in_flight_tokens=1)))
"""The registered generation `fitted`, for requests of `DEFAULT_TOKENS` tokens."""
