"""OLMo 3: three sliding windows, then a full layer.

A config without `layer_types` has this pattern all the same, and one without
`sliding_window` windows of 4,096 tokens: the config class fills both in, so the dense
models' reading of a lone `sliding_window`, every layer has it, would be wrong here.

There are three times as many windows as full layers, all pages of one size: three
groups of windows as deep as the full one fill the slab to the last byte.

Source: allenai/Olmo-3-7B-Instruct, `config.json`; defaults of transformers'
`Olmo3Config`; vLLM's `olmo3` model.
"""

from kvslab.files import Fields
from kvslab.layers import CacheLayer, FullHistory, SlidingWindow
from kvslab.models.attention import layer_name, layer_types, num_layers_of, parse_attention
from kvslab.models.options import CacheOptions, ModelStack

MODEL_TYPES = ("olmo3",)
FULL_EVERY = 4
"""Every fourth layer attends to everything, where the config does not list its layers."""
WINDOW_TOKENS = 4_096
"""The window where the config does not say."""


def read(fields: Fields, options: CacheOptions) -> ModelStack:
    """The cache layers of OLMo 3.

    Raises:
        InputError: A field is missing or wrong.
    """
    attention = parse_attention(fields, options)
    window = SlidingWindow(window_tokens=fields.integer("sliding_window", default=WINDOW_TOKENS))
    specs = {
        "sliding_attention": attention.spec(options, window),
        "full_attention": attention.spec(options, FullHistory()),
    }
    types = layer_types(fields, tuple(specs))
    if types is None:
        types = tuple(
            "sliding_attention" if (i + 1) % FULL_EVERY else "full_attention"
            for i in range(num_layers_of(fields))
        )
    return ModelStack(
        decoder=tuple((CacheLayer(name=layer_name(i), spec=specs[kind]),) for i, kind in enumerate(types))
    )
