"""Mamba beside attention: Jamba (Mamba-1), Bamba and Nemotron-H (Mamba-2).

One state a request, in elements::

    Mamba-1    conv (kernel - 1) * inner            state  inner * d_state
    Mamba-2    conv (kernel - 1) * (inner + 2 * groups * d_state)
               state  heads * head_dim * d_state

Tensor parallelism cuts `inner` and the heads.  Groups that it cannot cut are copied:
with one group, each worker holds that group.

Source: ai21labs/Jamba-v0.1, ibm-ai-platform/Bamba-9B and
nvidia/NVIDIA-Nemotron-Nano-9B-v2, `config.json`; vLLM's `MambaStateShapeCalculator`.
"""

from collections.abc import Sequence

from kvslab.errors import InputError
from kvslab.files import Fields
from kvslab.layers import CacheLayer
from kvslab.models.attention import (
    MAX_SIZE,
    layer_name,
    num_layers_of,
    parse_attention,
    share,
    text_fields,
)
from kvslab.models.options import CacheOptions, ModelStack
from kvslab.models.recurrent import StateSize, align_pages, ssm_bytes, state_layer

MODEL_TYPES = ("jamba", "bamba", "nemotron_h")
ATTENTION, STATE, NOTHING = "*", "M", "-"
_SSM_FIELDS = ("mamba_ssm_cache_dtype", "mamba_ssm_dtype")


def read(fields: Fields, options: CacheOptions) -> ModelStack:
    """The cache layers of a Mamba hybrid, pages made equal.

    Raises:
        InputError: A field is missing or wrong.
    """
    text = text_fields(fields)
    match fields.text("model_type", choices=MODEL_TYPES):
        case "jamba":
            pattern, state = _every_nth(text), _mamba1(text, options)
        case "bamba":
            pattern, state = _listed(text), _mamba2(text, options, *_BAMBA)
        case _:
            pattern, state = _spelled(text), _mamba2(text, options, *_NEMOTRON)
    full = parse_attention(text, options).spec(options)
    decoder: list[tuple[CacheLayer, ...]] = []
    for i, kind in enumerate(pattern):
        match kind:
            case "*":
                decoder.append((CacheLayer(name=layer_name(i), spec=full),))
            case "M":
                decoder.append((state_layer(layer_name(i, "mamba"), state),))
            case _:
                decoder.append(())
    stack = ModelStack(decoder=tuple(decoder))
    return align_pages(stack)


def _every_nth(text: Fields) -> Sequence[str]:
    period = text.integer("attn_layer_period", maximum=MAX_SIZE)
    offset = text.integer("attn_layer_offset", minimum=0, maximum=period - 1)
    return [ATTENTION if i % period == offset else STATE for i in range(num_layers_of(text))]


def _listed(text: Fields) -> Sequence[str]:
    num_layers, name = num_layers_of(text), "attn_layer_indices"
    indices = text.sequence(name)
    for i, index in enumerate(indices):
        if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < num_layers:
            raise InputError(text.path(f"{name}[{i}]"), index, f"a layer from 0 to {num_layers - 1}")
    return [ATTENTION if i in indices else STATE for i in range(num_layers)]


def _spelled(text: Fields) -> Sequence[str]:
    """Nemotron-H: one letter a layer, `M` a state, `*` attention, `-` and `E` neither."""
    pattern, num_layers = text.text("hybrid_override_pattern"), num_layers_of(text)
    if len(pattern) != num_layers or set(pattern) - set("M*-E"):
        need = f"one of M, *, - and E for each of the {num_layers} hidden layers"
        raise InputError(text.path("hybrid_override_pattern"), pattern, need)
    return pattern.replace("E", NOTHING)


def _mamba1(text: Fields, options: CacheOptions) -> StateSize:
    inner = text.integer("mamba_expand", maximum=MAX_SIZE) * text.integer("hidden_size", maximum=2**30)
    held = share(text, "hidden_size", inner, options.tensor_parallel)
    return StateSize(
        conv_elements=(text.integer("mamba_d_conv", maximum=MAX_SIZE) - 1) * held,
        ssm_elements=held * text.integer("mamba_d_state", maximum=MAX_SIZE),
        ssm_bytes=ssm_bytes(text, options, *_SSM_FIELDS),
    )


_BAMBA = ("mamba_n_heads", "mamba_d_head", "mamba_n_groups", "mamba_d_state", "mamba_d_conv")
_NEMOTRON = ("mamba_num_heads", "mamba_head_dim", "n_groups", "ssm_state_size", "conv_kernel")


def _mamba2(
    text: Fields, options: CacheOptions, heads: str, head_dim: str, groups: str, state: str, kernel: str
) -> StateSize:
    """The state of Mamba-2; the arguments are the fields' names."""
    tp = options.tensor_parallel
    num_heads, dim = text.integer(heads, maximum=MAX_SIZE), text.integer(head_dim, maximum=MAX_SIZE)
    num_groups, size = text.integer(groups, maximum=MAX_SIZE), text.integer(state, maximum=MAX_SIZE)
    held_heads = share(text, heads, num_heads, tp)
    if num_groups % tp and num_groups != 1:
        need = f"1, or a multiple of tensor_parallel {tp}"
        raise InputError(text.path(groups), num_groups, need)
    held_groups = max(1, num_groups // tp)
    kept = text.integer(kernel, maximum=MAX_SIZE) - 1 + options.num_speculative_tokens
    return StateSize(
        conv_elements=kept * (held_heads * dim + 2 * held_groups * size),
        ssm_elements=held_heads * dim * size,
        ssm_bytes=ssm_bytes(text, options, *_SSM_FIELDS),
    )
