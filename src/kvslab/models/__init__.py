"""From a model's name, `config.json` or layer file to its cache layers.

A new model is one file here, with a function that turns checked fields and
`CacheOptions` into a `ModelStack`, and one line in `FAMILIES`.
"""

from collections.abc import Mapping
from importlib import resources
from pathlib import Path

from kvslab.errors import MISSING, InputError
from kvslab.files import Fields, is_there, parse_json, read_json
from kvslab.layers import CacheLayer, layers_from_json
from kvslab.models import (
    deepseek_v3,
    deepseek_v4,
    dense,
    gemma3,
    gpt_oss,
    kimi_linear,
    llama4,
    mamba_hybrid,
    olmo3,
    qwen3_next,
)
from kvslab.models.attention import keep_everything, text_fields
from kvslab.models.drafts import join_draft
from kvslab.models.options import (
    DEFAULT_BACKEND,
    DEFAULT_OPTIONS,
    CacheOptions,
    ModelFamily,
    ModelStack,
    options_from_json,
)

__all__ = [
    "DEFAULT_BACKEND",
    "DEFAULT_INDEXER",
    "FAMILIES",
    "MODEL_TYPES",
    "OTHER_PRESETS",
    "PRESETS",
    "CacheOptions",
    "ModelStack",
    "default_max_model_len",
    "heeded_options",
    "is_layer_file",
    "layers_from_config",
    "load_layers",
    "load_model",
    "model_from_config",
    "options_from_json",
    "preset_config",
    "read_model",
    "uses_indexer",
]

PRESETS = ("deepseek-v4-pro", "deepseek-v4-flash")
"""DeepSeek-V4, the model that this project is about."""
OTHER_PRESETS = (
    "llama-3.1-8b",
    "mistral-7b-v0.1",
    "mixtral-8x7b",
    "qwen3-coder-30b",
    "gpt-oss-20b",
    "gpt-oss-120b",
    "olmo-3-7b",
    "gemma-3-27b",
    "gemma-3n-e4b",
    "gemma-4-31b",
    "gemma-4-e2b",
    "llama-4-scout",
    "qwen3-next-80b",
    "kimi-linear-48b",
    "deepseek-v3",
    "deepseek-v3.2",
    "jamba-v0.1",
    "bamba-9b",
)
"""One model or two of every other family."""

DEFAULT_INDEXER = deepseek_v4.DEFAULT_INDEXER

_ATTENTION = frozenset({"kv_cache_dtype", "block_size", "hybrid"})
_RECURRENT = frozenset({"kv_cache_dtype", "block_size", "ssm_dtype", "num_speculative_tokens"})

FAMILIES: tuple[tuple[tuple[str, ...], ModelFamily], ...] = (
    (
        deepseek_v4.MODEL_TYPES,
        ModelFamily(read=deepseek_v4.read, heeds=frozenset({"backend", "indexer", "num_mtp_layers"})),
    ),
    (dense.MODEL_TYPES, ModelFamily(read=dense.read, heeds=_ATTENTION)),
    (gpt_oss.MODEL_TYPES, ModelFamily(read=gpt_oss.read, heeds=_ATTENTION)),
    (olmo3.MODEL_TYPES, ModelFamily(read=olmo3.read, heeds=_ATTENTION)),
    (gemma3.MODEL_TYPES, ModelFamily(read=gemma3.read, heeds=_ATTENTION)),
    (llama4.MODEL_TYPES, ModelFamily(read=llama4.read, heeds=_ATTENTION)),
    (qwen3_next.MODEL_TYPES, ModelFamily(read=qwen3_next.read, heeds=_RECURRENT | {"num_mtp_layers"})),
    (
        kimi_linear.MODEL_TYPES,
        ModelFamily(read=kimi_linear.read, heeds=frozenset({"kv_cache_dtype", "block_size"})),
    ),
    (
        deepseek_v3.MODEL_TYPES,
        ModelFamily(
            read=deepseek_v3.read,
            heeds=frozenset({"kv_cache_dtype", "block_size", "indexer", "num_mtp_layers"}),
        ),
    ),
    (mamba_hybrid.MODEL_TYPES, ModelFamily(read=mamba_hybrid.read, heeds=_RECURRENT)),
)
"""The model types of each file here, and how they are read."""

