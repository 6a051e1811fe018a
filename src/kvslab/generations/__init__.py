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

__all__ = [
    "GENERATIONS",
    "Formula",
    "Generation",
    "Price",
    "generation_named",
    "register",
    "registered_names",
]

GENERATIONS: Mapping[str, Generation] = {g.name: g for g in (PADDED, BUCKETED, OVERLAY, STANDARD)}
"""The generations that an engine released, by name, oldest first.

>>> list(GENERATIONS)
['padded', 'bucketed', 'overlay', 'standard']
"""

_BY_NAME: dict[str, Generation] = dict(GENERATIONS)


def register(generation: Generation) -> Generation:
    """Add a planner that no engine released, so that `generation_named` finds it; returns it.

    `GENERATIONS` does not change: a log or a table of releases knows no such planner.

    Raises:
        InputError: The name is taken.
    """
    if generation.name in _BY_NAME:
        raise InputError("generation", generation.name, f"a name other than {', '.join(_BY_NAME)}")
    _BY_NAME[generation.name] = generation
    return generation


def registered_names() -> tuple[str, ...]:
    """Names that `generation_named` knows: the releases, then what was registered.

    >>> registered_names()
    ('padded', 'bucketed', 'overlay', 'standard', 'fitted')
    """
    return tuple(_BY_NAME)


def generation_named(name: str) -> Generation:
    """Look up a generation.

    Args:
        name: One of `registered_names()`: a release, or a planner such as `fitted`.

    Raises:
        InputError: There is none of that name.

    Source: each generation's file names the releases and pull requests that it follows.

    >>> generation_named("overlay").releases
    'vLLM 0.27 to 0.31 (0.27.0 was run)'
    """
    if name not in _BY_NAME:
        raise InputError("slab", name, f"one of {', '.join(_BY_NAME)}")
    return _BY_NAME[name]
