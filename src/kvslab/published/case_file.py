"""Public reports of cache capacity as data: who printed which number for which layers.

A *case file* lists reports.  Each has a setup, the inputs that its source gives and
the numbers that it prints, as printed::

    {"cases": [{"id", "what", "source", "url", "model", "release", "slab",
                "setup": {"model"?, "config"?, "draft"?, "options"?, "layers"?: [{"num_layers", ...}]},
                "inputs"?: {"max_model_len"?, "max_in_flight_tokens"?, "dcp"?, "num_extra_states"?,
                            "num_blocks"? | "budget_bytes"? | "budget_gib"?},
                "numbers": [{"quantity", "value", "unit"?, "formula"?, "price"?, "group"?,
                             "baseline"?, and any input that differs}], "notes"?}]}

A setup names a preset (`model`) or holds a `config`, with the `options` of
`kvslab.models.CacheOptions` and a `draft` beside it; `backend` and `indexer` may stand
there directly.  An entry of `layers` is one of a layer file, without a name,
`num_layers` times.

Source: `cases.json`, where every report names its own.
"""

from dataclasses import dataclass, replace
from functools import lru_cache
from importlib import resources
from typing import Any

from kvslab.capacity import FORMULAS, PRICES
from kvslab.errors import InputError
from kvslab.files import Fields, parse_json
from kvslab.generations import GENERATIONS, Formula, Price
from kvslab.intmath import UNIT_BYTES
from kvslab.layers import CacheLayer, layers_from_json
from kvslab.models import model_from_config, options_from_json, preset_config

FIXED = (
    "block_stride",
    "block_size",
    "tuple_bytes",
    "num_tuples",
    "group_bytes",
    "group_blocks",
    "blocks_per_request",
    "admission",
    "first_block_past_int31",
)
POOL = (
    "num_blocks",
    "pool_tokens",
    "pool_tokens_per_group",
    "tokens",
    "concurrency",
    "auto_fit_engine",
    "auto_fit_exact",
)
"""The quantities that grow with the budget; `auto_fit_exact` pays for the null block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """What the source says was asked for; None where it does not say.

    Args:
        max_model_len: Tokens of the longest request.
        max_in_flight_tokens: Tokens scheduled but not settled; only windows depend on it.
        dcp: Decode context parallel size.
        num_extra_states: States of a recurrent layer beside the one that a request is in:
            one with prefix caching, one for each speculative token.
        num_blocks: Blocks of the pool.
        budget_bytes: The pool, where the source gives it exactly.
        budget_gib: The pool as printed, rounded to 0.01 GiB.
    """

    max_model_len: int | None = None
    max_in_flight_tokens: int = 1
    dcp: int = 1
    num_extra_states: int = 0
    num_blocks: int | None = None
    budget_bytes: int | None = None
    budget_gib: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StatedNumber:
    """One number of a report.

    Args:
        quantity: One of `FIXED` or `POOL`.
        value: As printed in the source.
        inputs: The report's inputs, with what the source changes for this number.
        unit: Of a size.
        formula: How concurrency is counted.
        price: What admission charges for a block.
        group: Index of the cache group.
        baseline: Where given, the id of another case: `value` says by how many per
            cent that case's quantity exceeds this one's.
    """

    quantity: str
    value: str
    inputs: Inputs
    unit: str = "B"
    formula: Formula = "block_sum"
    price: Price = "stride"
    group: int = 0
    baseline: str | None = None

    @property
    def rule(self) -> str:
        """The formula or price that the number depends on, empty where on none."""
        match self.quantity:
            case "tokens" | "concurrency":
                return self.formula
            case "admission" | "auto_fit_engine" | "auto_fit_exact":
                return f"{self.price} price"
            case _:
                return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A public report.

    Args:
        id: Unique.
        what: One line.
        source: Short name of the source.
        url: Its address.
        model: What was served.
        release: The engine, as far as the source tells.
        slab: The generation that plans the layers.
        layers: The cache layers of one worker.
        numbers: What was printed.
    """

    id: str
    what: str
    source: str
    url: str
    model: str
    release: str
    slab: str
    layers: tuple[CacheLayer, ...]
    numbers: tuple[StatedNumber, ...]


