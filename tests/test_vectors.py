"""Guards the planner against drifting from the engine: 158 stacks, three releases, no tolerance.

A plan that is off by one alignment unit still looks plausible; only the releases'
own answers tell.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from kvslab.errors import RefusedError
from kvslab.generations import generation_named
from kvslab.plan import Plan
from vectors import load_vectors, vector_layers

RELEASES = {"0.22.1": "padded", "0.26.0": "bucketed", "0.27.0": "overlay"}


def _cases() -> Iterator[Any]:
    for vector in load_vectors():
        for release, slab in RELEASES.items():
            if release in vector["expect"]:
                yield pytest.param(vector, vector["expect"][release], slab, id=f"{vector['id']}-{slab}")


def test_the_vectors_are_all_here() -> None:
    vectors = load_vectors()
    assert len(vectors) == 158
    accepted = [sum(release in vector["expect"] for vector in vectors) for release in RELEASES]
    assert accepted == [105, 158, 158]


@pytest.mark.parametrize(("vector", "answer", "slab"), list(_cases()))
def test_plan_equals_the_releases(vector: dict[str, Any], answer: dict[str, Any], slab: str) -> None:
    generation, layers = generation_named(slab), vector_layers(vector["id"])
    if "refused" in answer:
        with pytest.raises(RefusedError, match=r"page of 32,768 bytes"):
            generation.lay_out(layers, packed=vector["packed_opt_in"])
        return
    layout = generation.lay_out(layers, packed=vector["packed_opt_in"])
    plan = Plan(
        slab=layout, budget_bytes=vector["budget_bytes"], num_blocks_override=vector["num_blocks_override"]
    )
    groups = [
        {"layers": [layer.name for layer in group.layers], "pages": list(group.page_bytes)}
        for group in layout.groups
    ]
    assert groups == answer["groups"]
    assert layout.block_stride == answer["block_stride"]
    assert plan.num_blocks == answer["num_blocks"]
    if answer["offsets"] is not None:
        assert layout.offset_of == answer["offsets"]
