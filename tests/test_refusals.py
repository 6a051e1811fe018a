"""Guards the refusals: a stack that an engine would not serve must not come back as a plan."""

from typing import Any

import pytest

from kvslab.errors import RefusedError
from kvslab.generations import generation_named
from kvslab.layers import CacheLayer, layers_from_json


def stack(*layers: dict[str, Any]) -> tuple[CacheLayer, ...]:
    return layers_from_json({"layers": [{"name": f"l{i}", **layer} for i, layer in enumerate(layers)]})


MLA = {"kind": "mla_attention", "block_size": 4, "row_bytes": 8}
WINDOW = {"kind": "sliding_window_mla", "block_size": 4, "row_bytes": 8, "sliding_window": 8}


def test_bucketed_refuses_a_page_that_nothing_holds() -> None:
    layers = stack(MLA, {**WINDOW, "row_bytes": 9})
    with pytest.raises(
        RefusedError, match=r"'l1' has a page of 36 bytes, larger than every page .* \(largest 32\)"
    ):
        generation_named("bucketed").lay_out(layers)
    assert generation_named("overlay").lay_out(layers).block_stride == 36


def test_bucketed_refuses_unequal_counts() -> None:
    layers = stack(MLA, MLA, {**MLA, "row_bytes": 4}, WINDOW, WINDOW, {**WINDOW, "row_bytes": 4})
    with pytest.raises(RefusedError, match=r"got 2 of 32 bytes, 1 of 16 bytes, need equal layer counts"):
        generation_named("bucketed").lay_out(layers)


@pytest.mark.parametrize("slab", ["padded", "bucketed", "overlay"])
def test_stacks_outside_the_latent_rule(slab: str) -> None:
    generation = generation_named(slab)
    with pytest.raises(
        RefusedError, match="'l2': got kind full_attention, need mla_attention or sliding_window_mla"
    ):
        generation.lay_out(stack(MLA, WINDOW, {"kind": "full_attention", "block_size": 4, "row_bytes": 8}))
    with pytest.raises(RefusedError, match="needs at least one mla_attention layer, got none"):
        generation.lay_out(stack(WINDOW, WINDOW))
    with pytest.raises(RefusedError, match=r"got block sizes \[4, 8\], need one block_size"):
        generation.lay_out(stack(MLA, {**MLA, "block_size": 8}, WINDOW))


def test_pages_that_cannot_be_made_equal() -> None:
    full = {"kind": "full_attention", "block_size": 16, "row_bytes": 12}
    window = {"kind": "sliding_window", "block_size": 16, "row_bytes": 8, "sliding_window": 64}
    with pytest.raises(
        RefusedError, match=r"'l1' has 128 bytes, which does not divide the 192 bytes of 'l0'"
    ):
        generation_named("overlay").lay_out(stack(full, window))
    # 8-byte rows in a 128-byte page, aligned to 96: twice the tokens are 256 bytes, but not 384.
    with pytest.raises(RefusedError, match="does not divide"):
        generation_named("overlay").lay_out(stack({**full, "row_bytes": 24}, {**window, "alignment": 96}))


def test_uniform_pages_by_hand() -> None:
    """Three windows of 8-byte rows beside one layer of 16-byte rows: four groups of one 256-byte page."""
    full = {"kind": "full_attention", "block_size": 16, "row_bytes": 16}
    window = {"kind": "sliding_window", "block_size": 16, "row_bytes": 8, "sliding_window": 64}
    slab = generation_named("overlay").lay_out(stack(window, full, window, window))
    assert [[layer.name for layer in group.layers] for group in slab.groups] == [
        ["l0"],
        ["l2"],
        ["l3"],
        ["l1"],
    ]
    assert [group.block_size for group in slab.groups] == [32, 32, 32, 16]
    assert slab.block_stride == 256
    assert not slab.block_outermost


def test_a_recurrent_state_is_raised_to_the_attention_page() -> None:
    full = {"kind": "full_attention", "block_size": 16, "row_bytes": 16}
    state = {"kind": "mamba", "block_size": 16, "page_bytes": 200}
    slab = generation_named("overlay").lay_out(stack(full, state))
    assert slab.block_stride == 256
    assert [page.padding_bytes for page in slab.pages] == [0, 56]
