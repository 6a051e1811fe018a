"""DeepSeek-V4's cache layers, from its Hugging Face `config.json`.

Every attention layer keeps a sliding window.  A layer with compression ratio
r > 0 also keeps one latent row per r tokens and the compressor's running state;
at r = 4 an indexer adds its own keys and its own state::

    ratio 0     window
    ratio 128   window, latent, latent state
    ratio 4     indexer keys, indexer state, window, latent, latent state

The compressor overlaps two neighbouring spans at ratio 4, so its state covers
2 * 4 tokens and holds twice the elements.

Source: vLLM's DeepSeek-V4 attention layer (0.22 to 0.32), checked layer by layer
against the four releases' own specs (`tests/data/planner_vectors.json.xz`).
"""

from dataclasses import dataclass

from kvslab.errors import MISSING, InputError
from kvslab.files import Fields
from kvslab.formats import Backend, indexer_row, latent_row, state_row
from kvslab.layers import MAX_LAYERS, CacheLayer, LayerSpec, SlidingWindow, checked_stack
from kvslab.models.options import CacheOptions, ModelStack

LATENT_BLOCK_TOKENS = 256
WINDOW_BLOCK_TOKENS = 64
INDEXED_RATIO = 4
RATIOS = (0, INDEXED_RATIO, 128)
MODEL_TYPES = ("deepseek_v4",)
DEFAULT_INDEXER = "mxfp4"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepseekV4Config:
    """The fields of a `config.json` that set the cache, checked.

    Args:
        compress_ratios: One entry per attention layer, MTP layers last.
        num_hidden_layers: Attention layers without MTP.
        num_nextn_predict_layers: MTP layers that the checkpoint holds.
        head_dim: Elements of the latent vector.
        qk_rope_head_dim: Elements of its RoPE part.
        index_head_dim: Elements of an indexer key.
        sliding_window: Tokens.
    """

    compress_ratios: tuple[int, ...]
    num_hidden_layers: int
    num_nextn_predict_layers: int
    head_dim: int
    qk_rope_head_dim: int
    index_head_dim: int
    sliding_window: int


def parse_config(fields: Fields) -> DeepseekV4Config:
    """Read the fields; both spellings of the compression ratios are known.

    The published files carry `compress_ratios`, a list of ratios.  Newer ones
    carry `layer_types`, a list of names, and `compress_rates`, the ratio of each
    name that compresses.

    Raises:
        InputError: A field is missing or out of range.
    """
    num_hidden_layers = fields.integer("num_hidden_layers", maximum=MAX_LAYERS)
    num_mtp_layers = fields.integer("num_nextn_predict_layers", default=0, minimum=0, maximum=MAX_LAYERS)
    head_dim = fields.integer("head_dim", maximum=2**20)
    ratios = _ratios(fields)
    if len(ratios) < num_hidden_layers:
        need = f"one entry for each of the {num_hidden_layers} hidden layers"
        raise InputError(fields.path(_ratio_field(fields)), f"{len(ratios)} entries", need)
    ratios = (*ratios, *(0 for _ in range(num_mtp_layers)))[: num_hidden_layers + num_mtp_layers]
    return DeepseekV4Config(
        compress_ratios=ratios,
        num_hidden_layers=num_hidden_layers,
        num_nextn_predict_layers=num_mtp_layers,
        head_dim=head_dim,
        qk_rope_head_dim=fields.integer("qk_rope_head_dim", maximum=head_dim),
        index_head_dim=fields.integer("index_head_dim", maximum=2**20),
        sliding_window=fields.integer("sliding_window"),
    )


def read(fields: Fields, options: CacheOptions) -> ModelStack:
    """The cache layers of a config; every worker of a tensor-parallel group holds all of them.

    Raises:
        InputError: A field is missing or wrong, or an option is out of range.
    """
    config = parse_config(fields)
    layers = cache_layers(
        config,
        backend=options.backend_or_default,
        indexer=options.indexer or DEFAULT_INDEXER,
        num_mtp_layers=options.num_mtp_layers,
    )
    cuts: list[list[CacheLayer]] = [[] for _ in config.compress_ratios]
    for layer in layers:
        cuts[int(layer.name.split(".")[2])].append(layer)
    return ModelStack(
        decoder=tuple(tuple(cut) for cut in cuts[: config.num_hidden_layers]),
        drafts=tuple(layer for cut in cuts[config.num_hidden_layers :] for layer in cut),
    )


