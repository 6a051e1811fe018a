"""From a model's name, `config.json` or layer file to its cache layers.

A new model is one file here, with a function that turns checked fields into
`CacheLayer`s, and one entry in `MODEL_TYPES`.
"""

from collections.abc import Callable, Mapping
from importlib import resources
from pathlib import Path

from kvslab.errors import MISSING, InputError
from kvslab.formats import Backend, backend_named
from kvslab.inputs import Fields, parse_json, read_json
from kvslab.layers import CacheLayer, layers_from_json
from kvslab.models import deepseek_v4

PRESETS = ("deepseek-v4-pro", "deepseek-v4-flash")

DEFAULT_BACKEND = "flashinfer"
DEFAULT_INDEXER = "mxfp4"


def _deepseek_v4(
    fields: Fields, backend: Backend, indexer: str, num_mtp_layers: int
) -> tuple[CacheLayer, ...]:
    config = deepseek_v4.parse_config(fields)
    return deepseek_v4.cache_layers(config, backend=backend, indexer=indexer, num_mtp_layers=num_mtp_layers)


MODEL_TYPES: Mapping[str, Callable[[Fields, Backend, str, int], tuple[CacheLayer, ...]]] = {
    "deepseek_v4": _deepseek_v4,
}


def preset_config(name: str) -> object:
    """The parsed `config.json` of a preset, as published.

    Raises:
        InputError: There is no preset of that name.
    """
    if name not in PRESETS:
        raise InputError("model", name, f"one of {', '.join(PRESETS)}")
    text = resources.files(__package__).joinpath("presets", f"{name}.json").read_text(encoding="utf-8")
    return parse_json(text, name)


def layers_from_config(
    config: object,
    *,
    backend: str = DEFAULT_BACKEND,
    indexer: str = DEFAULT_INDEXER,
    num_mtp_layers: int = 0,
    where: str = "config",
) -> tuple[CacheLayer, ...]:
    """The cache layers of a parsed Hugging Face `config.json`.

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
    fields = Fields(config, where)
    if "model_type" not in fields:
        need = f"a config.json of one of {', '.join(MODEL_TYPES)}, or a layer file with a list of layers"
        raise InputError(fields.path("model_type"), MISSING, need)
    model_type = fields.text("model_type")
    if model_type not in MODEL_TYPES:
        need = f"one of {', '.join(MODEL_TYPES)} (for any other model write a layer file)"
        raise InputError(fields.path("model_type"), model_type, need)
    return MODEL_TYPES[model_type](fields, backend_named(backend), indexer, num_mtp_layers)


def is_layer_file(value: object) -> bool:
    """Whether parsed JSON is a layer file rather than a `config.json`."""
    return isinstance(value, dict) and "layers" in value and "model_type" not in value


def read_model(model: str) -> object:
    """The parsed JSON behind what a user typed: a preset's name, or a file's path.

    Raises:
        InputError: It is neither, or the file is no JSON.
    """
    if model in PRESETS:
        return preset_config(model)
    path = Path(model)
    if not model or (not path.suffix and not path.exists()):
        raise InputError(
            "model", model, f"{', '.join(PRESETS)}, or the path of a config.json or a layer file"
        )
    return read_json(path)


def default_max_model_len(value: object) -> int | None:
    """The longest request that a parsed `config.json` is made for, tokens; None where it does not say.

    Raises:
        InputError: `max_position_embeddings` is no positive integer.
    """
    if is_layer_file(value) or not isinstance(value, dict):
        return None
    return Fields(value, "config").optional_integer("max_position_embeddings")


def load_layers(
    model: str,
    *,
    backend: str = DEFAULT_BACKEND,
    indexer: str = DEFAULT_INDEXER,
    num_mtp_layers: int = 0,
) -> tuple[CacheLayer, ...]:
    """The cache layers of a preset, a `config.json` or a layer file.

    A layer file states its own rows, so `backend`, `indexer` and `num_mtp_layers`
    do not apply to it.

    Raises:
        InputError: The model cannot be read, or one of its fields is wrong.

    >>> [layer.name for layer in load_layers("deepseek-v4-flash")[:2]]
    ['model.layers.0.attn.swa_cache', 'model.layers.1.attn.swa_cache']
    """
    value = read_model(model)
    if is_layer_file(value):
        return layers_from_json(value, model)
    return layers_from_config(
        value, backend=backend, indexer=indexer, num_mtp_layers=num_mtp_layers, where=model
    )
