"""DeepSeek-V3 and V3.2: multi-head latent attention, and an indexer in V3.2.

Every layer stores one latent vector a token, for all heads: tensor parallelism
copies it to every worker.  With `index_topk` in the config a layer also stores the
indexer's key, which picks the tokens that attention reads.

Source: deepseek-ai/DeepSeek-V3 and -V3.2, `config.json`; vLLM's `deepseek_v2` model.
"""

from kvslab.errors import InputError
from kvslab.files import Fields
from kvslab.formats import indexer_row, mla_row
from kvslab.layers import CacheLayer, LayerSpec
from kvslab.models.attention import MAX_SIZE, layer_name, num_layers_of, share, text_fields
from kvslab.models.options import CacheOptions, ModelStack

MODEL_TYPES = ("deepseek_v2", "deepseek_v3", "deepseek_v32", "kimi_k2")

MLA_BLOCK_TOKENS = 64
"""Tokens of a block of the FlashMLA kernels; other backends take other sizes (`block_size`)."""


def mla_spec(fields: Fields, options: CacheOptions, *, sparse: bool) -> LayerSpec:
    """What an MLA layer stores.

    Raises:
        InputError: A field is missing or out of range, or the dtype does not suit MLA.
    """
    row = mla_row(
        options.kv_cache_dtype,
        fields.integer("kv_lora_rank", maximum=MAX_SIZE),
        fields.integer("qk_rope_head_dim", maximum=MAX_SIZE),
        sparse=sparse,
    )
    return LayerSpec(
        kind="mla_attention", block_size=options.block_size or MLA_BLOCK_TOKENS, row_bytes=row.row_bytes
    )


def read(fields: Fields, options: CacheOptions) -> ModelStack:
    """The cache layers of a DeepSeek-V3 model; MTP layers are layers like the others.

    Raises:
        InputError: A field is missing or wrong, or more MTP layers are asked for than the
            checkpoint holds.
    """
    text = text_fields(fields)
    sparse = text.get("index_topk") is not None
    if options.indexer is not None and not sparse:
        raise InputError("indexer", options.indexer, "no such option for a config without index_topk")
    num_heads = text.integer("num_attention_heads", maximum=MAX_SIZE)
    share(text, "num_attention_heads", num_heads, options.tensor_parallel)
    num_layers = num_layers_of(text)
    most = text.integer("num_nextn_predict_layers", default=0, minimum=0, maximum=MAX_SIZE)
    num_mtp_layers = options.mtp_layers(most, "num_nextn_predict_layers")
    tensors = [("self_attn.attn", mla_spec(text, options, sparse=sparse))]
    if sparse:
        keys = indexer_row(options.indexer or "fp8", text.integer("index_head_dim", maximum=MAX_SIZE))
        spec = LayerSpec(kind="mla_attention", block_size=tensors[0][1].block_size, row_bytes=keys.row_bytes)
        tensors.append(("self_attn.indexer.k_cache", spec))
    cuts = tuple(
        tuple(CacheLayer(name=layer_name(i, suffix), spec=spec) for suffix, spec in tensors)
        for i in range(num_layers + num_mtp_layers)
    )
    return ModelStack(
        decoder=cuts[:num_layers], drafts=tuple(layer for cut in cuts[num_layers:] for layer in cut)
    )