MODEL_TYPES: Mapping[str, ModelFamily] = {name: family for names, family in FAMILIES for name in names}


def preset_config(name: str) -> object:
    """The parsed `config.json` of a preset; the other models' have the cache's fields only.

    Raises:
        InputError: There is no preset of that name.
    """
    if name not in PRESETS + OTHER_PRESETS:
        raise InputError("model", name, f"one of {', '.join(PRESETS + OTHER_PRESETS)}")
    text = resources.files(__package__).joinpath("presets", f"{name}.json").read_text(encoding="utf-8")
    return parse_json(text, name)


def _family(fields: Fields) -> ModelFamily:
    if "model_type" not in fields:
        need = f"a config.json of one of {', '.join(MODEL_TYPES)}, or a layer file with a list of layers"
        raise InputError(fields.path("model_type"), MISSING, need)
    model_type = fields.text("model_type")
    if model_type not in MODEL_TYPES:
        need = f"one of {', '.join(MODEL_TYPES)} (for any other model write a layer file)"
        raise InputError(fields.path("model_type"), model_type, need)
    return MODEL_TYPES[model_type]


def model_from_config(
    config: object, options: CacheOptions = DEFAULT_OPTIONS, *, draft: object = None, where: str = "config"
) -> ModelStack:
    """What a model with this parsed Hugging Face `config.json` stores.

    Args:
        config: The parsed JSON object; `model_type` picks the model.
        options: How it is served.
        draft: The parsed `config.json` of a draft model served beside it (EAGLE and its kin),
            with the same parallelism, dtype and block size.
        where: How errors call the file.

    Raises:
        InputError: A field is missing or wrong, the model type is unknown, or an option is
            given that the model does not heed.

    >>> stack = model_from_config(preset_config("qwen3-next-80b"), CacheOptions(tensor_parallel=2))
    >>> print(stack.notes[0])
    attention block raised from 16 to 544 tokens in 12 layers: their page of 557,056 bytes
    must hold the 548,864 bytes of 'model.layers.0.linear_attn'
    """
    fields = Fields(config, where)
    stack = _family(fields).stack(fields, options)
    if draft is not None:
        stack = join_draft(stack, _draft_stack(draft, options))
    return stack if options.hybrid else keep_everything(stack)


def _draft_stack(draft: object, options: CacheOptions) -> ModelStack:
    if is_layer_file(draft):
        return ModelStack(decoder=(), drafts=layers_from_json(draft, "draft"))
    fields = Fields(draft, "draft")
    shared = CacheOptions(tensor_parallel=options.tensor_parallel, kv_cache_dtype=options.kv_cache_dtype)
    return _family(fields).stack(fields, shared)


def layers_from_config(
    config: object,
    *,
    backend: str | None = None,
    indexer: str | None = None,
    num_mtp_layers: int = 0,
    where: str = "config",
) -> tuple[CacheLayer, ...]:
    """The cache layers of a parsed Hugging Face `config.json`, one worker, no draft.

    Args:
        config: The parsed JSON object; `model_type` picks the model.
        backend: `flashinfer`, `flashinfer-bf16` or `flashmla`.
        indexer: `fp8` or `mxfp4`.
        num_mtp_layers: Multi-token-prediction layers in use.
        where: How errors call the file.

    Raises:
        InputError: A field is missing or wrong, or the model type is unknown.

    >>> len(layers_from_config(preset_config("deepseek-v4-pro")))
    243
    """
    options = CacheOptions(backend=backend, indexer=indexer, num_mtp_layers=num_mtp_layers)
    return model_from_config(config, options, where=where).layers


def is_layer_file(value: object) -> bool:
    """Whether parsed JSON is a layer file rather than a `config.json`."""
    return isinstance(value, dict) and "layers" in value and "model_type" not in value


