"""Arguments are checked here, before any byte is touched.

Every error names the argument, says what it was and what is needed.  Shapes, dtypes,
strides and devices are always checked: they cost nothing.  Values (slots, block ids,
lengths) are checked in *checked* mode only, because on a GPU that waits for the device.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from kvslab.errors import InputError
from kvslab.intmath import checked_int
from kvslab.mxfp4.contract import HEAD_DIM, SKIP_SLOT, PageGeometry

FLOATS = (torch.float32, torch.bfloat16, torch.float16)
INDICES = (torch.int32, torch.int64)
OUTPUTS = (torch.float32, torch.bfloat16)


class _Shown:
    """Text that an `InputError` prints without quotes."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _shape(sizes: Sequence[int | str]) -> str:
    return "[" + ", ".join(str(size) for size in sizes) + "]"


def described(value: object) -> object:
    """A tensor as `float32[4, 128] on cpu`; anything else as it is."""
    if isinstance(value, torch.Tensor):
        return _Shown(f"{_name(value.dtype)}{_shape(value.shape)} on {value.device}")
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class PagedView:
    """The pages of one layer inside a slab, checked.

    Attributes:
        data: uint8 `[num_blocks, page_bytes]`, bytes of a page adjacent.
        page: Where rows lie in a page.
    """

    data: torch.Tensor
    page: PageGeometry

    @property
    def num_blocks(self) -> int:
        """Pages in the view."""
        return int(self.data.shape[0])

    @property
    def block_stride(self) -> int:
        """Bytes from one page to the next."""
        return int(self.data.stride(0))

    @property
    def num_slots(self) -> int:
        """Rows in the view."""
        return self.num_blocks * self.page.rows_per_page


def tensor(
    field: str,
    value: object,
    sizes: Sequence[int | str],
    dtypes: Sequence[torch.dtype],
    *,
    device: torch.device | None = None,
) -> torch.Tensor:
    """A tensor of given sizes (a name stands for any size), dtype and device.

    Raises:
        InputError: It is something else.
    """
    need = f"{' or '.join(_name(d) for d in dtypes)}{_shape(sizes)}"
    if device is not None:
        need += f" on {device}"
    if (
        not isinstance(value, torch.Tensor)
        or value.layout != torch.strided
        or value.dtype not in dtypes
        or value.dim() != len(sizes)
        or any(isinstance(n, int) and n != size for n, size in zip(sizes, value.shape, strict=True))
        or (device is not None and value.device != device)
    ):
        raise InputError(field, described(value), need)
    return value


def output(
    field: str,
    value: object,
    sizes: Sequence[int],
    dtypes: Sequence[torch.dtype],
    device: torch.device,
) -> torch.Tensor:
    """A tensor to write into: as `tensor`, last dimension adjacent, no element stored twice.

    Raises:
        InputError: It is something else.
    """
    out = tensor(field, value, sizes, dtypes, device=device)
    strides = _Shown(f"strides {tuple(out.stride())}")
    if out.numel() and out.shape[-1] > 1 and out.stride(-1) != 1:
        raise InputError(field, strides, "a last dimension of stride 1")
    if any(size > 1 and stride == 0 for size, stride in zip(out.shape, out.stride(), strict=True)):
        raise InputError(field, strides, "a tensor that stores each element once")
    return out


def rows(field: str, value: object) -> torch.Tensor:
    """Floating-point rows `[N, 128]`."""
    return tensor(field, value, ("N", HEAD_DIM), FLOATS)


def output_dtype(value: object) -> torch.dtype:
    """A dtype that holds every E2M1 value times every scale exactly.

    Raises:
        InputError: It is another one.
    """
    if not isinstance(value, torch.dtype) or value not in OUTPUTS:
        raise InputError("dtype", value, "torch.float32 or torch.bfloat16")
    return value


