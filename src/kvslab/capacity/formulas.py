"""How many requests a pool serves: blocks per request, prices, concurrency, longest request.

With length `L` tokens, `X` tokens in flight and block size `b`, one request needs from
a group, at most at one time:

* full history: `ceil(L / b)`, of `ceil(L / dcp)` tokens where context parallelism shards it
* sliding window of `w` tokens: `ceil(min(w - 1 + X, L) / b) + 1`
* local chunk of `c` tokens: `ceil(min(c + X, L) / b)`
* recurrent state: 1, and one for each speculative token

A window's extra block is there because a window need not start at a block's first
token.  *In flight* means scheduled but not settled: `max_num_batched_tokens`, twice
that with async scheduling.

Source: behaviour of vLLM 0.22.1 to 0.32.0 on the stacks in
`tests/data/planner_vectors.json.xz`; `legacy` and `block_sum` are what vLLM logs before
and since PR 48317; `steady` is this project's.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from kvslab.errors import InputError
from kvslab.generations import Formula, Price
from kvslab.groups import CacheGroup
from kvslab.intmath import MAX_INT, cdiv, checked_int
from kvslab.layers import FullHistory, LocalChunk, RecurrentState, SlidingWindow

FORMULAS: tuple[Formula, ...] = ("legacy", "block_sum", "steady")
"""The concurrency formulas, see `max_concurrency`."""
PRICES: tuple[Price, ...] = ("tuple", "stride")
"""The admission prices of a block, see `block_price_bytes`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What requests look like.

    Args:
        lengths: `(tokens, weight)` of each request length; weights are relative.
        max_in_flight_tokens: Tokens scheduled but not settled, of the whole batch.
        dcp: Decode context parallel size: shards of a full history.
        num_speculative_tokens: Extra states of a recurrent layer.

    Raises:
        InputError: A number is out of range, or there is no length.

    Source: tokens in flight as vLLM counts them, `max_num_batched_tokens`, twice that with
    async scheduling.

    >>> Load.of(1_048_576, max_in_flight_tokens=8192).longest
    1048576
    """

    lengths: tuple[tuple[int, int], ...]
    max_in_flight_tokens: int
    dcp: int = 1
    num_speculative_tokens: int = 0

    def __post_init__(self) -> None:
        if not self.lengths:
            raise InputError("lengths", self.lengths, "at least one request length")
        for tokens, weight in self.lengths:
            checked_int("max_model_len", tokens)
            checked_int("weight", weight)
        checked_int("max_in_flight_tokens", self.max_in_flight_tokens)
        checked_int("dcp", self.dcp)
        checked_int("num_speculative_tokens", self.num_speculative_tokens, minimum=0)

    @staticmethod
    def of(
        lengths: int | Iterable[int],
        *,
        max_in_flight_tokens: int,
        dcp: int = 1,
        num_speculative_tokens: int = 0,
    ) -> "Load":
        """A load of one length, or of a list of lengths in which each counts once."""
        listed = (lengths,) if isinstance(lengths, int) else tuple(lengths)
        histogram: dict[int, int] = {}
        for tokens in listed:
            histogram[tokens] = histogram.get(tokens, 0) + 1
        return Load(
            lengths=tuple(histogram.items()),
            max_in_flight_tokens=max_in_flight_tokens,
            dcp=dcp,
            num_speculative_tokens=num_speculative_tokens,
        )

    @property
    def longest(self) -> int:
        """Tokens of the longest request."""
        return max(tokens for tokens, _ in self.lengths)

    def at(self, tokens: int) -> "Load":
        """The same load with every request this long."""
        return Load(
            lengths=((tokens, 1),),
            max_in_flight_tokens=self.max_in_flight_tokens,
            dcp=self.dcp,
            num_speculative_tokens=self.num_speculative_tokens,
        )

    def mean(self, count: Callable[[int], int]) -> Fraction:
        """The weighted mean of a count over the lengths."""
        total = sum(weight for _, weight in self.lengths)
        return Fraction(sum(weight * count(tokens) for tokens, weight in self.lengths), total)


def peak_blocks(group: CacheGroup, tokens: int, load: Load) -> int:
    """Blocks of a group that one request of this length can hold at once, as the engine counts."""
    in_flight = load.max_in_flight_tokens
    match group.retention:
        case FullHistory():
            return cdiv(cdiv(tokens, load.dcp), group.block_size)
        case SlidingWindow(window_tokens=window):
            return cdiv(min(window - 1 + in_flight, tokens), group.block_size) + 1
        case LocalChunk(chunk_tokens=chunk):
            return cdiv(min(chunk + in_flight, tokens), group.block_size)
        case RecurrentState():
            return 1 + load.num_speculative_tokens


def held_blocks(group: CacheGroup, tokens: int, load: Load) -> int:
    """Blocks of a group that one request of this length holds between steps, at most."""
    match group.retention:
        case SlidingWindow(window_tokens=window):
            return min(cdiv(tokens, group.block_size), cdiv(window - 1, group.block_size) + 1)
        case LocalChunk(chunk_tokens=chunk):
            return min(cdiv(tokens, group.block_size), cdiv(chunk, group.block_size))
        case _:
            return peak_blocks(group, tokens, load)


def transient_blocks(group: CacheGroup, load: Load) -> int:
    """Blocks of a group that one batch in flight needs beside what requests hold."""
    if isinstance(group.retention, SlidingWindow | LocalChunk):
        return cdiv(load.max_in_flight_tokens, group.block_size)
    return 0


def blocks_per_request(groups: Sequence[CacheGroup], load: Load) -> tuple[int, ...]:
    """`peak_blocks` of the longest request, per group."""
    return tuple(peak_blocks(group, load.longest, load) for group in groups)


Owners = Sequence[Sequence[int]]
"""Group ids that own blocks together, as `SlabLayout.owners` lists them. Groups of a lockstep set share
their block ids, so the set takes as many blocks as its most demanding group."""


def sum_over_owners(blocks: Sequence[int], owners: Owners | None) -> int:
    """Blocks of the pool for these blocks per group; without `owners` every group owns its own.

    >>> sum_over_owners((5, 3, 4), None), sum_over_owners((5, 3, 4), ((0,), (1, 2)))
    (12, 9)
    """
    return sum(blocks) if owners is None else sum(max(blocks[i] for i in owner) for owner in owners)


def mean_blocks(
    groups: Sequence[CacheGroup],
    load: Load,
    count: Callable[[CacheGroup, int, Load], int],
    owners: Owners | None = None,
) -> Fraction:
    """Blocks per request over all groups, averaged over the load's lengths."""
    return load.mean(lambda tokens: sum_over_owners([count(g, tokens, load) for g in groups], owners))


