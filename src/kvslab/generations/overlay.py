"""`overlay`: vLLM 0.27, PR 48993.

Each group is packed on its own, densely and from byte 0, and the groups are laid
over one another::

    stride = bytes of the largest group

That is legal because a block id belongs to one group at a time: the bytes under
two groups' pages are never live together.  Nothing is padded to another group's
page size any more.

Source: vLLM PR 48993; behaviour of vLLM 0.27.0.
"""

from collections.abc import Sequence

from kvslab.generations.base import Generation
from kvslab.groups import CacheGroup, group_latent_stack, keep_page
from kvslab.layers import CacheLayer
from kvslab.slab import pack_dense


def group(layers: Sequence[CacheLayer]) -> tuple[CacheGroup, ...]:
    """Group a latent stack; every layer keeps its own page size."""
    return group_latent_stack(layers, keep_page)


OVERLAY = Generation(
    name="overlay",
    releases="vLLM 0.27 to 0.31 (0.27.0 was run)",
    rule="the largest group, every group packed from byte 0",
    group=group,
    pack=pack_dense,
    price="tuple",
    formula="block_sum",
)
"""vLLM 0.27: groups packed densely from byte 0; the largest sets the stride."""
