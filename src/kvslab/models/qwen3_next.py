"""Qwen3-Next and Qwen3.5: three layers of gated delta rule, then a full layer.

A linear layer keeps one state a request, whatever its length::

    conv       (kernel - 1 + speculative tokens) * (2 * key heads * key dim + value heads * value dim)
    state      value heads * value dim * key dim

Source: Qwen/Qwen3-Next-80B-A3B-Instruct and Qwen/Qwen3.5-27B, `config.json`; vLLM's
`gated_delta_net_state_shape`.
"""

from kvslab.files import Fields
from kvslab.layers import CacheLayer
from kvslab.models.attention import (
    MAX_SIZE,
    layer_name,
    layer_types,
    num_layers_of,
    parse_attention,
    share,
    text_fields,
)
from kvslab.models.options import CacheOptions, ModelStack
from kvslab.models.recurrent import StateSize, align_pages, ssm_bytes, state_layer

MODEL_TYPES = ("qwen3_next", "qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text")
_MTP_FIELDS = ("num_nextn_predict_layers", "mtp_num_hidden_layers")


def read(fields: Fields, options: CacheOptions) -> ModelStack:
    """The cache layers of Qwen3-Next, pages made equal.

    MTP layers attend fully.

    Raises:
        InputError: A field is missing or wrong, or more MTP layers are asked for than the
            checkpoint holds.
    """
    text = text_fields(fields)
    full = parse_attention(text, options).spec(options)
    state = _state(text, options)
    num_layers = num_layers_of(text)
    types = layer_types(text, ("linear_attention", "full_attention"))
    if types is None:
        interval = text.integer("full_attention_interval", default=4, maximum=MAX_SIZE)
        types = tuple(
            "linear_attention" if (i + 1) % interval else "full_attention" for i in range(num_layers)
        )
    most = next((text.integer(name, minimum=0) for name in _MTP_FIELDS if name in text), 0)
    num_mtp_layers = options.mtp_layers(most, " or ".join(_MTP_FIELDS))
    stack = ModelStack(
        decoder=tuple(
            (
                CacheLayer(name=layer_name(i), spec=full)
                if kind == "full_attention"
                else state_layer(layer_name(i, "linear_attn"), state),
            )
            for i, kind in enumerate(types)
        ),
        drafts=tuple(
            CacheLayer(name=layer_name(i).replace("model", "mtp", 1), spec=full)
            for i in range(num_mtp_layers)
        ),
    )
    return align_pages(stack)


def _state(text: Fields, options: CacheOptions) -> StateSize:
    tp = options.tensor_parallel
    key_dim = text.integer("linear_key_head_dim", maximum=MAX_SIZE)
    value_dim = text.integer("linear_value_head_dim", maximum=MAX_SIZE)
    keys = share(text, "linear_num_key_heads", text.integer("linear_num_key_heads", maximum=MAX_SIZE), tp)
    values = share(
        text, "linear_num_value_heads", text.integer("linear_num_value_heads", maximum=MAX_SIZE), tp
    )
    kept = text.integer("linear_conv_kernel_dim", maximum=MAX_SIZE) - 1 + options.num_speculative_tokens
    return StateSize(
        conv_elements=kept * (2 * keys * key_dim + values * value_dim),
        ssm_elements=values * value_dim * key_dim,
        ssm_bytes=ssm_bytes(text, options, "mamba_ssm_dtype"),
    )
