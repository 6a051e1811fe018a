"""A chapter's parameters: which it takes, and whether what a reader gave can be used."""

import ast
import re
from collections.abc import Collection
from dataclasses import dataclass

from kvslab.capacity import Load, max_concurrency
from kvslab.errors import BudgetError, InputError
from kvslab.intmath import parse_bytes
from kvslab.plan import Plan
from kvslab.tables.serving import published_budget_bytes

PUBLISHED = "published"
"""The budget that a chapter has where nobody asks for another: the published one of its backend."""

_TITLES = {"deepseek-v4-pro": "DeepSeek-V4-Pro", "deepseek-v4-flash": "DeepSeek-V4-Flash"}


def one_of(field: str, value: object, allowed: Collection[object]) -> None:
    """Check a chapter's parameter against what its tables hold.

    Raises:
        InputError: The value is none of them.

    >>> one_of("model", "deepseek-v5", ("deepseek-v4-pro", "deepseek-v4-flash"))
    Traceback (most recent call last):
    kvslab.errors.InputError: model: got 'deepseek-v5', need one of deepseek-v4-pro, deepseek-v4-flash
    """
    if value not in allowed:
        raise InputError(field, value, f"one of {', '.join(map(str, allowed))}")


def budget_bytes(budget: str | int, backend: str) -> int:
    """A chapter's budget in bytes: the published one of its backend, a number, or text with a unit.

    Raises:
        InputError: It is none of these.

    >>> budget_bytes("published", "flashmla"), budget_bytes("40GiB", "flashmla")
    (28017560448, 42949672960)
    """
    return published_budget_bytes(backend) if budget == PUBLISHED else parse_bytes(budget)


def check_room(plan: Plan, load: Load) -> None:
    """Check that a plan holds more than one batch in flight, so that requests can be compared.

    Raises:
        BudgetError: It does not.

    >>> from kvslab import generation_named, load_layers
    >>> slab = generation_named("overlay").lay_out(load_layers("deepseek-v4-pro"))
    >>> check_room(Plan(slab=slab, budget_bytes=2**30), Load.of(1_048_576, max_in_flight_tokens=8192))
    Traceback (most recent call last):
    kvslab.errors.BudgetError: budget: got 1,073,741,824 bytes, need more than 8,192 tokens in flight take
    """
    if not max_concurrency(plan.slab.groups, plan.num_blocks, load, "steady"):
        tokens = load.max_in_flight_tokens
        raise BudgetError(
            f"budget: got {plan.budget_bytes:,} bytes, need more than {tokens:,} tokens in flight take"
        )


def model_title(model: str) -> str:
    """How text and captions call a preset; a file keeps its path.

    >>> model_title("deepseek-v4-flash")
    'DeepSeek-V4-Flash'
    """
    return _TITLES.get(model, model)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A parameter of a chapter, as its `parameters` cell states it.

    Args:
        name: What Papermill calls it.
        default: Its value in the book.
        meaning: The comment beside it.
    """

    name: str
    default: object
    meaning: str


def parameters_of(chapter: str) -> tuple[Parameter, ...]:
    r"""The parameters that a chapter takes, from its Markdown source.

    >>> text = "```{code-cell} python\n:tags: [parameters]\n\nseed = 0  # of the noise\n```"
    >>> parameters_of(text)
    (Parameter(name='seed', default=0, meaning='of the noise'),)
    """
    cell = re.search(r"^```\{code-cell\}.*\n:tags: \[parameters\b.*\n((?s:.*?))^```$", chapter, re.MULTILINE)
    return assigned(cell[1]) if cell else ()


def assigned(source: str) -> tuple[Parameter, ...]:
    """The names that a cell assigns, with their values and comments."""
    lines = source.splitlines()
    found = []
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            meaning = lines[node.lineno - 1].partition("  # ")[2]
            found.append(
                Parameter(name=node.targets[0].id, default=ast.literal_eval(node.value), meaning=meaning)
            )
    return tuple(found)
