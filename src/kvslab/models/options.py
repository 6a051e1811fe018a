"""What a model's cache layers depend on beside its config, and what comes back.

Every model takes the same `CacheOptions` and returns the same `ModelStack`, so a
new option or a new model changes no signature.  A model names the options that it
heeds; a given option that it does not heed is refused, never ignored.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any

from kvslab.errors import InputError
from kvslab.files import Fields
from kvslab.formats import BACKENDS, INDEXER_FORMATS, KV_DTYPES, Backend, backend_named
from kvslab.intmath import checked_int
from kvslab.layers import CacheLayer, checked_stack

DEFAULT_BACKEND = "flashinfer"
"""The backend where none is given."""
STATE_DTYPES = ("auto", "bf16", "fp32")


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheOptions:
    """How a model is served, as far as it decides what its cache layers are.

    Args:
        backend: Name of the attention backend of DeepSeek-V4; None for the default.
        indexer: Row format of the indexer's keys; None for the model's default.
        num_mtp_layers: Multi-token-prediction layers in use.
        num_speculative_tokens: Tokens drafted a step; a convolution state keeps as many more.
        tensor_parallel: Workers that share the heads of every layer.
        pipeline_parallel: Pipeline stages; or the decoder layers of each stage.
        kv_cache_dtype: One of `KV_DTYPES`.
        ssm_dtype: What recurrent states are kept in: `auto` (the config's), `bf16`, `fp32`.
        block_size: Tokens of one attention block; None for the engine's default.
        hybrid: Whether windows and chunks free what they no longer read. Off, they keep
            everything (`--disable-hybrid-kv-cache-manager`).

    Raises:
        InputError: A value is out of range.

    >>> CacheOptions(tensor_parallel=0)
    Traceback (most recent call last):
    kvslab.errors.InputError: tensor_parallel: got 0, need an integer from 1 to 1,048,576
    """

    backend: str | None = None
    indexer: str | None = None
    num_mtp_layers: int = 0
    num_speculative_tokens: int = 0
    tensor_parallel: int = 1
    pipeline_parallel: int | tuple[int, ...] = 1
    kv_cache_dtype: str = "auto"
    ssm_dtype: str = "auto"
    block_size: int | None = None
    hybrid: bool = True

    def __post_init__(self) -> None:
        for name, value, choices in (
            ("backend", self.backend, tuple(BACKENDS)),
            ("indexer", self.indexer, INDEXER_FORMATS),
            ("kv_cache_dtype", self.kv_cache_dtype, KV_DTYPES),
            ("ssm_dtype", self.ssm_dtype, STATE_DTYPES),
        ):
            if value is not None and value not in choices:
                raise InputError(name, value, f"one of {', '.join(choices)}")
        checked_int("num_speculative_tokens", self.num_speculative_tokens, minimum=0, maximum=2**20)
        checked_int("tensor_parallel", self.tensor_parallel, maximum=2**20)
        sizes = self.pipeline_parallel
        for size in (sizes,) if isinstance(sizes, int) else sizes:
            checked_int("pipeline_parallel", size, maximum=2**20)
        if sizes == ():
            raise InputError("pipeline_parallel", sizes, "at least one stage")
        if self.block_size is not None:
            checked_int("block_size", self.block_size, maximum=2**20)

    @property
    def backend_or_default(self) -> Backend:
        """The attention backend."""
        return backend_named(self.backend or DEFAULT_BACKEND)

    @property
    def num_stages(self) -> int:
        """Pipeline stages."""
        sizes = self.pipeline_parallel
        return sizes if isinstance(sizes, int) else len(sizes)

    def mtp_layers(self, most: int, field: str) -> int:
        """The MTP layers in use, of `most` that the checkpoint holds.

        Raises:
            InputError: More are asked for; `field` says how many there are.
        """
        count = self.num_mtp_layers
        if isinstance(count, bool) or not 0 <= count <= most:
            raise InputError("mtp", count, f"0 to {most} ({field} of the config)")
        return count

    def with_indexer(self, indexer: str) -> "CacheOptions":
        """The same options with another row format of the indexer's keys."""
        return replace(self, indexer=indexer)

    def refuse_but(self, heeded: Collection[str], what: str) -> None:
        """Refuse a given option that is not heeded: ignored, it would give a wrong plan silently.

        Raises:
            InputError: There is one; `what` says what does not heed it.
        """
        for name in self.given():
            if name not in heeded:
                shown = "mtp" if name == "num_mtp_layers" else name
                raise InputError(shown, getattr(self, name), f"no such option for {what}")

    def given(self) -> tuple[str, ...]:
        """Names of the options that differ from their defaults."""
        return tuple(name for name in _NAMES if getattr(self, name) != getattr(DEFAULT_OPTIONS, name))


DEFAULT_OPTIONS = CacheOptions()
"""One worker, no draft, the model's own dtype."""
_NAMES = tuple(CacheOptions.__dataclass_fields__)


def options_from_json(value: object, where: str = "options") -> CacheOptions:
    """Read options from parsed JSON; a list of `pipeline_parallel` gives each stage's layers.

    Raises:
        InputError: There is no option of a name, or a value is out of range.

    >>> options_from_json({"tensor_parallel": 4, "kv_cache_dtype": "fp8"}).given()
    ('tensor_parallel', 'kv_cache_dtype')
    """
    fields = Fields(value, where)
    fields.refuse_unknown(_NAMES)
    given: dict[str, Any] = {name: fields.get(name) for name in _NAMES if name in fields}
    if isinstance(given.get("pipeline_parallel"), list):
        given["pipeline_parallel"] = tuple(given["pipeline_parallel"])
    if not isinstance(given.get("hybrid", True), bool):
        raise InputError(fields.path("hybrid"), given["hybrid"], "true or false")
    return CacheOptions(**given)


EVERY_MODEL = frozenset({"tensor_parallel", "pipeline_parallel"})
"""Options that every model heeds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelStack:
    """What a model stores, decoder layer by decoder layer.

    Args:
        decoder: The cache layers of each decoder layer, in order; empty where a
            layer stores nothing (it reads another layer's cache, or is an MLP).
        drafts: Layers of MTP modules or of a draft model; they follow the last decoder layer.
        notes: What the engine changed and for which layers, one line each.
    """

    decoder: tuple[tuple[CacheLayer, ...], ...]
    drafts: tuple[CacheLayer, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def layers(self) -> tuple[CacheLayer, ...]:
        """Every cache layer, in the order in which the engine meets them."""
        return checked_stack((*(layer for cut in self.decoder for layer in cut), *self.drafts))

    def stages(self, pipeline_parallel: int | tuple[int, ...]) -> tuple[tuple[CacheLayer, ...], ...]:
        """The cache layers of each pipeline stage; drafts stand on the last one.

        Raises:
            InputError: A stage would have no decoder layer or no cache layer, or the
                numbers of layers do not add up to the model's.
        """
        counts = stage_sizes(len(self.decoder), pipeline_parallel)
        stages, start = [], 0
        for i, count in enumerate(counts):
            held = [layer for cut in self.decoder[start : start + count] for layer in cut]
            start += count
            if i == len(counts) - 1:
                held += self.drafts
            if not held:
                raise InputError(
                    "pipeline_parallel",
                    pipeline_parallel,
                    f"stages with cache layers (stage {i}, decoder layers {start - count} to {start - 1},"
                    " stores nothing)",
                )
            stages.append(checked_stack(held))
        return tuple(stages)

    def map_layers(self, change: Callable[[CacheLayer], CacheLayer], *notes: str) -> "ModelStack":
        """The same stack with every layer changed, and notes that say why."""
        return replace(
            self,
            decoder=tuple(tuple(change(layer) for layer in cut) for cut in self.decoder),
            drafts=tuple(change(layer) for layer in self.drafts),
            notes=(*self.notes, *notes),
        )


def stage_sizes(num_layers: int, pipeline_parallel: int | tuple[int, ...]) -> tuple[int, ...]:
    """Decoder layers of each pipeline stage.

    A remainder goes to the stages before the last, one layer each, from the back:
    the last stage holds the output head as well, the first the embedding.

    Raises:
        InputError: There are more stages than layers, or the given sizes do not add up.

    Source: vLLM's `get_pp_indices`; sizes may be given as in `VLLM_PP_LAYER_PARTITION`.

    >>> stage_sizes(61, 4)
    (15, 15, 16, 15)
    >>> stage_sizes(48, (16, 32))
    (16, 32)
    """
    if not isinstance(pipeline_parallel, int):
        if sum(pipeline_parallel) != num_layers:
            need = f"sizes that add up to the model's {num_layers} layers"
            raise InputError("pipeline_parallel", pipeline_parallel, need)
        return pipeline_parallel
    if pipeline_parallel > num_layers:
        raise InputError("pipeline_parallel", pipeline_parallel, f"at most {num_layers}, the model's layers")
    each, rest = divmod(num_layers, pipeline_parallel)
    sizes = [each] * pipeline_parallel
    for i in range(rest):
        sizes[-2 - i] += 1
    return tuple(sizes)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFamily:
    """One way of turning a config into cache layers.

    Args:
        read: Checked fields and options -> the stack.
        heeds: The options, beside `EVERY_MODEL`, that change what comes out.
    """

    read: Callable[[Fields, CacheOptions], ModelStack]
    heeds: frozenset[str]

    def stack(self, fields: Fields, options: CacheOptions) -> ModelStack:
        """Read a model.

        Raises:
            InputError: A field is missing or wrong, or an option is given that the model
                does not heed.
        """
        options.refuse_but(self.heeds | EVERY_MODEL, f"model type {fields.get('model_type')}")
        return self.read(fields, options)
