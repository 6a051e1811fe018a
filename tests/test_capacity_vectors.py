"""Guards what the engine tells its users: blocks per request, price, automatic length and concurrency.

All four releases, all 158 stacks, no tolerance but the one of a printed float.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from kvslab.capacity import (
    Formula,
    Load,
    Price,
    admission_bytes,
    auto_fit_max_model_len,
    blocks_per_request,
    max_concurrency,
)
from kvslab.groups import CacheGroup
from kvslab.layers import CacheLayer
from vectors import load_vectors, vector_layers

ENGINES: dict[str, tuple[Formula, Price]] = {
    "0.22.1": ("legacy", "tuple"),
    "0.26.0": ("legacy", "tuple"),
    "0.27.0": ("block_sum", "tuple"),
    "0.32.0": ("block_sum", "stride"),
}


def _cases() -> Iterator[Any]:
    for vector in load_vectors():
        for release, answer in vector["expect"].items():
            if "refused" not in answer:
                yield pytest.param(vector, answer, *ENGINES[release], id=f"{vector['id']}-{release}")


def groups_of(vector: dict[str, Any], answer: dict[str, Any]) -> tuple[CacheGroup, ...]:
    """The release's own groups, so that capacity is checked apart from grouping."""
    layers = {layer.name: layer for layer in vector_layers(vector["id"])}
    groups = []
    for group in answer["groups"]:
        members = [
            _scaled(layers[name], page) for name, page in zip(group["layers"], group["pages"], strict=True)
        ]
        groups.append(CacheGroup(layers=tuple(members), page_bytes=tuple(group["pages"])))
    return tuple(groups)


def _scaled(layer: CacheLayer, page: int) -> CacheLayer:
    """A release that makes uniform pages equal grows the block size with the page."""
    if layer.spec.kind.endswith("mla") or layer.spec.kind == "mla_attention" or page == layer.spec.page_bytes:
        return layer
    return CacheLayer(
        name=layer.name,
        spec=layer.spec.with_block_size(layer.spec.block_size * page // layer.spec.page_bytes),
    )


@pytest.mark.parametrize(("vector", "answer", "formula", "price"), list(_cases()))
def test_capacity_equals_the_releases(
    vector: dict[str, Any], answer: dict[str, Any], formula: Formula, price: Price
) -> None:
    groups = groups_of(vector, answer)
    load = Load.of(vector["max_model_len"], max_in_flight_tokens=vector["max_in_flight_tokens"])
    stride = answer["block_stride"]
    assert list(blocks_per_request(groups, load)) == answer["blocks_per_request"]
    assert admission_bytes(groups, stride, load, price) == answer["admission_bytes"]
    longest = auto_fit_max_model_len(
        groups, stride, vector["budget_bytes"], load, price, keep_null_block=False
    )
    assert longest == answer["auto_fit_max_model_len"]
    concurrency = max_concurrency(groups, answer["num_blocks"], load, formula)
    assert float(concurrency) == pytest.approx(answer["max_concurrency"], rel=1e-15)
