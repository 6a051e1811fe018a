"""Kimi Linear: three layers of Kimi delta attention, then a layer of latent attention.

A linear layer keeps three short convolutions (queries, keys, values) in 16 bits and
one FP32 state; a latent layer keeps one row a token, which every worker holds whole.
The config counts layers from 1.

Source: moonshotai/Kimi-Linear-48B-A3B-Instruct, `config.json`; vLLM's `kda_state_shape`
and `kda_state_dtype`.
"""

from kvslab.errors import InputError
from kvslab.files import Fields
from kvslab.layers import CacheLayer
from kvslab.models.attention import MAX_SIZE, layer_name, num_layers_of, share, text_fields
from kvslab.models.deepseek_v3 import mla_spec
from kvslab.models.options import CacheOptions, ModelStack
from kvslab.models.recurrent import StateSize, align_pages, state_layer

MODEL_TYPES = ("kimi_linear",)


def read(fields: Fields, options: CacheOptions) -> ModelStack:
    """The cache layers of Kimi Linear, pages made equal.

    Raises:
        InputError: A field is missing or wrong.
    """
    text = text_fields(fields)
    linear = Fields(text.get("linear_attn_config"), text.path("linear_attn_config"))
    num_layers = num_layers_of(text)
    full = _full_layers(linear, num_layers)
    latent = mla_spec(text, options, sparse=False)
    num_heads = linear.integer("num_heads", maximum=MAX_SIZE)
    heads = share(linear, "num_heads", num_heads, options.tensor_parallel)
    head_dim = linear.integer("head_dim", maximum=MAX_SIZE)
    kept = linear.integer("short_conv_kernel_size", default=4, maximum=MAX_SIZE) - 1
    state = StateSize(
        conv_elements=3 * heads * head_dim * kept,
        ssm_elements=heads * head_dim * head_dim,
        ssm_bytes=4,
    )
    stack = ModelStack(
        decoder=tuple(
            (
                CacheLayer(name=layer_name(i, "self_attn.mla_attn"), spec=latent)
                if i + 1 in full
                else state_layer(layer_name(i), state),
            )
            for i in range(num_layers)
        )
    )
    return align_pages(stack)


def _full_layers(linear: Fields, num_layers: int) -> set[int]:
    """The latent layers, counted from 1."""
    found = set()
    for i, index in enumerate(linear.sequence("full_attn_layers")):
        if isinstance(index, bool) or not isinstance(index, int) or not 1 <= index <= num_layers:
            raise InputError(linear.path(f"full_attn_layers[{i}]"), index, f"a layer from 1 to {num_layers}")
        found.add(index)
    return found