_TEXTS = ("id", "what", "source", "url", "model", "release", "slab")
_INPUTS = (
    "max_model_len",
    "max_in_flight_tokens",
    "dcp",
    "num_extra_states",
    "num_blocks",
    "budget_bytes",
    "budget_gib",
)
_CHOICES = {
    "quantity": FIXED + POOL,
    "value": (),
    "unit": tuple(UNIT_BYTES),
    "formula": FORMULAS,
    "price": PRICES,
    "baseline": (),
}


def _layers(fields: Fields) -> tuple[CacheLayer, ...]:
    """The layers of a `setup`: a model's, then those listed as `num_layers` of a layer file's entry."""
    listed: list[dict[str, object]] = []
    for entry in fields.sequence("layers") if "layers" in fields else []:
        spec = dict(entry) if isinstance(entry, dict) else {}
        num_layers = Fields(spec, fields.path("layers")).integer("num_layers")
        del spec["num_layers"]
        listed += [{"name": f"{spec.get('kind')}.{len(listed) + i}", **spec} for i in range(num_layers)]
    extra = layers_from_json({"layers": listed}, fields.where) if listed else ()
    return (*_model_layers(fields), *extra)


def _model_layers(fields: Fields) -> tuple[CacheLayer, ...]:
    if "model" not in fields and "config" not in fields:
        return ()
    options = options_from_json(
        {name: fields.get(name) for name in ("backend", "indexer") if name in fields}
        | dict(Fields(fields.get("options") or {}, fields.path("options")).items()),
        fields.path("options"),
    )
    config = fields.get("config") if "config" in fields else preset_config(fields.text("model"))
    return model_from_config(config, options, draft=fields.get("draft"), where=fields.path("config")).layers


def _inputs(fields: Fields, default: Inputs) -> Inputs:
    given: dict[str, Any] = {
        name: fields.text(name) if name == "budget_gib" else fields.integer(name)
        for name in _INPUTS
        if name in fields
    }
    return replace(default, **given)


def _number(fields: Fields, inputs: Inputs) -> StatedNumber:
    fields.refuse_unknown((*_CHOICES, "group", *_INPUTS))
    given: dict[str, Any] = {
        name: fields.text(name, choices=choices) for name, choices in _CHOICES.items() if name in fields
    }
    group = fields.integer("group", default=0, minimum=0)
    return StatedNumber(inputs=_inputs(fields, inputs), group=group, **given)


def _case(fields: Fields) -> Case:
    fields.refuse_unknown((*_TEXTS, "setup", "inputs", "numbers", "notes"))
    inputs = _inputs(Fields(fields.get("inputs") or {}, fields.path("inputs")), Inputs())
    entries = enumerate(fields.sequence("numbers"))
    return Case(
        **{name: fields.text(name, choices=GENERATIONS if name == "slab" else ()) for name in _TEXTS},
        layers=_layers(Fields(fields.get("setup"), fields.path("setup"))),
        numbers=tuple(_number(Fields(entry, fields.path(f"numbers[{i}]")), inputs) for i, entry in entries),
    )


def parse_cases(value: object, where: str = "cases.json") -> tuple[Case, ...]:
    """Read the parsed JSON of a case file.

    Raises:
        InputError: A field is missing, unknown or wrong, or two cases share an id.
    """
    entries = Fields(value, where).sequence("cases")
    cases = tuple(_case(Fields(entry, f"{where}: cases[{i}]")) for i, entry in enumerate(entries))
    if len({case.id for case in cases}) < len(cases):
        raise InputError(f"{where}: id", len(cases), "an id that no other case has")
    return cases


@lru_cache(maxsize=1)
def load_cases() -> tuple[Case, ...]:
    """Every case of `cases.json`.

    >>> load_cases()[0].id
    'vllm-44376'
    """
    text = resources.files(__package__).joinpath("cases.json").read_text(encoding="utf-8")
    return parse_cases(parse_json(text, "cases.json"))
