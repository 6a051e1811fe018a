"""The configs under `data/configs`, and the public reports that are derived from configs alone."""

import json
from functools import cache
from pathlib import Path
from typing import Any

from kvslab.published import Case, parse_cases

DATA = Path(__file__).parent / "data"


@cache
def fixture(name: str) -> Any:
    """A parsed config of `data/configs`."""
    return json.loads((DATA / "configs" / f"{name}.json").read_text(encoding="utf-8"))


@cache
def model_cases() -> tuple[Case, ...]:
    """The reports of `data/model_cases.json`, with the configs that they name."""
    file = json.loads((DATA / "model_cases.json").read_text(encoding="utf-8"))
    for case in file["cases"]:
        setup = case["setup"]
        setup |= {key: fixture(setup[key]) for key in ("config", "draft") if key in setup}
    return parse_cases(file, "model_cases.json")
