"""What the models' files share: the fields of attention layers, and the layers they give.

Keys and values of a token are one row::

    row_bytes = 2 * heads of this worker * head_dim * bytes of an element

Tensor parallelism cuts the heads.  Where there are more workers than KV heads,
each head is copied to as many workers; a number that does not divide is refused.

Source: vLLM's `ModelConfig.get_num_kv_heads` and its attention layers.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from kvslab.errors import InputError
from kvslab.files import Fields
from kvslab.formats import attention_row
from kvslab.layers import (
    MAX_LAYERS,
    CacheLayer,
    FullHistory,
    LayerSpec,
    LocalChunk,
    Retention,
    SlidingWindow,
)
from kvslab.models.options import CacheOptions, ModelStack

Kind = Literal["full_attention", "sliding_window", "chunked_local_attention"]

BLOCK_TOKENS = 16
"""Tokens of a block where nobody asks for another size."""
MAX_SIZE = 2**20
KEEPS_ALL = FullHistory()


def text_fields(fields: Fields) -> Fields:
    """The language model's fields: a multimodal config keeps them in `text_config`."""
    if "text_config" not in fields:
        return fields
    return Fields(fields.get("text_config"), fields.path("text_config"))


def num_layers_of(fields: Fields) -> int:
    """Decoder layers of the model.

    Raises:
        InputError: `num_hidden_layers` is missing or out of range.
    """
    return fields.integer("num_hidden_layers", maximum=MAX_LAYERS)


def share(fields: Fields, name: str, count: int, tensor_parallel: int) -> int:
    """What one worker holds of `count` things that cannot be copied.

    Raises:
        InputError: They cannot be shared out evenly; `name` is the field.
    """
    if count % tensor_parallel:
        raise InputError(fields.path(name), count, f"a multiple of tensor_parallel {tensor_parallel}")
    return count // tensor_parallel


def heads_of_worker(fields: Fields, name: str, num_kv_heads: int, tensor_parallel: int) -> int:
    """KV heads that one worker holds: a share of them, or one copied head.

    Raises:
        InputError: Neither number divides the other.
    """
    if num_kv_heads >= tensor_parallel:
        return share(fields, name, num_kv_heads, tensor_parallel)
    if tensor_parallel % num_kv_heads:
        need = f"a divisor of tensor_parallel {tensor_parallel}, so that each head is copied as often"
        raise InputError(fields.path(name), num_kv_heads, need)
    return 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """The heads of a model's attention layers, as one worker holds them.

    Args:
        num_kv_heads: KV heads of this worker.
        head_dim: Elements of one head.
    """

    num_kv_heads: int
    head_dim: int

    def spec(self, options: CacheOptions, retention: Retention = KEEPS_ALL) -> LayerSpec:
        """What a layer of these heads stores."""
        return LayerSpec(
            kind=_kind_of(retention),
            block_size=options.block_size or BLOCK_TOKENS,
            row_bytes=attention_row(options.kv_cache_dtype, self.num_kv_heads, self.head_dim).row_bytes,
            retention=retention,
        )


def _kind_of(retention: Retention) -> Kind:
    match retention:
        case SlidingWindow():
            return "sliding_window"
        case LocalChunk():
            return "chunked_local_attention"
        case _:
            return "full_attention"


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadDefaults:
    """What a model's config class fills in where the published file leaves a field out."""

    num_attention_heads: int | None = None
    num_key_value_heads: int | None = None
    head_dim: int | None = None


NO_DEFAULTS = HeadDefaults()


def parse_attention(fields: Fields, options: CacheOptions, defaults: HeadDefaults = NO_DEFAULTS) -> Attention:
    """Read the heads of the attention layers and cut them for one worker.

    Without `num_key_value_heads` every attention head has keys and values of its
    own; without `head_dim` a head is its share of `hidden_size`.

    Raises:
        InputError: A field is missing or out of range, or the heads cannot be shared out.
    """
    num_heads = fields.integer("num_attention_heads", default=defaults.num_attention_heads, maximum=MAX_SIZE)
    num_kv_heads = num_heads
    if fields.get("num_key_value_heads") is not None or defaults.num_key_value_heads is not None:
        num_kv_heads = fields.integer(
            "num_key_value_heads", default=defaults.num_key_value_heads, maximum=num_heads
        )
    if fields.get("head_dim") is not None or defaults.head_dim is not None:
        head_dim = fields.integer("head_dim", default=defaults.head_dim, maximum=MAX_SIZE)
    else:
        head_dim = fields.integer("hidden_size", minimum=num_heads, maximum=2**30) // num_heads
    share(fields, "num_attention_heads", num_heads, options.tensor_parallel)
    held = heads_of_worker(fields, "num_key_value_heads", num_kv_heads, options.tensor_parallel)
    return Attention(num_kv_heads=held, head_dim=head_dim)


def layer_types(fields: Fields, allowed: Sequence[str]) -> tuple[str, ...] | None:
    """The `layer_types` of a config, one for each decoder layer; None where it has none.

    Raises:
        InputError: There are fewer or more than `num_hidden_layers`, or one is not in `allowed`.
    """
    if fields.get("layer_types") is None:
        return None
    entries, count = fields.sequence("layer_types"), num_layers_of(fields)
    if len(entries) != count:
        need = f"one entry for each of the {count} hidden layers"
        raise InputError(fields.path("layer_types"), f"{len(entries)} entries", need)
    for i, entry in enumerate(entries):
        if entry not in allowed:
            raise InputError(fields.path(f"layer_types[{i}]"), entry, f"one of {', '.join(allowed)}")
    return tuple(str(entry) for entry in entries)


def layer_name(index: int, suffix: str = "self_attn.attn") -> str:
    """How the engine calls the cache of a decoder layer, e.g. `model.layers.3.self_attn.attn`."""
    return f"model.layers.{index}.{suffix}"


def keep_everything(stack: ModelStack) -> ModelStack:
    """A stack whose windows and chunks keep all rows, as beside a disabled hybrid manager.

    A stack of windows alone is left as it is: there is one kind, nothing to unify.

    Raises:
        InputError: A recurrent state stands beside attention; it cannot keep everything.

    Source: vLLM's `unify_hybrid_kv_cache_specs`.
    """
    kinds = {layer.spec.kind for layer in stack.layers}
    if len(kinds) == 1:
        return stack
    if "mamba" in kinds:
        raise InputError("hybrid", False, "True for a model with recurrent states")
    freeing = [
        layer for layer in stack.layers if isinstance(layer.spec.retention, SlidingWindow | LocalChunk)
    ]

    def kept(layer: CacheLayer) -> CacheLayer:
        if not isinstance(layer.spec.retention, SlidingWindow | LocalChunk):
            return layer
        kind = "mla_attention" if layer.spec.kind.endswith("_mla") else "full_attention"
        return CacheLayer(name=layer.name, spec=replace(layer.spec, kind=kind, retention=FullHistory()))

    if not freeing:
        return stack
    note = f"hybrid manager off: {len(freeing)} layers, from {freeing[0].name!r} on, keep every row"
    return stack.map_layers(kept, note)
