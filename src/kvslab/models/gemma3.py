"""Gemma 3 and Gemma 3n: five (or four) sliding windows, then a full layer.

The published multimodal files keep the language model in `text_config` and leave
out what the config class knows; both spellings of the pattern occur: a list
`layer_types`, or `sliding_window_pattern`, every n-th layer full.

Gemma 3n's last `num_kv_shared_layers` layers read the cache of the last earlier
layer of their own type and store nothing.

Source: google/gemma-3-27b-it and google/gemma-3n-E4B-it, `config.json`; defaults of
transformers' `Gemma3TextConfig` and `Gemma3nTextConfig`; vLLM's `gemma3` and
`gemma3n` models.
"""

from kvslab.errors import InputError
from kvslab.inputs import Fields
from kvslab.layers import CacheLayer, FullHistory, LayerSpec, SlidingWindow
from kvslab.models.attention import (
    HeadDefaults,
    layer_name,
    layer_types,
    num_layers_of,
    parse_attention,
    text_fields,
)
from kvslab.models.options import CacheOptions, ModelStack

MODEL_TYPES = ("gemma3", "gemma3_text")
SHARING_MODEL_TYPES = ("gemma3n", "gemma3n_text")

DEFAULTS = HeadDefaults(num_attention_heads=8, num_key_value_heads=4, head_dim=256)
SHARING_DEFAULTS = HeadDefaults(num_attention_heads=8, num_key_value_heads=2, head_dim=256)


def read(fields: Fields, options: CacheOptions) -> ModelStack:
    """The cache layers of Gemma 3, text or multimodal.

    Raises:
        InputError: A field is missing or wrong.
    """
    text = text_fields(fields)
    specs = _specs(text, options, DEFAULTS, window_tokens=4096)
    types = _types(text, text.integer("sliding_window_pattern", default=6, maximum=2**20))
    return ModelStack(
        decoder=tuple((CacheLayer(name=layer_name(i, "attn"), spec=specs[t]),) for i, t in enumerate(types))
    )


def read_sharing(fields: Fields, options: CacheOptions) -> ModelStack:
    """The cache layers of Gemma 3n: the layers that share another's cache are not there.

    Raises:
        InputError: A field is missing or wrong, or no layer of a type is left to share from.
    """
    text = text_fields(fields)
    num_layers = num_layers_of(text)
    num_shared = text.integer("num_kv_shared_layers", default=15, minimum=0, maximum=num_layers)
    specs = _specs(text, options, SHARING_DEFAULTS, window_tokens=512)
    types = _types(text, 5)
    first = num_layers - num_shared
    missing = [i for i in range(first, num_layers) if types[i] not in types[:first]]
    if missing:
        need = f"few enough that layer {missing[0]} ({types[missing[0]]}) has an earlier one of its type"
        raise InputError(text.path("num_kv_shared_layers"), num_shared, need)
    note = f"layers {first} to {num_layers - 1} read the cache of an earlier layer and store nothing"
    return ModelStack(
        decoder=tuple(
            (CacheLayer(name=layer_name(i, "attn"), spec=specs[kind]),) if i < first else ()
            for i, kind in enumerate(types)
        ),
        notes=(note,) if num_shared else (),
    )


def _types(text: Fields, pattern: int) -> tuple[str, ...]:
    listed = layer_types(text, ("sliding_attention", "full_attention"))
    if listed is not None:
        return listed
    return tuple(
        "sliding_attention" if (i + 1) % pattern else "full_attention" for i in range(num_layers_of(text))
    )


def _specs(
    text: Fields, options: CacheOptions, defaults: HeadDefaults, *, window_tokens: int
) -> dict[str, LayerSpec]:
    attention = parse_attention(text, options, defaults)
    window = SlidingWindow(window_tokens=text.integer("sliding_window", default=window_tokens))
    return {
        "sliding_attention": attention.spec(options, window),
        "full_attention": attention.spec(options, FullHistory()),
    }