def paged_view(
    value: object, rows_per_page: object, *, value_bytes: int, scale_bytes: int, field: str = "cache_view"
) -> PagedView:
    """The view of one layer's pages.

    Raises:
        InputError: It is no uint8 `[num_blocks, page_bytes]` with adjacent page bytes, its
            pages do not hold `rows_per_page` rows, or they overlap.
    """
    page = PageGeometry(
        rows_per_page=checked_int("rows_per_page", rows_per_page),
        value_bytes=value_bytes,
        scale_bytes=scale_bytes,
    )
    data = tensor(field, value, ("num_blocks", "page_bytes"), (torch.uint8,))
    payload = page.payload_bytes
    if data.shape[1] < payload:
        raise InputError(
            field,
            described(data),
            f"pages of at least {page.rows_per_page:,} rows * {value_bytes + scale_bytes} bytes"
            f" = {payload:,}",
        )
    if data.stride(1) != 1:
        raise InputError(
            field, _Shown(f"strides {tuple(data.stride())}"), "adjacent bytes in a page (stride 1)"
        )
    if data.shape[0] > 1 and data.stride(0) < payload:
        raise InputError(
            field,
            _Shown(f"a block stride of {data.stride(0):,} bytes"),
            f"at least the {payload:,} bytes that rows use",
        )
    return PagedView(data=data, page=page)


def _first_outside(values: torch.Tensor, low: int, high: int) -> tuple[int, int] | None:
    """Flat position and value of the first entry outside `[low, high)`."""
    if values.numel() == 0:
        return None
    smallest, largest = (int(bound) for bound in torch.aminmax(values))
    if low <= smallest and largest < high:
        return None
    position = int(((values < low) | (values >= high)).flatten().nonzero()[0])
    return position, int(values.flatten()[position])


def slots_in_range(slots: torch.Tensor, num_slots: int) -> None:
    """Check that every slot is -1 or names a row.

    Raises:
        InputError: One does not; the first is named.
    """
    found = _first_outside(slots, SKIP_SLOT, num_slots)
    if found is not None:
        raise InputError(f"slots[{found[0]}]", found[1], f"-1 or a slot from 0 to {num_slots - 1:,}")


def last_of_each(slots: torch.Tensor) -> torch.Tensor:
    """The slots with every entry but the last of equal ones replaced by -1: the last row wins.

    >>> last_of_each(torch.tensor([5, 3, 5])).tolist()
    [-1, 3, 5]
    """
    ordered, origin = torch.sort(slots, stable=True)
    repeated = ordered[:-1] == ordered[1:]
    if not bool(repeated.any()):
        return slots
    kept = slots.clone()
    kept[origin[:-1][repeated]] = SKIP_SLOT
    return kept


def tables_in_range(view: PagedView, block_table: torch.Tensor, lengths: torch.Tensor, field: str) -> int:
    """Check lengths and the block ids that they reach; return the longest length.

    Raises:
        InputError: A length is negative or longer than its row of the table, or a block id
            within it names no block.
    """
    rows_per_page = view.page.rows_per_page
    capacity = int(block_table.shape[1]) * rows_per_page
    found = _first_outside(lengths, 0, capacity + 1)
    if found is not None:
        raise InputError(
            f"{field}[{found[0]}]",
            found[1],
            f"0 to {capacity:,}, the rows of {block_table.shape[1]:,} blocks of {rows_per_page:,}",
        )
    if lengths.numel() == 0:
        return 0
    reached = torch.arange(block_table.shape[1], device=block_table.device) * rows_per_page
    used = reached[None, :] < lengths[:, None]
    found = _first_outside(torch.where(used, block_table, 0), 0, max(view.num_blocks, 1))
    if found is None and view.num_blocks == 0 and bool(used.any()):
        found = (int(used.flatten().nonzero()[0]), int(block_table[used][0]))
    if found is not None:
        request, column = divmod(found[0], int(block_table.shape[1]))
        raise InputError(
            f"block_table[{request}, {column}]", found[1], f"a block id from 0 to {view.num_blocks - 1:,}"
        )
    return int(lengths.max())