def max_concurrency(
    groups: Sequence[CacheGroup],
    num_blocks: int,
    load: Load,
    formula: Formula,
    *,
    owners: Owners | None = None,
) -> Fraction:
    """Requests that a pool serves at once, by one of three formulas.

    * `legacy`: `num_blocks / ceil(sum(blocks * group bytes) / bytes of the first group)`
    * `block_sum`: `num_blocks / sum(blocks)`
    * `steady`: `(num_blocks - 1 - transient blocks) / sum(held blocks)`: one block is
      never handed out, and tokens in flight belong to the batch, not to each request

    Args:
        groups: The cache groups.
        num_blocks: Blocks of the pool, the null block included.
        load: The requests.
        formula: Which formula.
        owners: Who shares block ids; `legacy` knows no such thing.

    Returns:
        Requests, an exact fraction.

    Raises:
        InputError: There is no such formula.

    Source: what vLLM logs before PR 48317 (`legacy`) and since (`block_sum`).

    >>> from kvslab.generations import generation_named
    >>> from kvslab.models import load_layers
    >>> groups = generation_named("overlay").lay_out(load_layers("deepseek-v4-pro")).groups
    >>> load = Load.of(1_048_576, max_in_flight_tokens=8192)
    >>> max_concurrency(groups, 23_120, load, "block_sum")
    Fraction(2312, 745)
    """
    match formula:
        case "legacy":
            charged = _charged_bytes(groups)

            def whole(tokens: int) -> int:
                return cdiv(
                    sum(peak_blocks(g, tokens, load) * size for g, size in zip(groups, charged, strict=True)),
                    charged[0],
                )

            return num_blocks / load.mean(whole)
        case "block_sum":
            return num_blocks / mean_blocks(groups, load, peak_blocks, owners)
        case "steady":
            free = num_blocks - 1 - sum_over_owners([transient_blocks(g, load) for g in groups], owners)
            return max(Fraction(0), free / mean_blocks(groups, load, held_blocks, owners))
        case _:
            raise InputError("formula", formula, f"one of {', '.join(FORMULAS)}")


def _charged_bytes(groups: Sequence[CacheGroup]) -> list[int]:
    """What `legacy` charges for a block of each group: where all pages are of one size, the same for all."""
    if len({page for group in groups for page in group.page_bytes}) == 1:
        return [1 for _ in groups]
    return [group.group_bytes for group in groups]


def block_price_bytes(groups: Sequence[CacheGroup], block_stride: int, price: Price) -> int:
    """Bytes that admission charges for one block.

    * `tuple` (vLLM up to 0.28): layer tuples of the deepest group times the sum of the
      first group's distinct page sizes
    * `stride` (later): the block stride

    Raises:
        InputError: There is no such price.
    """
    match price:
        case "tuple":
            return max(group.num_tuples for group in groups) * sum(set(groups[0].page_bytes))
        case "stride":
            return block_stride
        case _:
            raise InputError("price", price, f"one of {', '.join(PRICES)}")


def admission_bytes(
    groups: Sequence[CacheGroup],
    block_stride: int,
    load: Load,
    price: Price,
    *,
    owners: Owners | None = None,
) -> int:
    """Bytes that the engine wants free before it serves one request of the longest length."""
    blocks = sum_over_owners(blocks_per_request(groups, load), owners)
    return block_price_bytes(groups, block_stride, price) * blocks


def auto_fit_max_model_len(
    groups: Sequence[CacheGroup],
    block_stride: int,
    budget_bytes: int,
    load: Load,
    price: Price,
    *,
    keep_null_block: bool,
    owners: Owners | None = None,
) -> int:
    """The largest length, up to the load's longest, whose price fits the budget; 0 if none does.

    Args:
        groups: The cache groups.
        block_stride: Bytes of one block.
        budget_bytes: Bytes of the pool.
        load: The requests; only the longest length and the tokens in flight matter.
        price: What one block costs.
        keep_null_block: Whether the null block is paid for too. The engine does not.
        owners: Who shares block ids.
    """
    one_block = block_price_bytes(groups, block_stride, price)
    null_blocks = 1 if keep_null_block else 0

    def fits(tokens: int) -> bool:
        blocks = sum_over_owners([peak_blocks(group, tokens, load) for group in groups], owners)
        return (blocks + null_blocks) * one_block <= budget_bytes

    low, high = 0, min(load.longest, MAX_INT)
    while low < high:
        middle = (low + high + 1) // 2
        if fits(middle):
            low = middle
        else:
            high = middle - 1
    return low
