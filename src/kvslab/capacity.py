"""Blocks one request needs from each group of a slab.

With length `L` tokens, `X` tokens in flight, block size `b`:

* full history: `ceil(L / b)`
* sliding window of `w` tokens: `ceil(min(w - 1 + X, L) / b) + 1`
* local chunk of `c` tokens: `ceil(min(c + X, L) / b)`
* recurrent state: 1

The one extra block of a window is there because a window need not start at a
block's first token.

Source: behaviour of vLLM 0.22.1 to 0.32.0 on the stacks in
`tests/data/planner_vectors.json.gz`.
"""

from kvslab.groups import CacheGroup
from kvslab.intmath import cdiv, checked_int
from kvslab.layers import FullHistory, LocalChunk, RecurrentState, SlidingWindow
from kvslab.slab import SlabLayout


def blocks_per_request(group: CacheGroup, *, max_model_len: int, max_in_flight_tokens: int) -> int:
    """Blocks of a group that one request of full length can hold at once.

    Args:
        group: The cache group.
        max_model_len: Length of the request, tokens.
        max_in_flight_tokens: Tokens scheduled but not settled: the engine's
            `max_num_batched_tokens`, twice that with async scheduling.

    Raises:
        InputError: A number is below 1.
    """
    length = checked_int("max_model_len", max_model_len)
    in_flight = checked_int("max_in_flight_tokens", max_in_flight_tokens)
    match group.retention:
        case FullHistory():
            return cdiv(length, group.block_size)
        case SlidingWindow(window_tokens=window):
            return cdiv(min(window - 1 + in_flight, length), group.block_size) + 1
        case LocalChunk(chunk_tokens=chunk):
            return cdiv(min(chunk + in_flight, length), group.block_size)
        case RecurrentState():
            return 1


def request_blocks(slab: SlabLayout, *, max_model_len: int, max_in_flight_tokens: int) -> tuple[int, ...]:
    """`blocks_per_request` of every group of a slab."""
    return tuple(
        blocks_per_request(group, max_model_len=max_model_len, max_in_flight_tokens=max_in_flight_tokens)
        for group in slab.groups
    )
