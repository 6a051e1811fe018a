"""The generations of the slab planner, by name, oldest first.

A new generation is one file here that ends in a `Generation` value, and its name
in `GENERATIONS`.
"""

from collections.abc import Mapping

from kvslab.errors import InputError
from kvslab.generations.base import Formula, Generation, Price
from kvslab.generations.bucketed import BUCKETED
from kvslab.generations.overlay import OVERLAY
from kvslab.generations.padded import PADDED
from kvslab.generations.standard import STANDARD

__all__ = ["GENERATIONS", "Formula", "Generation", "Price", "generation_named"]

GENERATIONS: Mapping[str, Generation] = {g.name: g for g in (PADDED, BUCKETED, OVERLAY, STANDARD)}


def generation_named(name: str) -> Generation:
    """Look up a generation.

    Raises:
        InputError: There is none of that name.

    >>> generation_named("overlay").releases
    'vLLM 0.27 to 0.31 (0.27.0 was run)'
    """
    if name not in GENERATIONS:
        raise InputError("slab", name, f"one of {', '.join(GENERATIONS)}")
    return GENERATIONS[name]
