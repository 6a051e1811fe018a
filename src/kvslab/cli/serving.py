"""How a model is served: the options of every command that loads one, and the loading."""

from typing import Annotated

import typer

from kvslab.errors import InputError
from kvslab.formats import INDEXER_FORMATS, KV_DTYPES
from kvslab.generations import registered_names
from kvslab.groups import is_latent_stack
from kvslab.layers import CacheLayer
from kvslab.models import CacheOptions, ModelStack, is_layer_file, load_model, read_model, uses_indexer
from kvslab.models.options import DEFAULT_BACKEND

Model = Annotated[
    str, typer.Argument(help="A preset, a Hugging Face config.json, or a layer file.", metavar="MODEL")
]
Backend = Annotated[
    str | None,
    typer.Option(help=f"DeepSeek-V4: flashinfer, flashinfer-bf16 or flashmla. Default {DEFAULT_BACKEND}."),
]
Indexer = Annotated[
    str | None, typer.Option(help="Indexer rows: fp8 or mxfp4. Default mxfp4; fp8 for DeepSeek-V3.2.")
]
Mtp = Annotated[int | None, typer.Option(help="Multi-token-prediction layers in use. Default 0.")]
TensorParallel = Annotated[
    int, typer.Option("--tensor-parallel", "-tp", help="Workers that share the heads of every layer.")
]
PipelineParallel = Annotated[
    str,
    typer.Option("--pipeline-parallel", "-pp", help="Stages; or the layers of each stage, such as 16,32."),
]
KvCacheDtype = Annotated[
    str, typer.Option("--kv-cache-dtype", help=f"Keys and values: {', '.join(KV_DTYPES)}.")
]
BlockSize = Annotated[
    int | None, typer.Option("--block-size", help="Tokens of an attention block. Default: the engine's.")
]
Draft = Annotated[
    str | None, typer.Option("--draft", help="A draft model beside it: a preset, config.json or layer file.")
]
NoHybrid = Annotated[
    bool,
    typer.Option("--disable-hybrid-kv-cache-manager", help="Windows and chunks keep every row."),
]


def options_of(
    backend: str | None = None,
    indexer: str | None = None,
    mtp: int | None = None,
    tensor_parallel: int = 1,
    pipeline_parallel: str = "1",
    kv_cache_dtype: str = "auto",
    block_size: int | None = None,
    no_hybrid: bool = False,
) -> CacheOptions:
    """The options of the library, from the command line's.

    Raises:
        InputError: One is out of range.
    """
    return CacheOptions(
        backend=backend,
        indexer=indexer,
        num_mtp_layers=mtp or 0,
        tensor_parallel=tensor_parallel,
        pipeline_parallel=_stages(pipeline_parallel),
        kv_cache_dtype=kv_cache_dtype,
        block_size=block_size,
        hybrid=not no_hybrid,
    )


def _stages(text: str) -> int | tuple[int, ...]:
    parts = text.split(",")
    if not all(part.strip().isdecimal() and len(part) < 8 for part in parts):
        need = "a number of stages, or the layers of each stage with commas between"
        raise InputError("pipeline_parallel", text, need)
    sizes = tuple(int(part) for part in parts)
    return sizes if len(sizes) > 1 else sizes[0]


def load(model: str, options: CacheOptions, draft: str | None = None) -> ModelStack:
    """The layers of a model; options that a layer file settles itself are refused with it."""
    return load_model(model, options, draft=draft)


def stacks_of(
    model: str, options: CacheOptions, draft: str | None = None
) -> dict[str, tuple[CacheLayer, ...]]:
    """A model's layers for each row format that the user left open, by label."""
    value = read_model(model)
    if is_layer_file(value):
        return {"as given": load(model, options, draft).layers}
    if not uses_indexer(value):
        label = "bf16" if options.kv_cache_dtype == "auto" else options.kv_cache_dtype
        return {label: load(model, options, draft).layers}
    chosen = (options.indexer,) if options.indexer is not None else INDEXER_FORMATS
    return {name: load(model, options.with_indexer(name), draft).layers for name in chosen}


def with_packing(stacks: dict[str, tuple[CacheLayer, ...]]) -> dict[str, str]:
    """Labels of the same stacks packed, where packing has to be opted in, by packed label."""
    return {f"{label}, packed": label for label, layers in stacks.items() if not is_latent_stack(layers)}


Slab = Annotated[str, typer.Option(help=f"Generation of the slab planner: {', '.join(registered_names())}.")]
