"""Models whose layers all attend in one way, or in two ways that the config lists.

Llama, Mistral, Mixtral, Qwen and their kin.  Every decoder layer stores one row of
keys and values a token.  Windows come in three spellings::

    layer_types             a name for each layer
    sliding_window          every layer has this window (Mistral-7B v0.1)
    use_sliding_window      Qwen2, Qwen3: without it the number beside it counts for nothing

Source: the published `config.json` files; vLLM's `llama`, `mixtral`, `qwen2`, `qwen3`
and `gpt_oss` models.
"""

from kvslab.errors import InputError
from kvslab.files import Fields
from kvslab.layers import CacheLayer, FullHistory, Retention, SlidingWindow
from kvslab.models.attention import layer_name, layer_types, num_layers_of, parse_attention, text_fields
from kvslab.models.options import CacheOptions, ModelStack

MODEL_TYPES = (
    "llama",
    "mistral",
    "mistral3",
    "mixtral",
    "qwen2",
    "qwen2_moe",
    "qwen3",
    "qwen3_moe",
    "qwen3_vl",
    "qwen3_vl_moe",
    "granite",
    "starcoder2",
    "minimax_m2",
)


def read(fields: Fields, options: CacheOptions) -> ModelStack:
    """The cache layers of a dense model or a mixture of experts.

    Raises:
        InputError: A field is missing or wrong.
    """
    text = text_fields(fields)
    attention = parse_attention(text, options)
    return ModelStack(
        decoder=tuple(
            (CacheLayer(name=layer_name(i), spec=attention.spec(options, retention)),)
            for i, retention in enumerate(retentions(text))
        )
    )


def retentions(fields: Fields) -> tuple[Retention, ...]:
    """Which rows each decoder layer keeps.

    Raises:
        InputError: A window is missing, or only some layers have one and the config
            does not list which.
    """
    num_layers = num_layers_of(fields)
    optional = str(fields.get("model_type")).startswith("qwen") or "use_sliding_window" in fields
    used = fields.get("use_sliding_window") is True if optional else True
    window = fields.optional_integer("sliding_window") if used else None
    types = layer_types(fields, ("full_attention", "sliding_attention"))
    if types is not None:
        return tuple(
            SlidingWindow(window_tokens=fields.integer("sliding_window"))
            if kind == "sliding_attention"
            else FullHistory()
            for kind in types
        )
    if window is None:
        return (FullHistory(),) * num_layers
    first = fields.optional_integer("max_window_layers")
    if optional and first is not None and first < num_layers:
        need = f"{num_layers} (all layers), or a layer_types list that says which layers have windows"
        raise InputError(fields.path("max_window_layers"), first, need)
    return (SlidingWindow(window_tokens=window),) * num_layers
