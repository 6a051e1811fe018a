"""Guards the answers to "how many fit" and "does one fit": off by one here admits what does not fit."""

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvslab.capacity import (
    Load,
    admission_bytes,
    auto_fit_max_model_len,
    block_price_bytes,
    blocks_per_request,
    held_blocks,
    max_concurrency,
    peak_blocks,
    summarize,
    transient_blocks,
)
from kvslab.errors import InputError
from kvslab.generations import generation_named
from kvslab.groups import CacheGroup, own_pages
from kvslab.layers import CacheLayer, layers_from_json
from kvslab.layouts import keep_apart
from kvslab.models import load_layers
from kvslab.plan import Plan
from kvslab.slab import pack_dense
from stacks import latent_stacks


def group(kind: str, block_size: int, **fields: Any) -> CacheGroup:
    layer = {"name": "a", "kind": kind, "block_size": block_size, "row_bytes": 1, **fields}
    return own_pages(layers_from_json({"layers": [layer]}))


FULL = group("full_attention", 4)
WINDOW = group("sliding_window", 4, sliding_window=6)
CHUNK = group("chunked_local_attention", 4, attention_chunk_size=8)
STATE = group("mamba", 4, page_bytes=10)


def live_blocks(block_size: int, first: int, end: int) -> int:
    """Brute force: the distinct blocks that tokens first to end - 1 touch."""
    return len({token // block_size for token in range(first, end)})


@pytest.mark.parametrize(("length", "in_flight"), [(1, 1), (3, 1), (9, 2), (40, 5), (41, 64)])
def test_blocks_by_hand(length: int, in_flight: int) -> None:
    load = Load.of(length, max_in_flight_tokens=in_flight)
    assert peak_blocks(FULL, length, load) == live_blocks(4, 0, length)
    # A window's worst case: it may start anywhere in a block.
    tokens = min(6 - 1 + in_flight, length)
    assert peak_blocks(WINDOW, length, load) >= max(live_blocks(4, s, s + tokens) for s in range(4))
    assert peak_blocks(STATE, length, load) == 1


def test_known_values() -> None:
    load = Load.of(100, max_in_flight_tokens=10, dcp=2, num_speculative_tokens=3)
    assert blocks_per_request((FULL, WINDOW, CHUNK, STATE), load) == (13, 5, 5, 4)
    assert [held_blocks(g, 100, load) for g in (FULL, WINDOW, CHUNK, STATE)] == [13, 3, 2, 4]
    assert [transient_blocks(g, load) for g in (FULL, WINDOW, CHUNK, STATE)] == [0, 3, 3, 0]


def test_a_short_request_holds_no_more_than_it_has() -> None:
    load = Load.of(3, max_in_flight_tokens=1)
    assert [held_blocks(g, 3, load) for g in (FULL, WINDOW, CHUNK)] == [1, 1, 1]
    # Two windows of context parallel shards hold half the tokens each; windows are not sharded.
    assert peak_blocks(WINDOW, 3, load) == 2


def test_concurrency_by_hand() -> None:
    groups = (FULL, WINDOW)
    load = Load.of(100, max_in_flight_tokens=10)
    # 25 and 5 blocks a request at its peak; 25 and 3 held; 3 in flight for the whole batch.
    assert max_concurrency(groups, 301, load, "block_sum") == Fraction(301, 30)
    assert max_concurrency(groups, 301, load, "steady") == Fraction(301 - 1 - 3, 28)
    # Pages are of one size, so the old formula charges every group alike.
    assert max_concurrency(groups, 301, load, "legacy") == Fraction(301, 30)
    wide = group("full_attention", 4, row_bytes=5)
    # 25 * 20 + 5 * 4 = 520 bytes, in blocks of the first group's 20 bytes.
    assert max_concurrency((wide, WINDOW), 301, load, "legacy") == Fraction(301, 26)
    assert max_concurrency(groups, 2, load, "steady") == 0


def test_a_lockstep_set_shares_its_blocks() -> None:
    """Groups 1 and 2 share block ids: the set needs the larger count once, in blocks that hold both."""
    plain = generation_named("overlay").lay_out(load_layers("deepseek-v4-pro"))
    apart = keep_apart(plain, [(1, 2)])
    assert apart.block_stride == 1_015_808 + 983_040
    load = Load.of(1_048_576, max_in_flight_tokens=8192)
    budget, generation = 10_000 * apart.block_stride, generation_named("overlay")
    summary = summarize(Plan(slab=apart, budget_bytes=budget), generation, load)
    assert summary.blocks_per_request == (4096, 131, 131, 1041, 2051)
    assert summary.admission_bytes["stride"] == (4096 + 131 + 1041 + 2051) * apart.block_stride
    assert summary.max_concurrency["block_sum"] == Fraction(10_000, 4096 + 131 + 1041 + 2051)
    # Held: 4096 + 3 + 17 + 3; in flight: 128 for the set once, 1,024 and 2,048 for the states.
    assert summary.max_concurrency["steady"] == Fraction(10_000 - 1 - 128 - 1024 - 2048, 4119)
    without = summarize(Plan(slab=plain, budget_bytes=budget), generation, load)
    assert without.max_concurrency["steady"] > summary.max_concurrency["steady"]


def test_a_mixture_of_lengths() -> None:
    load = Load.of([4, 4, 100], max_in_flight_tokens=1)
    assert load.lengths == ((4, 2), (100, 1))
    assert max_concurrency((FULL,), 28, load, "steady") == 3
    assert max_concurrency((FULL,), 27, load, "block_sum") == 3
    weighted = Load(lengths=((4, 20), (100, 10)), max_in_flight_tokens=1)
    assert max_concurrency((FULL,), 28, weighted, "steady") == 3
    assert blocks_per_request((FULL,), weighted) == (25,)


def test_the_review_example() -> None:
    """Two tuples of FP32 state, pages of 32,768 and 8,192 bytes, beside latent pages of 32,768 and 4,608."""
    latent = [("m", 4608), ("M", 32768)] * 2
    state = [("s", 8192), ("S", 32768)] * 2
    layers = [
        {"name": f"{name}{i}", "kind": "mla_attention", "block_size": 1, "row_bytes": size}
        for i, (name, size) in enumerate(latent)
    ] + [
        {
            "name": f"{name}{i}",
            "kind": "sliding_window_mla",
            "block_size": 1,
            "row_bytes": size,
            "sliding_window": 4,
        }
        for i, (name, size) in enumerate(state)
    ]
    slab = generation_named("overlay").lay_out(layers_from_json({"layers": layers}))
    assert block_price_bytes(slab.groups, slab.block_stride, "tuple") == 74_752
    assert block_price_bytes(slab.groups, slab.block_stride, "stride") == 81_920


@pytest.mark.parametrize(
    ("block_size", "num_blocks", "engine", "exact"), [(128, 8, 1024, 896), (8192, 13, 106_496, 98_304)]
)
def test_the_null_block_in_public_reports(block_size: int, num_blocks: int, engine: int, exact: int) -> None:
    """Source: vllm-project/vllm issue 48724 and vllm-rbln issue 957."""
    groups = (group("full_attention", block_size),)
    load = Load.of(1_000_000, max_in_flight_tokens=1)
    stride = groups[0].group_bytes
    found = [
        auto_fit_max_model_len(groups, stride, num_blocks * stride, load, "stride", keep_null_block=keep)
        for keep in (False, True)
    ]
    assert found == [engine, exact]


@given(
    layers=latent_stacks(),
    budget=st.integers(1, 2**38),
    length=st.integers(1, 2**21),
    in_flight=st.integers(1, 2**15),
)
@settings(deadline=None, max_examples=60)
def test_auto_fit_is_the_largest_that_fits(
    layers: tuple[CacheLayer, ...], budget: int, length: int, in_flight: int
) -> None:
    slab = generation_named("overlay").lay_out(layers)
    load = Load.of(length, max_in_flight_tokens=in_flight)
    found = auto_fit_max_model_len(
        slab.groups, slab.block_stride, budget, load, "stride", keep_null_block=False
    )
    assert 0 <= found <= length
    if found:
        assert admission_bytes(slab.groups, slab.block_stride, load.at(found), "stride") <= budget
    if found < length:
        assert admission_bytes(slab.groups, slab.block_stride, load.at(found + 1), "stride") > budget


@given(
    layers=latent_stacks(),
    blocks=st.integers(2, 2**20),
    length=st.integers(1, 2**20),
    in_flight=st.integers(1, 2**14),
)
@settings(deadline=None, max_examples=60)
def test_formulas_are_ordered(
    layers: tuple[CacheLayer, ...], blocks: int, length: int, in_flight: int
) -> None:
    groups = pack_dense(generation_named("overlay").lay_out(layers).groups).groups
    load = Load.of(length, max_in_flight_tokens=in_flight)
    for one in groups:
        assert held_blocks(one, length, load) <= peak_blocks(one, length, load)
    more = max_concurrency(groups, blocks + 1, load, "steady")
    assert more >= max_concurrency(groups, blocks, load, "steady") >= 0


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"lengths": (), "max_in_flight_tokens": 1}, "lengths: got \\(\\), need at least one request length"),
        ({"lengths": ((0, 1),), "max_in_flight_tokens": 1}, "max_model_len: got 0"),
        ({"lengths": ((1, 0),), "max_in_flight_tokens": 1}, "weight: got 0"),
        ({"lengths": ((1, 1),), "max_in_flight_tokens": 0}, "max_in_flight_tokens: got 0"),
        ({"lengths": ((1, 1),), "max_in_flight_tokens": 1, "dcp": 0}, "dcp: got 0"),
    ],
)
def test_an_impossible_load_is_named(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Load(**fields)


def test_unknown_rules_are_named() -> None:
    load = Load.of(1, max_in_flight_tokens=1)
    with pytest.raises(InputError, match="formula: got 'best', need one of legacy, block_sum, steady"):
        max_concurrency((FULL,), 1, load, "best")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="price: got 'free', need one of tuple, stride"):
        block_price_bytes((FULL,), 1, "free")  # type: ignore[arg-type]
