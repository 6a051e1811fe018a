"""Guards `steady` against wishful counting: a pool is played block by block, and must not run out."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvslab.capacity import Load, held_blocks, max_concurrency, transient_blocks
from kvslab.errors import InputError
from kvslab.formats import BACKENDS
from kvslab.generations import generation_named
from kvslab.groups import CacheGroup, own_pages
from kvslab.layers import LocalChunk, SlidingWindow, layers_from_json
from kvslab.models import OTHER_PRESETS, PRESETS, load_layers, load_model
from kvslab.published import after, budget_interval, slab_of
from kvslab.simulate import Request, Simulation, poisson_requests

BUDGET = 28_410_134_921


@pytest.mark.parametrize("model", PRESETS)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("slab", ["bucketed", "overlay"])
def test_steady_is_right_within_two_blocks_a_group(model: str, backend: str, slab: str) -> None:
    """As many requests as `steady` says, at their worst phase: they fit, and hardly a block is left over."""
    layout = generation_named(slab).lay_out(load_layers(model, backend=backend))
    num_blocks = BUDGET // layout.block_stride
    length, in_flight = 131_072, 8192
    load = Load.of(length, max_in_flight_tokens=in_flight)
    fitting = int(max_concurrency(layout.groups, num_blocks, load, "steady"))
    simulation = Simulation(
        layout.groups, num_blocks, max_num_batched_tokens=in_flight, admission="steady", prefill_first=True
    )
    # 130,946 tokens end where every window of the model straddles one block more than it need.
    request = Request(arrival_step=0, prompt_tokens=length - 126, output_tokens=126)
    result = simulation.run([request] * fitting)
    assert result.peak_running == result.num_finished == fitting
    assert result.num_shortfalls == 0
    claimed = [fitting * held_blocks(g, length, load) + transient_blocks(g, load) for g in layout.groups]
    assert all(abs(seen - said) <= 2 for seen, said in zip(result.peak_blocks, claimed, strict=True))
    # One more request is not let in beside them.
    more = simulation.run([request] * (fitting + 1))
    assert more.peak_running == fitting and more.num_finished == fitting + 1


def worst_prompt(groups: Sequence[CacheGroup], near: int) -> int:
    """Brute force: the prompt length below `near` after which the windows straddle most blocks."""
    windows = [
        (g.block_size, g.retention.window_tokens) for g in groups if isinstance(g.retention, SlidingWindow)
    ]

    def straddled(prompt: int) -> int:
        return sum(len({t // b for t in range(max(0, prompt - w + 1), prompt)}) for b, w in windows)

    return max(range(near - 128, near), key=straddled)


@pytest.mark.parametrize("model", OTHER_PRESETS)
def test_steady_is_right_for_other_models(model: str) -> None:
    layout = generation_named("standard").lay_out(load_model(model).layers)
    length, in_flight, num_blocks = 16_384, 2048, 40 * 2**30 // layout.block_stride
    load = Load.of(length, max_in_flight_tokens=in_flight)
    fitting = min(12, int(max_concurrency(layout.groups, num_blocks, load, "steady")))
    prompt = worst_prompt(layout.groups, length - 300)
    request = Request(arrival_step=0, prompt_tokens=prompt, output_tokens=length - prompt)
    simulation = Simulation(
        layout.groups, num_blocks, max_num_batched_tokens=in_flight, admission="steady", prefill_first=True
    )
    result = simulation.run([request] * fitting)
    assert result.num_finished == fitting and result.num_shortfalls == 0
    for group, seen in zip(layout.groups, result.peak_blocks, strict=True):
        said = fitting * held_blocks(group, length, load) + transient_blocks(group, load)
        # A local chunk ends where a batch does here, so what `steady` keeps for the batch is not needed.
        spare = transient_blocks(group, load) if isinstance(group.retention, LocalChunk) else 2
        assert said - spare <= seen <= said


def test_block_sum_idles_memory() -> None:
    slab = slab_of(after("flashinfer"))
    num_blocks = budget_interval("flashinfer").low_bytes // slab.block_stride
    requests = [Request(arrival_step=0, prompt_tokens=120_000, output_tokens=600)] * 40
    results = {
        admission: Simulation(slab.groups, num_blocks, max_num_batched_tokens=8192, admission=admission).run(
            requests
        )
        for admission in ("block_sum", "steady")
    }
    assert results["block_sum"].peak_running == 6
    assert results["steady"].peak_running >= 36
    assert results["block_sum"].peak_used_blocks < num_blocks // 2
    assert results["steady"].num_shortfalls == results["block_sum"].num_shortfalls == 0
    assert results["steady"].num_steps < results["block_sum"].num_steps


@given(
    seed=st.integers(0, 2**16),
    num_blocks=st.integers(6000, 30_000),
    in_flight=st.sampled_from([64, 500, 2048]),
)
@settings(deadline=None, max_examples=25)
def test_a_pool_never_runs_out(seed: int, num_blocks: int, in_flight: int) -> None:
    slab = slab_of(after("flashinfer"))
    requests = poisson_requests(
        12, steps_between=3, prompt_tokens=(5, 700, 9000), output_tokens=(1, 40, 130), seed=seed
    )
    result = Simulation(slab.groups, num_blocks, max_num_batched_tokens=in_flight).run(requests)
    assert result.num_finished == 12
    assert result.num_shortfalls == 0
    assert result.peak_used_blocks <= num_blocks - 1
    assert len(result.used_blocks) == len(result.running) == result.num_steps


def other_groups() -> tuple[CacheGroup, ...]:
    """A full, a windowed, a chunked and a recurrent layer, four tokens a block."""
    layers = [
        {"name": "full", "kind": "full_attention", "row_bytes": 1},
        {"name": "window", "kind": "sliding_window", "row_bytes": 1, "sliding_window": 6},
        {"name": "chunk", "kind": "chunked_local_attention", "row_bytes": 1, "attention_chunk_size": 8},
        {"name": "state", "kind": "mamba", "page_bytes": 4},
    ]
    stack = layers_from_json({"layers": [{"block_size": 4, **layer} for layer in layers]})
    return tuple(own_pages([layer]) for layer in stack)


def test_every_kind_of_group_by_hand() -> None:
    """Ten tokens of prompt in one step, then two more: blocks that a live token lies in, counted by hand."""
    request = Request(arrival_step=0, prompt_tokens=10, output_tokens=2)
    result = Simulation(other_groups(), 100, max_num_batched_tokens=10).run([request])
    # Step 1 computes tokens 0 to 9: three blocks of every kind, one state.
    # Step 2 computes token 10, which sees 5 to 10 in the window (blocks 1, 2), 8 to 10 in its chunk.
    # Step 3 computes token 11: blocks 0 to 2; 6 to 11 are blocks 1 and 2; block 2.
    assert result.peak_blocks == (3, 3, 3, 1)
    assert result.used_blocks == (3 + 3 + 3 + 1, 3 + 2 + 1 + 1, 3 + 2 + 1 + 1)


def test_a_pool_that_is_too_small_is_noticed() -> None:
    """Nothing is reserved: 4 + 4 + 4 + 1 blocks of 11 in the first step, 5 + 3 + 1 + 1 in the second."""

    class Careless(Simulation):
        def _reservation(self, request: Request) -> int:
            return 0

        def _transient(self) -> int:
            return 0

    pool = Careless(other_groups(), 12, max_num_batched_tokens=16)
    result = pool.run([Request(arrival_step=0, prompt_tokens=16, output_tokens=1)])
    assert result.used_blocks == (13, 10)
    assert result.num_shortfalls == 1


def test_a_seed_gives_the_same_requests() -> None:
    first, second, other = (
        poisson_requests(20, steps_between=5, prompt_tokens=(1, 2, 3), output_tokens=(4, 5), seed=seed)
        for seed in (7, 7, 8)
    )
    assert first == second != other
    steps = [request.arrival_step for request in first]
    assert steps == sorted(steps)


def test_faults_are_named() -> None:
    groups = slab_of(after("flashinfer")).groups
    with pytest.raises(InputError, match="num_blocks: got 1"):
        Simulation(groups, 1, max_num_batched_tokens=1)
    with pytest.raises(InputError, match="admission: got 'all', need block_sum or steady"):
        Simulation(groups, 100, max_num_batched_tokens=1, admission="all")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="prompt_tokens: got 0"):
        Request(arrival_step=0, prompt_tokens=0, output_tokens=1)
    huge = Request(arrival_step=0, prompt_tokens=10**7, output_tokens=1)
    with pytest.raises(InputError, match=r"request: got '39,\d+ blocks', need at most"):
        Simulation(groups, 5000, max_num_batched_tokens=64).run([huge])
    with pytest.raises(InputError, match="max_steps: got 3"):
        Simulation(groups, 5000, max_num_batched_tokens=64).run(
            [Request(arrival_step=0, prompt_tokens=1000, output_tokens=1)], max_steps=3
        )
