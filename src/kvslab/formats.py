"""Row formats as data: what one cache layer stores for one state, byte by byte.

A row is a list of named parts; its length is their sum.  A backend is the
attention kernel that reads the latent rows: it fixes their format and the
alignment of every page.

Source: vLLM PR 48993 (indexer rows), the DeepSeek-V4 attention layer of vLLM
0.22 to 0.32 (latent and state rows), vLLM's `kv_cache_interface` (rows of keys and
values in each KV dtype).
"""

from collections.abc import Mapping
from dataclasses import dataclass

from kvslab.errors import InputError
from kvslab.intmath import cdiv, round_up

MXFP4_MICROBLOCK = 32
"""Elements that share one UE8M0 scale byte (OCP Microscaling Formats 1.0)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFormat:
    """The bytes of one row, in storage order.

    Args:
        name: The format's name.
        parts: `(what, bytes)` pairs.

    >>> indexer_row("mxfp4", 128).row_bytes
    68
    """

    name: str
    parts: tuple[tuple[str, int], ...]

    @property
    def row_bytes(self) -> int:
        """Bytes of one row, the sum of its parts."""
        return sum(size for _, size in self.parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """An attention backend: how it stores a latent row, and how it aligns pages.

    Args:
        name: The name on the command line.
        page_alignment_bytes: Every page is rounded up to a multiple of this.
        latent: `fp8`, `bf16` or `fp8_ds_mla` (FP8 with BF16 RoPE and scales).
        title: The name in tables and figures.
    """

    name: str
    page_alignment_bytes: int
    latent: str
    title: str


BACKENDS: Mapping[str, Backend] = {
    backend.name: backend
    for backend in (
        Backend(name="flashinfer", page_alignment_bytes=512, latent="fp8", title="FlashInfer"),
        Backend(name="flashinfer-bf16", page_alignment_bytes=512, latent="bf16", title="FlashInfer BF16"),
        Backend(name="flashmla", page_alignment_bytes=576, latent="fp8_ds_mla", title="FlashMLA"),
    )
}

INDEXER_FORMATS = ("fp8", "mxfp4")

KV_DTYPES = ("auto", "bf16", "fp8", "fp8_per_token_head", "nvfp4")
"""What keys and values are stored as; `auto` is the model's own 16-bit type."""

NVFP4_MICROBLOCK = 16
"""Elements that share one E4M3 scale byte in an NVFP4 row."""


def backend_named(name: str) -> Backend:
    """Look up a backend.

    Raises:
        InputError: There is none of that name.

    >>> backend_named("flashmla").page_alignment_bytes
    576
    """
    if name not in BACKENDS:
        raise InputError("backend", name, f"one of {', '.join(BACKENDS)}")
    return BACKENDS[name]


def latent_row(latent: str, head_dim: int, rope_dim: int) -> RowFormat:
    """The row of a latent (MLA) layer, or of a sliding-window layer beside it.

    Args:
        latent: `fp8`, `bf16` or `fp8_ds_mla`, see `Backend.latent`.
        head_dim: Elements of the latent vector, RoPE part included.
        rope_dim: Elements of the RoPE part.

    Source: `fp8_ds_mla` is 448 FP8 values, 64 BF16 RoPE values and seven UE8M0
    scales (one per 64 values) padded to eight bytes: 584 bytes for DeepSeek-V4.

    >>> latent_row("fp8_ds_mla", 512, 64).row_bytes
    584
    """
    match latent:
        case "fp8":
            return RowFormat(name="latent-fp8", parts=(("FP8 values", head_dim),))
        case "bf16":
            return RowFormat(name="latent-bf16", parts=(("BF16 values", 2 * head_dim),))
        case "fp8_ds_mla":
            values = head_dim - rope_dim
            scales = round_up(cdiv(values, 64), 8)
            parts = (("FP8 values", values), ("BF16 RoPE", 2 * rope_dim), ("scales", scales))
            return RowFormat(name="latent-fp8-ds-mla", parts=parts)
        case _:
            raise InputError("latent", latent, "one of fp8, bf16, fp8_ds_mla")


