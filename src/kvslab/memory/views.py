"""The plan as real bytes: one allocation, and a strided view of it for every layer.

Nothing is copied.  A view of layer `l` has the address formula of the plan as its
strides::

    view[b, r, i] = backing[offset(l) + b * block_stride(l) + r * row_bytes + i]

so `view` is `[num_blocks, rows_per_page, row_bytes]` of uint8, whose first stride
has nothing to do with its page: the pages of other layers lie between.

A page stores its rows in one of two ways.  *Interleaved*: each row holds its parts
one after the other (latent rows, states).  *Planar*: a page holds one part of all
rows, then the next part of all rows (indexer pages: R x 64 value bytes, then R x 4
scale bytes).  Both give strided views of their parts.

Needs torch; any device works, `meta` included, and so does a sparse file.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path

import torch

from kvslab.errors import InputError, LayoutError
from kvslab.formats import RowFormat
from kvslab.memory.spans import PageAddress, Span, page_addresses
from kvslab.plan import Plan

PLANAR_FORMATS = ("indexer-fp8", "indexer-mxfp4")
"""Row formats whose pages hold all values before all scales."""

PART_DTYPES: Mapping[str, torch.dtype] = {
    "FP8 values": torch.float8_e4m3fn,
    "BF16 values": torch.bfloat16,
    "BF16 RoPE": torch.bfloat16,
    "FP32 scale": torch.float32,
    "FP32 state": torch.float32,
    "E2M1 values": torch.uint8,  # two elements a byte, element 2i in the low nibble
    "UE8M0 scales": torch.uint8,
    "scales": torch.uint8,
}
"""How the parts of `kvslab.formats.RowFormat` are viewed; packed codes stay bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlabMemory:
    """A plan and the one allocation that holds it.

    Args:
        plan: The plan.
        backing: uint8 `[n]`, contiguous, `n >= plan.pool_bytes`; any device.

    Raises:
        InputError: The backing is another tensor.

    >>> from kvslab.generations import generation_named
    >>> from kvslab.models import load_layers
    >>> slab = generation_named("standard").lay_out(load_layers("deepseek-v4-pro"))
    >>> memory = allocate(Plan(slab=slab, budget_bytes=28_410_134_921), device="meta")
    >>> memory.rows("model.layers.2.attn.indexer.k_cache").shape
    torch.Size([23120, 64, 68])
    """

    plan: Plan
    backing: torch.Tensor
    pages: Mapping[str, PageAddress] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        tensor = self.backing
        if tensor.dtype != torch.uint8 or tensor.dim() != 1 or not tensor.is_contiguous():
            got = f"{tensor.dtype} {list(tensor.shape)}"
            raise InputError("backing", got, "a contiguous one-dimensional torch.uint8 tensor")
        if tensor.numel() < self.plan.pool_bytes:
            raise InputError(
                "backing", tensor.numel(), f"at least the {self.plan.pool_bytes:,} bytes of the plan"
            )
        object.__setattr__(self, "pages", page_addresses(self.plan))

    def page(self, name: str) -> PageAddress:
        """The address of one layer's pages.

        Raises:
            InputError: The plan has no such layer.
        """
        if name not in self.pages:
            raise InputError("layer", name, "the name of a layer of the plan")
        return self.pages[name]

    def _strided(self, offset: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> torch.Tensor:
        return self.backing.as_strided(shape, strides, self.backing.storage_offset() + offset)

    def rows(self, name: str) -> torch.Tensor:
        """One layer's rows: uint8 `[num_blocks, rows_per_page, row_bytes]`."""
        page = self.page(name)
        spec = page.layer.spec
        return self._strided(
            page.offset,
            (self.plan.num_blocks, spec.rows_per_page, spec.row_bytes),
            (page.block_stride, spec.row_bytes, 1),
        )

    def raw_pages(self, name: str) -> torch.Tensor:
        """One layer's pages with their padding: uint8 `[num_blocks, page_bytes]`."""
        page = self.page(name)
        return self._strided(page.offset, (self.plan.num_blocks, page.page_bytes), (page.block_stride, 1))

    def all_rows(self) -> dict[str, torch.Tensor]:
        """`rows` of every layer, by name."""
        return {name: self.rows(name) for name in self.pages}

    def typed(self, name: str, dtype: torch.dtype) -> torch.Tensor:
        """One layer's rows as one dtype: `[num_blocks, rows_per_page, row_bytes / itemsize]`.

        Raises:
            LayoutError: An address or a row is no multiple of the dtype's size.
        """
        page = self.page(name)
        return self._part(page, 0, page.layer.spec.row_bytes, page.layer.spec.row_bytes, dtype)

    def parts(self, name: str, row_format: RowFormat) -> dict[str, torch.Tensor]:
        """One layer's rows, part by part: `{part: [num_blocks, rows_per_page, elements]}`.

        Args:
            name: The layer.
            row_format: Its row; pages of `PLANAR_FORMATS` are planar.

        Raises:
            InputError: The row format has another length, or a part of no known dtype.
            LayoutError: A part is not aligned to its dtype.
        """
        page = self.page(name)
        spec = page.layer.spec
        if row_format.row_bytes != spec.row_bytes:
            need = f"a row of {spec.row_bytes:,} bytes for layer {name!r}"
            raise InputError("row_format", f"{row_format.name}, {row_format.row_bytes:,} bytes", need)
        planar = row_format.name in PLANAR_FORMATS
        starts = accumulate((size for _, size in row_format.parts), initial=0)
        found = {}
        for (what, size), start in zip(row_format.parts, starts, strict=False):
            if what not in PART_DTYPES:
                raise InputError("row_format", what, f"one of {', '.join(PART_DTYPES)}")
            first, step = (start * spec.rows_per_page, size) if planar else (start, spec.row_bytes)
            found[what] = self._part(page, first, size, step, PART_DTYPES[what])
        return found

    def _part(
        self, page: PageAddress, start: int, part_bytes: int, row_stride: int, dtype: torch.dtype
    ) -> torch.Tensor:
        size = dtype.itemsize
        numbers = {
            "offset": page.offset + start,
            "block stride": page.block_stride,
            "row stride": row_stride,
            "row part": part_bytes,
        }
        for what, number in numbers.items():
            if number % size:
                raise LayoutError(
                    f"layer {page.layer.name!r} as {dtype}: got {what} {number:,} bytes,"
                    f" need a multiple of {size}"
                )
        view = self._strided(
            page.offset + start,
            (self.plan.num_blocks, page.layer.spec.rows_per_page, part_bytes),
            (page.block_stride, row_stride, 1),
        )
        return view.view(dtype)

    def span(self, span: Span) -> torch.Tensor:
        """The bytes of a span: uint8 `[count, payload_bytes]`."""
        return self._strided(span.offset, (span.count, span.payload_bytes), (span.stride, 1))

    def zero(self, spans: Iterable[Span]) -> None:
        """Set the bytes of some spans to zero, and no others."""
        for span in spans:
            self.span(span).zero_()

    @property
    def allocated_bytes(self) -> int:
        """Bytes that the allocation takes, however many views there are."""
        return storage_bytes((self.backing,))


def allocate(plan: Plan, device: str | torch.device = "cpu") -> SlabMemory:
    """Allocate a plan, uninitialised; device `meta` allocates nothing."""
    return SlabMemory(plan=plan, backing=torch.empty(plan.pool_bytes, dtype=torch.uint8, device=device))


def map_file(plan: Plan, path: Path) -> SlabMemory:
    """Map a plan onto a file that is as large and, where the file system can, sparse.

    Only pages that are written take memory or disk, so a 26 GiB plan can be checked
    on a small machine.  Bytes that nobody wrote are zero.

    Raises:
        InputError: The file cannot be made or mapped.
    """
    try:
        with path.open("wb") as stream:
            stream.truncate(plan.pool_bytes)
        backing = torch.from_file(str(path), shared=True, size=plan.pool_bytes, dtype=torch.uint8)
    except (OSError, RuntimeError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "no mapping"
        raise InputError(str(path), reason, f"a file that holds {plan.pool_bytes:,} bytes") from None
    return SlabMemory(plan=plan, backing=backing)


def storage_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Bytes behind some tensors, each allocation counted once.

    The sum of the views' own sizes means nothing: overlaid layers count twice, and
    padding not at all.
    """
    storages = {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in tensors}
    return sum(storages.values())
