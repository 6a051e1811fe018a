"""What a generation of the engine is: how it groups, packs, prices and counts, as one value."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from kvslab.groups import CacheGroup, group_other_hybrid, is_latent_stack
from kvslab.layers import CacheLayer, checked_stack
from kvslab.slab import SlabLayout, pack_ranks

Formula = Literal["legacy", "block_sum", "steady"]
"""How concurrency is counted, see `kvslab.capacity.max_concurrency`."""
Price = Literal["tuple", "stride"]
"""What admission charges for a block, see `kvslab.capacity.block_price_bytes`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """One generation of the slab planner.

    Args:
        name: The name on the command line.
        releases: The engine releases that plan so.
        rule: One sentence: what sets the block stride.
        group: Layers of a latent stack -> groups.
        pack: Groups -> slab.
        price: What its admission charges for a block.
        formula: How its log counts concurrency.
        packs_other_hybrids: Whether `pack` serves stacks without sliding-window
            MLA layers too, once packing is opted in (`enable_cross_layers_blocks`).
        group_packed: How such a stack is grouped then.

    Source: the releases named in `releases`, run on 158 stacks of layers.

    >>> from kvslab import GENERATIONS, load_layers
    >>> layers = load_layers("deepseek-v4-pro", indexer="fp8")
    >>> {name: generation.lay_out(layers).block_stride for name, generation in GENERATIONS.items()}
    {'padded': 1317376, 'bucketed': 1308672, 'overlay': 1275904, 'standard': 1275904}
    """

    name: str
    releases: str
    rule: str
    group: Callable[[Sequence[CacheLayer]], tuple[CacheGroup, ...]]
    pack: Callable[[Sequence[CacheGroup]], SlabLayout]
    price: Price
    formula: Formula
    packs_other_hybrids: bool = True
    group_packed: Callable[[Sequence[CacheLayer]], tuple[CacheGroup, ...]] = group_other_hybrid

    def lay_out(self, layers: Sequence[CacheLayer], *, packed: bool = False) -> SlabLayout:
        """Plan the slab of a stack of layers.

        Args:
            layers: The model's cache layers.
            packed: Opt in to packing where the engine does not pack by itself.

        Raises:
            InputError: The stack is empty or two layers share a name.
            RefusedError: This generation refuses the stack.
        """
        return self.pack_groups(self.group_layers(layers, packed=packed), packed=packed)

    def group_layers(self, layers: Sequence[CacheLayer], *, packed: bool = False) -> tuple[CacheGroup, ...]:
        """Group a stack of layers.

        Args:
            layers: The model's cache layers.
            packed: Whether they will be packed where the engine does not pack by itself.

        Raises:
            InputError: The stack is empty or two layers share a name.
            RefusedError: This generation refuses the stack.
        """
        stack = checked_stack(layers)
        if is_latent_stack(stack):
            return self.group(stack)
        return self.group_packed(stack) if packed and self.packs_other_hybrids else group_other_hybrid(stack)

    def pack_groups(
        self, groups: Sequence[CacheGroup], *, packed: bool = False, latent: bool | None = None
    ) -> SlabLayout:
        """Pack groups into a slab: by this generation's rule, or by rank where it does not pack.

        Args:
            groups: The groups, or one pipeline stage's share of them.
            packed: Opt in to packing where the engine does not pack by itself.
            latent: Whether the whole model is a latent stack, where `groups` is a share.
        """
        if latent is None:
            latent = any(is_latent_stack(group.layers) for group in groups)
        if latent or (packed and self.packs_other_hybrids):
            return self.pack(groups)
        return pack_ranks(groups)
