"""The planner vectors in their plain form: layers as a layer file states them, answers by layer name."""

import json
import lzma
from functools import cache
from pathlib import Path
from typing import Any

from kvslab.layers import CacheLayer, layers_from_json

DATA = Path(__file__).parent / "data"


def _plain(vector: dict[str, Any]) -> dict[str, Any]:
    names = vector["layers"]
    specs = [vector["specs"][i] for i in vector["layer_specs"]]
    expect = {}
    for release, answer in vector["expect"].items():
        answer = dict(answer)
        if "refused" not in answer:
            answer["groups"] = [
                {
                    "layers": [names[i] for i in group["layers"]],
                    "pages": group["pages"]
                    if isinstance(group["pages"], list)
                    else [group["pages"]] * len(group["layers"]),
                }
                for group in answer["groups"]
            ]
            if answer["offsets"] is not None:
                answer["offsets"] = dict(zip(names, answer["offsets"], strict=True))
        expect[release] = answer
    plain = {key: value for key, value in vector.items() if key not in ("specs", "layer_specs")}
    plain["layers"] = [{"name": name, **spec} for name, spec in zip(names, specs, strict=True)]
    return plain | {"expect": expect}


@cache
def load_vectors() -> tuple[dict[str, Any], ...]:
    """All 158 vectors, in the form of the file they were made from."""
    packed = json.loads(lzma.decompress((DATA / "planner_vectors.json.xz").read_bytes()))
    return tuple(_plain(vector) for vector in packed)


@cache
def vector_layers(vector_id: str) -> tuple[CacheLayer, ...]:
    """The layers of one vector."""
    vector = next(v for v in load_vectors() if v["id"] == vector_id)
    return layers_from_json({"layers": vector["layers"]}, vector_id)
