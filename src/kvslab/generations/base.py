"""What a generation of the engine is: a grouping rule and a packing rule, as one value."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvslab.groups import CacheGroup, group_other_hybrid, is_latent_stack
from kvslab.layers import CacheLayer, checked_stack
from kvslab.slab import SlabLayout, pack_ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """One generation of the slab planner.

    Args:
        name: The name on the command line.
        releases: The engine releases that plan so.
        rule: One sentence: what sets the block stride.
        group: Layers of a latent stack -> groups.
        pack: Groups -> slab.
        packs_other_hybrids: Whether `pack` serves stacks without sliding-window
            MLA layers too, once packing is opted in (`enable_cross_layers_blocks`).
        group_packed: How such a stack is grouped then.
    """

    name: str
    releases: str
    rule: str
    group: Callable[[Sequence[CacheLayer]], tuple[CacheGroup, ...]]
    pack: Callable[[Sequence[CacheGroup]], SlabLayout]
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
        stack = checked_stack(layers)
        if is_latent_stack(stack):
            return self.pack(self.group(stack))
        if packed and self.packs_other_hybrids:
            return self.pack(self.group_packed(stack))
        return pack_ranks(group_other_hybrid(stack))
