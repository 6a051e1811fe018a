"""What others printed, and the same numbers derived again.

`numbers` is what pull requests state and releases gave, `derivation` computes it;
`case_file` is public reports of capacity as data (`cases.json`), `cases` derives them.
"""

from kvslab.published.case_file import Case, Inputs, StatedNumber, load_cases, parse_cases
from kvslab.published.cases import CaseResult, check_cases, derive_number, shared_budgets
from kvslab.published.derivation import Reproduction, budget_interval, derive, reproduce, slab_of
from kvslab.published.numbers import (
    BUDGETS,
    MEASURED,
    PR_44454,
    PR_44454_URL,
    PR_48993,
    PR_48993_URL,
    PUBLISHED,
    STATED,
    Budget,
    PublishedNumber,
    Setup,
    after,
    before,
)

__all__ = [
    "BUDGETS",
    "MEASURED",
    "PR_44454",
    "PR_44454_URL",
    "PR_48993",
    "PR_48993_URL",
    "PUBLISHED",
    "STATED",
    "Budget",
    "Case",
    "CaseResult",
    "Inputs",
    "PublishedNumber",
    "Reproduction",
    "Setup",
    "StatedNumber",
    "after",
    "before",
    "budget_interval",
    "check_cases",
    "derive",
    "derive_number",
    "load_cases",
    "parse_cases",
    "reproduce",
    "shared_budgets",
    "slab_of",
]
