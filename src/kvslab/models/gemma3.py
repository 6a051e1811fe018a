"""Gemma 3, 3n and 4: four or five sliding windows, then a full layer.

The published multimodal files keep the language model in `text_config` and leave
out what the config class knows; both spellings of the pattern occur: a list
`layer_types`, or `sliding_window_pattern`, every n-th layer full.

* Gemma 3n, 4: the last `num_kv_shared_layers` layers read the cache of the last earlier
  layer of their own type and store nothing.
* Gemma 4: full layers have heads of another number and size (`global_head_dim`), so
  their rows are of another length.

Source: google/gemma-3-27b-it, gemma-3n-E4B-it and gemma-4-31B-it, `config.json`; defaults
of transformers' `Gemma3TextConfig` and `Gemma3nTextConfig`; vLLM's models of these names.
"""

from dataclasses import dataclass, replace

from kvslab.errors import InputError
from kvslab.files import Fields
from kvslab.layers import CacheLayer, FullHistory, SlidingWindow
from kvslab.models.attention import (
    MAX_SIZE,
    HeadDefaults,
    heads_of_worker,
    layer_name,
    layer_types,
    num_layers_of,
    parse_attention,
    text_fields,
)
from kvslab.models.options import CacheOptions, ModelStack


@dataclass(frozen=True, slots=True, kw_only=True)
class Defaults:
    """What a config class fills in.

    Args:
        heads: The heads.
        pattern: Every so many layers one is full.
        window_tokens: The sliding window.
        num_shared: Layers that read another's cache.
        max_tokens: The longest request.
    """

    heads: HeadDefaults
    pattern: int
    window_tokens: int
    num_shared: int = 0
    max_tokens: int = 131_072


_GEMMA3 = Defaults(
    heads=HeadDefaults(num_attention_heads=8, num_key_value_heads=4, head_dim=256),
    pattern=6,
    window_tokens=4096,
)
_GEMMA3N = Defaults(
    heads=HeadDefaults(num_attention_heads=8, num_key_value_heads=2, head_dim=256),
    pattern=5,
    window_tokens=512,
    num_shared=15,
    max_tokens=32_768,
)
_GEMMA4 = Defaults(heads=HeadDefaults(head_dim=256), pattern=6, window_tokens=512)

DEFAULTS = {
    "gemma3": _GEMMA3,
    "gemma3_text": _GEMMA3,
    "gemma3n": _GEMMA3N,
    "gemma3n_text": _GEMMA3N,
    "gemma4": _GEMMA4,
    "gemma4_text": _GEMMA4,
}
MODEL_TYPES = tuple(DEFAULTS)


def read(fields: Fields, options: CacheOptions) -> ModelStack:
    """The cache layers of a Gemma, text or multimodal; sharing layers are not there.

    Raises:
        InputError: A field is missing or wrong, or a layer has none to share with.
    """
    defaults = DEFAULTS[fields.text("model_type", choices=MODEL_TYPES)]
    text = text_fields(fields)
    attention = parse_attention(text, options, defaults.heads)
    window = SlidingWindow(window_tokens=text.integer("sliding_window", default=defaults.window_tokens))
    specs = {
        "sliding_attention": attention.spec(options, window),
        "full_attention": replace(
            attention,
            num_kv_heads=_full_heads(text, options, attention.num_kv_heads),
            head_dim=_full_dim(text, attention.head_dim),
        ).spec(options, FullHistory()),
    }
    types = _types(text, defaults.pattern)
    first = len(types) - _num_shared(text, defaults.num_shared, types)
    notes: tuple[str, ...] = ()
    if first < len(types):
        notes = (f"layers {first} to {len(types) - 1} read the cache of an earlier layer and store nothing",)
    return ModelStack(
        decoder=tuple(
            (CacheLayer(name=layer_name(i, "attn"), spec=specs[kind]),) if i < first else ()
            for i, kind in enumerate(types)
        ),
        notes=notes,
    )


def _full_dim(text: Fields, head_dim: int) -> int:
    if text.get("global_head_dim") is None:
        return head_dim
    return text.integer("global_head_dim", maximum=MAX_SIZE)


def _full_heads(text: Fields, options: CacheOptions, num_kv_heads: int) -> int:
    """KV heads of a full layer on this worker; Gemma 4 counts them apart where keys serve as values."""
    name = "num_global_key_value_heads"
    if not text.get("attention_k_eq_v") or text.get(name) is None:
        return num_kv_heads
    return heads_of_worker(text, name, text.integer(name, maximum=MAX_SIZE), options.tensor_parallel)


def _types(text: Fields, pattern: int) -> tuple[str, ...]:
    listed = layer_types(text, ("sliding_attention", "full_attention"))
    if listed is not None:
        return listed
    every = text.integer("sliding_window_pattern", default=pattern, maximum=MAX_SIZE)
    return tuple(
        "sliding_attention" if (i + 1) % every else "full_attention" for i in range(num_layers_of(text))
    )


def _num_shared(text: Fields, default: int, types: tuple[str, ...]) -> int:
    count = text.integer("num_kv_shared_layers", default=default, minimum=0, maximum=len(types))
    first = len(types) - count
    missing = [i for i in range(first, len(types)) if types[i] not in types[:first]]
    if missing:
        need = f"few enough that layer {missing[0]} ({types[missing[0]]}) has an earlier one of its type"
        raise InputError(text.path("num_kv_shared_layers"), count, need)
    return count