def attention_row(kv_cache_dtype: str, num_kv_heads: int, head_dim: int) -> RowFormat:
    """The row of an attention layer: keys and values of every head that this worker holds.

    * `auto`, `bf16`: two bytes an element
    * `fp8`: one byte, scales are per tensor and live outside the cache
    * `fp8_per_token_head`: one byte, and one FP32 scale a head for K and for V
    * `nvfp4`: half a byte, and one E4M3 scale byte per 16 elements

    Args:
        kv_cache_dtype: One of `KV_DTYPES`.
        num_kv_heads: KV heads of this worker.
        head_dim: Elements of one head.

    Raises:
        InputError: Another dtype, or a head that is no whole number of microblocks.

    Source: vLLM's `AttentionSpec.page_size_bytes` and `nvfp4_kv_cache_full_dim`.

    >>> [attention_row(dtype, 8, 128).row_bytes for dtype in KV_DTYPES]
    [4096, 4096, 2048, 2112, 1152]
    """
    values = num_kv_heads * head_dim
    parts: tuple[tuple[str, int], ...]
    match kv_cache_dtype:
        case "auto" | "bf16":
            parts = (("BF16 keys", 2 * values), ("BF16 values", 2 * values))
        case "fp8":
            parts = (("FP8 keys", values), ("FP8 values", values))
        case "fp8_per_token_head":
            parts = (("FP8 keys", values), ("FP8 values", values), ("FP32 scales", 2 * 4 * num_kv_heads))
        case "nvfp4":
            if head_dim % NVFP4_MICROBLOCK:
                raise InputError("head_dim", head_dim, f"a multiple of {NVFP4_MICROBLOCK} for NVFP4")
            scales = values // NVFP4_MICROBLOCK
            parts = (("E2M1 keys", values // 2), ("E2M1 values", values // 2), ("E4M3 scales", 2 * scales))
        case _:
            raise InputError("kv_cache_dtype", kv_cache_dtype, f"one of {', '.join(KV_DTYPES)}")
    return RowFormat(name=f"attention-{kv_cache_dtype}", parts=parts)


def mla_row(kv_cache_dtype: str, kv_lora_rank: int, rope_dim: int, *, sparse: bool) -> RowFormat:
    """The row of an MLA layer of DeepSeek-V3's kind: one latent vector with its RoPE part.

    Sparse attention stores `fp8` as 512 FP8 values with an FP32 scale per 128 of
    them, and keeps the RoPE part in BF16.

    Args:
        kv_cache_dtype: `auto`, `bf16` or `fp8`.
        kv_lora_rank: Elements of the latent vector.
        rope_dim: Elements of the RoPE part.
        sparse: Whether an indexer picks the tokens that are read.

    Raises:
        InputError: Another dtype.

    Source: vLLM's `MLAAttentionSpec`; `fp8_ds_mla` is 512 + 16 + 128 = 656 bytes.

    >>> mla_row("auto", 512, 64, sparse=False).row_bytes, mla_row("fp8", 512, 64, sparse=True).row_bytes
    (1152, 656)
    """
    parts: tuple[tuple[str, int], ...]
    match kv_cache_dtype:
        case "auto" | "bf16":
            parts = (("BF16 values", 2 * kv_lora_rank), ("BF16 RoPE", 2 * rope_dim))
        case "fp8" if sparse:
            parts = (
                ("FP8 values", kv_lora_rank),
                ("FP32 scales", 4 * cdiv(kv_lora_rank, 128)),
                ("BF16 RoPE", 2 * rope_dim),
            )
        case "fp8":
            parts = (("FP8 values", kv_lora_rank), ("FP8 RoPE", rope_dim))
        case _:
            raise InputError("kv_cache_dtype", kv_cache_dtype, "one of auto, bf16, fp8 for MLA layers")
    return RowFormat(name=f"mla-{kv_cache_dtype}", parts=parts)


def indexer_row(indexer: str, index_head_dim: int) -> RowFormat:
    """The row of the indexer's key cache: packed values, then their scales.

    Args:
        indexer: `fp8` (one FP32 scale a row) or `mxfp4` (one UE8M0 byte per 32 values).
        index_head_dim: Elements of one key.

    Raises:
        InputError: Another format, or a head size that is no whole number of microblocks.

    Source: vLLM PR 48993: 128 + 4 = 132 bytes, and 128 / 2 + 128 / 32 = 68 bytes.
    """
    match indexer:
        case "fp8":
            return RowFormat(name="indexer-fp8", parts=(("FP8 values", index_head_dim), ("FP32 scale", 4)))
        case "mxfp4":
            if index_head_dim % MXFP4_MICROBLOCK:
                raise InputError(
                    "index_head_dim", index_head_dim, f"a multiple of {MXFP4_MICROBLOCK} for MXFP4"
                )
            values, scales = index_head_dim // 2, index_head_dim // MXFP4_MICROBLOCK
            return RowFormat(name="indexer-mxfp4", parts=(("E2M1 values", values), ("UE8M0 scales", scales)))
        case _:
            raise InputError("indexer", indexer, f"one of {', '.join(INDEXER_FORMATS)}")


def state_row(num_elements: int) -> RowFormat:
    """The row of a compressor state: FP32 values and gates not yet compressed."""
    return RowFormat(name="state-fp32", parts=(("FP32 state", 4 * num_elements),))