def _ratio_field(fields: Fields) -> str:
    return "compress_ratios" if "compress_ratios" in fields else "layer_types"


def _ratios(fields: Fields) -> tuple[int, ...]:
    if "compress_ratios" not in fields and "layer_types" not in fields:
        need = "a list of ratios, or layer_types with compress_rates"
        raise InputError(fields.path("compress_ratios"), MISSING, need)
    name = _ratio_field(fields)
    entries = fields.sequence(name)
    if name == "layer_types":
        rates = Fields(fields.get("compress_rates"), fields.path("compress_rates"))
        entries = [
            0 if kind == "sliding_attention" else _rate(rates, kind, fields, i)
            for i, kind in enumerate(entries)
        ]
    for i, ratio in enumerate(entries):
        if isinstance(ratio, bool) or not isinstance(ratio, int) or ratio not in RATIOS:
            raise InputError(fields.path(f"{name}[{i}]"), ratio, f"one of {', '.join(map(str, RATIOS))}")
    return tuple(ratio for ratio in entries if isinstance(ratio, int))


def _rate(rates: Fields, kind: object, fields: Fields, index: int) -> object:
    if not isinstance(kind, str) or kind not in rates:
        raise InputError(
            fields.path(f"layer_types[{index}]"), kind, "sliding_attention or a name in compress_rates"
        )
    return rates.get(kind)


def cache_layers(
    config: DeepseekV4Config, *, backend: Backend, indexer: str, num_mtp_layers: int = 0
) -> tuple[CacheLayer, ...]:
    """Every cache layer of the model, in the order in which the engine meets them.

    Args:
        config: The checked fields.
        backend: Sets the latent row and the page alignment.
        indexer: `fp8` or `mxfp4` rows of the indexer's keys.
        num_mtp_layers: Multi-token-prediction layers in use; the engine loads
            them for speculative decoding only.

    Raises:
        InputError: More MTP layers than the checkpoint holds, or an unknown row format.
    """
    most = config.num_nextn_predict_layers
    if isinstance(num_mtp_layers, bool) or not 0 <= num_mtp_layers <= most:
        raise InputError("mtp", num_mtp_layers, f"0 to {most} (num_nextn_predict_layers of the config)")
    used = config.compress_ratios[: config.num_hidden_layers + num_mtp_layers]
    tensors = {ratio: _tensors(ratio, config, backend, indexer) for ratio in set(used)}
    return checked_stack(
        CacheLayer(name=f"model.layers.{i}.attn{suffix}", spec=spec)
        for i, ratio in enumerate(used)
        for suffix, spec in tensors[ratio]
    )


def _tensors(
    ratio: int, config: DeepseekV4Config, backend: Backend, indexer: str
) -> list[tuple[str, LayerSpec]]:
    """`(name suffix, spec)` of what one attention layer of this ratio stores."""
    alignment = backend.page_alignment_bytes
    latent_bytes = latent_row(backend.latent, config.head_dim, config.qk_rope_head_dim).row_bytes
    window = LayerSpec(
        kind="sliding_window_mla",
        block_size=WINDOW_BLOCK_TOKENS,
        row_bytes=latent_bytes,
        alignment=alignment,
        retention=SlidingWindow(window_tokens=config.sliding_window),
    )
    if ratio == 0:
        return [(".swa_cache", window)]

    def compressed(row_bytes: int) -> LayerSpec:
        return LayerSpec(
            kind="mla_attention",
            block_size=LATENT_BLOCK_TOKENS,
            row_bytes=row_bytes,
            compress_ratio=ratio,
            alignment=alignment,
        )

    tensors = [
        (".swa_cache", window),
        ("", compressed(latent_bytes)),
        (".compressor.state_cache", _state(ratio, config.head_dim, alignment)),
    ]
    if ratio != INDEXED_RATIO:
        return tensors
    return [
        (".indexer.k_cache", compressed(indexer_row(indexer, config.index_head_dim).row_bytes)),
        (".indexer.compressor.state_cache", _state(ratio, config.index_head_dim, alignment)),
        *tensors,
    ]


def _state(ratio: int, head_dim: int, alignment: int) -> LayerSpec:
    num_spans = 2 if ratio == INDEXED_RATIO else 1
    return LayerSpec(
        kind="sliding_window_mla",
        block_size=4 if ratio == INDEXED_RATIO else 8,
        row_bytes=state_row(2 * num_spans * head_dim).row_bytes,
        alignment=alignment,
        retention=SlidingWindow(window_tokens=num_spans * ratio),
    )
