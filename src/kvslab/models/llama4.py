"""Llama 4: three layers of chunked local attention, then a full layer without RoPE.

A chunk is not a window: a token reads back to the start of its own chunk, and a
new chunk starts with nothing.

vLLM serves chunks with the hybrid manager off unless
`VLLM_ALLOW_CHUNKED_LOCAL_ATTN_WITH_HYBRID_KV_CACHE` is set, for the sake of speed:
`CacheOptions(hybrid=False)` is what its logs then show.

Source: meta-llama/Llama-4-Scout-17B-16E-Instruct, `config.json`; vLLM's `llama4` model
and PR 19351.
"""

from kvslab.errors import InputError
from kvslab.files import Fields
from kvslab.layers import CacheLayer, FullHistory, LocalChunk
from kvslab.models.attention import layer_name, layer_types, num_layers_of, parse_attention, text_fields
from kvslab.models.options import CacheOptions, ModelStack

MODEL_TYPES = ("llama4", "llama4_text")


def read(fields: Fields, options: CacheOptions) -> ModelStack:
    """The cache layers of Llama 4, text or multimodal.

    Raises:
        InputError: A field is missing or wrong.
    """
    text = text_fields(fields)
    attention = parse_attention(text, options)
    chunk = LocalChunk(chunk_tokens=text.integer("attention_chunk_size"))
    specs = {True: attention.spec(options, chunk), False: attention.spec(options, FullHistory())}
    return ModelStack(
        decoder=tuple(
            (CacheLayer(name=layer_name(i), spec=specs[local]),) for i, local in enumerate(_is_local(text))
        )
    )


def _is_local(text: Fields) -> tuple[bool, ...]:
    """Whether each layer attends within its chunk: it does where it has RoPE."""
    num_layers = num_layers_of(text)
    types = layer_types(text, ("chunked_attention", "full_attention"))
    if types is not None:
        return tuple(kind == "chunked_attention" for kind in types)
    flags = text.sequence("no_rope_layers") if text.get("no_rope_layers") else []
    if not flags:
        interval = text.integer("no_rope_layer_interval", default=4, maximum=2**20)
        return tuple((i + 1) % interval != 0 for i in range(num_layers))
    if len(flags) != num_layers or any(flag not in (0, 1) for flag in flags):
        need = f"1 (RoPE, chunked) or 0 (full) for each of the {num_layers} hidden layers"
        raise InputError(text.path("no_rope_layers"), f"{len(flags)} entries", need)
    return tuple(flag == 1 for flag in flags)