def uses_indexer(value: object) -> bool:
    """Whether a parsed `config.json` is of a model whose indexer rows come in several formats."""
    return isinstance(value, dict) and value.get("model_type") in deepseek_v4.MODEL_TYPES


def read_model(model: str) -> object:
    """The parsed JSON behind what a user typed: a preset's name, or a file's path.

    Raises:
        InputError: It is neither, or the file is no JSON.
    """
    if model in PRESETS + OTHER_PRESETS:
        return preset_config(model)
    path = Path(model)
    if not model or ((not path.suffix or path.suffix[1].isdigit()) and not is_there(path)):
        names = ", ".join(PRESETS + OTHER_PRESETS)
        raise InputError("model", model, f"{names}, or the path of a config.json or a layer file")
    return read_json(path)


def heeded_options(value: object) -> frozenset[str]:
    """Names of the fields of `CacheOptions` that the family of a parsed `config.json` takes.

    Raises:
        InputError: The model type is missing or unknown.

    >>> sorted(heeded_options({"model_type": "kimi_linear"}))
    ['block_size', 'kv_cache_dtype']
    """
    return frozenset(_family(text_fields(Fields(value, "config"))).heeds)


def default_max_model_len(value: object) -> int | None:
    """The longest request that a parsed `config.json` is made for, tokens; None where it does not say.

    Raises:
        InputError: A field that says it is no positive integer.
    """
    if is_layer_file(value) or not isinstance(value, dict):
        return None
    fields = text_fields(Fields(value, "config"))
    for name in ("max_position_embeddings", "model_max_length"):
        if fields.get(name) is not None:
            return fields.optional_integer(name)
    defaults = gemma3.DEFAULTS.get(str(fields.get("model_type")))
    return defaults.max_tokens if defaults else None


def load_model(
    model: str, options: CacheOptions = DEFAULT_OPTIONS, *, draft: str | None = None
) -> ModelStack:
    """What a preset, a `config.json` or a layer file stores.

    A layer file states its own rows for one worker: no option applies to it, and it
    is one piece (it has no decoder layers to put on stages).

    Args:
        model: A preset's name or a path.
        options: How it is served.
        draft: A draft model beside it, named in the same way.

    Raises:
        InputError: The model cannot be read, one of its fields is wrong, or an option is
            given that it does not heed.
    """
    value = read_model(model)
    beside = None if draft is None else read_model(draft)
    if not is_layer_file(value):
        return model_from_config(value, options, draft=beside, where=model)
    options.refuse_but((), "a layer file, which states its own rows")
    stack = ModelStack(decoder=(), drafts=layers_from_json(value, model))
    return stack if beside is None else join_draft(stack, _draft_stack(beside, options))


def load_layers(
    model: str,
    *,
    backend: str | None = None,
    indexer: str | None = None,
    num_mtp_layers: int = 0,
) -> tuple[CacheLayer, ...]:
    """The cache layers of a preset, a `config.json` or a layer file, one worker, no draft.

    A layer file states its own rows, so `backend`, `indexer` and `num_mtp_layers`
    do not apply to it.

    Args:
        model: A preset's name or the path of a JSON file.
        backend: `flashinfer`, `flashinfer-bf16` or `flashmla`, where the model takes one.
        indexer: `fp8` or `mxfp4`, where the model has an indexer.
        num_mtp_layers: Multi-token-prediction layers in use.

    Returns:
        The layers in the engine's order; sizes are in bytes.

    Raises:
        InputError: The model cannot be read, or one of its fields is wrong.

    Source: the models' public `config.json`; what is stored for each follows vLLM 0.32.

    >>> [layer.name for layer in load_layers("deepseek-v4-flash")[:2]]
    ['model.layers.0.attn.swa_cache', 'model.layers.1.attn.swa_cache']
    """
    value = read_model(model)
    if is_layer_file(value):
        return layers_from_json(value, model)
    return layers_from_config(
        value, backend=backend, indexer=indexer, num_mtp_layers=num_mtp_layers, where=model
    )
