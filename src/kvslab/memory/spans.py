"""Spans: which bytes belong to some pages, and no others.

Three numbers of a page are easily taken for one another, and each confusion has
been a public bug: how many bytes its rows use (`payload_bytes`), where they start
(`offset`), and how far it is to the next one (`stride`).  A span keeps them apart::

    byte ranges = [offset + i * stride, offset + i * stride + payload_bytes)   for i < count

Source: vLLM PR 50276 (zeroing by the stride clears a neighbour's pages), PR 50208
(region length / num_blocks taken for a page).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from kvslab.errors import InputError
from kvslab.layers import CacheLayer
from kvslab.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class PageAddress:
    """Where one layer's page of any block lies in the allocation.

    Args:
        layer: The layer.
        group_id: Its group.
        offset: First byte of the page in block 0.
        block_stride: Bytes from one block's page to the next block's.
        page_bytes: Bytes that the page takes.
    """

    layer: CacheLayer
    group_id: int
    offset: int
    block_stride: int
    page_bytes: int

    @property
    def payload_bytes(self) -> int:
        """Bytes of the page that rows use."""
        return self.layer.spec.payload_bytes

    def address(self, block_id: int) -> int:
        """First byte of the page in one block, from the start of the allocation."""
        return self.offset + block_id * self.block_stride


def page_addresses(plan: Plan) -> Mapping[str, PageAddress]:
    """The address of every layer's page, by layer name; one pass over the plan.

    >>> from kvslab.generations import generation_named
    >>> from kvslab.models import load_layers
    >>> slab = generation_named("standard").lay_out(load_layers("deepseek-v4-pro"))
    >>> plan = Plan(slab=slab, budget_bytes=28_410_134_921)
    >>> page_addresses(plan)["model.layers.2.attn.indexer.k_cache"].address(23_119) > 2**34
    True
    """
    pages = {page.layer.name: page for page in plan.slab.pages}
    return {
        name: PageAddress(
            layer=pages[name].layer,
            group_id=tensor.group_id,
            offset=tensor.address(i, 0),
            block_stride=tensor.block_stride,
            page_bytes=pages[name].page_bytes,
        )
        for tensor in plan.tensors
        for i, name in enumerate(tensor.layers)
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Equal byte ranges at a constant distance.

    Args:
        offset: First byte of the first range, from the start of the allocation.
        payload_bytes: Length of each range.
        stride: Bytes from the start of one range to the next one's; the payload
            where there is one range.
        count: Ranges.
    """

    offset: int
    payload_bytes: int
    stride: int
    count: int

    @property
    def total_bytes(self) -> int:
        """Bytes of all ranges."""
        return self.count * self.payload_bytes

    @property
    def end(self) -> int:
        """First byte after the last range."""
        return self.offset + (self.count - 1) * self.stride + self.payload_bytes

    @property
    def ranges(self) -> Iterator[tuple[int, int]]:
        """`(start, end)` of every range."""
        for i in range(self.count):
            start = self.offset + i * self.stride
            yield start, start + self.payload_bytes


def merge_ranges(ranges: Iterable[tuple[int, int]]) -> tuple[Span, ...]:
    """Cover byte ranges exactly, with few spans.

    Ranges that touch become one; equal ranges at a constant distance become one
    span.  No byte is added: the gaps may belong to someone else.

    Args:
        ranges: `(start, end)`, not empty, in any order.

    Raises:
        InputError: Two ranges share a byte.

    >>> merge_ranges([(0, 10), (10, 20), (40, 60)])
    (Span(offset=0, payload_bytes=20, stride=40, count=2),)
    """
    joined: list[list[int]] = []
    for start, end in sorted(ranges):
        if joined and start < joined[-1][1]:
            raise InputError(
                "ranges", (start, end), f"a start of at least {joined[-1][1]:,}, the end before it"
            )
        if joined and start == joined[-1][1]:
            joined[-1][1] = end
        else:
            joined.append([start, end])
    spans: list[Span] = []
    for start, end in joined:
        size = end - start
        last = spans[-1] if spans else None
        if last is not None and last.payload_bytes == size:
            step = start - (last.offset + (last.count - 1) * last.stride)
            if last.count == 1 or step == last.stride:
                spans[-1] = Span(offset=last.offset, payload_bytes=size, stride=step, count=last.count + 1)
                continue
        spans.append(Span(offset=start, payload_bytes=size, stride=size, count=1))
    return tuple(spans)


def page_spans(pages: Sequence[PageAddress], block_ids: Sequence[int]) -> tuple[Span, ...]:
    """The payload bytes of some layers' pages in some blocks, as spans.

    Raises:
        InputError: A layer or a block stands there twice.
    """
    return merge_ranges(
        (start, start + page.payload_bytes) for page in pages for start in map(page.address, block_ids)
    )
