"""gpt-oss: sliding windows and full attention in turn, windows first.

Every page is of one size and there are as many windows as full layers, so the two
groups fill the slab to the last byte: no layout can gain anything.

Source: openai/gpt-oss-20b and -120b, `config.json`; vLLM's `gpt_oss` model.
"""

from kvslab.files import Fields
from kvslab.layers import CacheLayer, FullHistory, SlidingWindow
from kvslab.models.attention import layer_name, layer_types, num_layers_of, parse_attention
from kvslab.models.options import CacheOptions, ModelStack

MODEL_TYPES = ("gpt_oss",)


def read(fields: Fields, options: CacheOptions) -> ModelStack:
    """The cache layers of gpt-oss.

    Raises:
        InputError: A field is missing or wrong.
    """
    attention = parse_attention(fields, options)
    window = SlidingWindow(window_tokens=fields.integer("sliding_window"))
    types = layer_types(fields, ("sliding_attention", "full_attention"))
    if types is None:
        types = tuple(("sliding_attention", "full_attention")[i % 2] for i in range(num_layers_of(fields)))
    specs = {
        "sliding_attention": attention.spec(options, window),
        "full_attention": attention.spec(options, FullHistory()),
    }
    return ModelStack(
        decoder=tuple(
            (CacheLayer(name=layer_name(i, "attn"), spec=specs[kind]),) for i, kind in enumerate(types)
        )
    )
