"""Guards what the engine tells its users: blocks per request, price, automatic length and concurrency.

All four releases, all 158 stacks, no tolerance but the one of a printed float.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from kvslab.capacity import Load, summarize
from kvslab.generations import generation_named
from kvslab.plan import Plan
from vectors import load_vectors, vector_layers

SLABS = {"0.22.1": "padded", "0.26.0": "bucketed", "0.27.0": "overlay", "0.32.0": "standard"}


def _cases() -> Iterator[Any]:
    for vector in load_vectors():
        for release, answer in vector["expect"].items():
            if "refused" not in answer:
                yield pytest.param(vector, answer, SLABS[release], id=f"{vector['id']}-{release}")


@pytest.mark.parametrize(("vector", "answer", "slab"), list(_cases()))
def test_capacity_equals_the_releases(vector: dict[str, Any], answer: dict[str, Any], slab: str) -> None:
    generation = generation_named(slab)
    layout = generation.lay_out(vector_layers(vector["id"]), packed=vector["packed_opt_in"])
    plan = Plan(
        slab=layout, budget_bytes=vector["budget_bytes"], num_blocks_override=vector["num_blocks_override"]
    )
    load = Load.of(vector["max_model_len"], max_in_flight_tokens=vector["max_in_flight_tokens"])
    summary = summarize(plan, generation, load)
    assert list(summary.blocks_per_request) == answer["blocks_per_request"]
    assert summary.admission_bytes[generation.price] == answer["admission_bytes"]
    assert summary.auto_fit_engine == answer["auto_fit_max_model_len"]
    assert float(summary.max_concurrency[generation.formula]) == pytest.approx(
        answer["max_concurrency"], rel=1e-15
    )
