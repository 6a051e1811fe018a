"""Which keys does an indexer miss when its keys, or its queries too, are smaller?

Scores are those of DeepSeek-V4's indexer, `sum_h w[h] * relu(q[h] . k[j])` with 64 heads.
Exact scores come from the bfloat16 keys and queries; every format is scored on what it
stores.  *Recall* is the share of the exact top k that the format's top k holds.  *Lost mass*
is the share of the exact top k's summed scores that the format's choice misses: a swap of
two nearly equal keys costs recall and hardly any mass.  Random keys are pessimistic, since
ranking among them is mostly noise; the planted needles show what a user would notice.

Key sets: `gaussian`; `heavy` (Student's t with 3 degrees of freedom); `outlier` (4 of 128
channels of the keys times 16); `needle` (Gaussian, with 16 keys a query
that point its way).  Formats: `fp8` (queries and keys), `mxfp4 keys` (bfloat16 queries),
`mxfp4 both`; each without and with a 128-point Hadamard rotation of queries and keys, which
leaves exact scores as they are.

Writes `results/indexer_recall.csv`, one row for a key set, a number of keys, a format, a
rotation, a rule and k: `keys`, `num_keys`, `format`, `rotated`, `rule`, `k`, `recall`,
`recall_95`, `lost_mass`, `lost_mass_95`, `needle_recall`, `needle_recall_exact` (means over
seeds; `_95` is the half width of Student's interval over seeds), `seeds`, `queries` (a
seed), and what measured it.
"""

import argparse
import math
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from kvslab import mxfp4
from kvslab.mxfp4 import Rule, fp8
from kvslab.results.records import machine, write_record

HEADS = 64
NEEDLES = 16
NEEDLE_STRENGTH = 4.0
STUDENT_95 = {1: math.nan, 2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365}
KEYS_AT_ONCE = 8192


def hadamard() -> torch.Tensor:
    """The 128-point Hadamard matrix, orthonormal."""
    matrix = torch.ones((1, 1))
    while len(matrix) < 128:
        matrix = torch.cat((torch.cat((matrix, matrix), 1), torch.cat((matrix, -matrix), 1)), 0)
    return matrix / math.sqrt(128)


def key_set(name: str, num_keys: int, queries: int, seed: int) -> tuple[torch.Tensor, ...]:
    """Queries `[T, 64, 128]`, weights `[T, 64]`, keys `[N, 128]`, needle positions `[T, 16]`."""
    generator = torch.Generator().manual_seed(seed)
    q = torch.randn((queries, HEADS, 128), generator=generator)
    weights = torch.rand((queries, HEADS), generator=generator)
    keys = torch.randn((num_keys, 128), generator=generator)
    needles = torch.randperm(num_keys, generator=generator)[: queries * NEEDLES].reshape(queries, NEEDLES)
    if name == "heavy":
        chi = torch.randn((3, num_keys, 128), generator=generator).square().sum(dim=0) / 3
        keys = keys / chi.sqrt() / math.sqrt(3)
    elif name == "outlier":
        channels = torch.randperm(128, generator=generator)[:4]
        keys[:, channels] *= 16
    elif name == "needle":
        toward = (weights[..., None] * q).sum(dim=1)
        toward = toward / toward.norm(dim=-1, keepdim=True)
        keys[needles] += NEEDLE_STRENGTH * toward[:, None, :]
    return q.to(torch.bfloat16), weights, keys.to(torch.bfloat16), needles


def stored(x: torch.Tensor, kind: str, rule: Rule) -> torch.Tensor:
    """Rows as a format gives them back, float32."""
    flat = x.reshape(-1, 128)
    match kind:
        case "fp8":
            values, scales = fp8.quantize(flat)
            wide = fp8.expanded(values, scales[:, None].view(torch.uint8))
        case "mxfp4":
            wide = mxfp4.dequantize(*mxfp4.quantize(flat, rule=rule))
        case _:
            wide = flat.to(torch.float32)
    return wide.reshape(x.shape)


def scored(q: torch.Tensor, weights: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """Logits `[T, N]`, a few thousand keys at a time."""
    parts = []
    for start in range(0, len(keys), KEYS_AT_ONCE):
        heads = torch.relu_(q.reshape(-1, 128) @ keys[start : start + KEYS_AT_ONCE].T)
        parts.append((heads.reshape(*q.shape[:2], -1) * weights[..., None]).sum(dim=1))
    return torch.cat(parts, dim=1)


def chosen(scores: torch.Tensor, k: int) -> torch.Tensor:
    """Which keys are in each query's top k, bool `[T, N]`."""
    _, indices = mxfp4.topk(scores, k)
    return torch.zeros_like(scores, dtype=torch.bool).scatter_(1, indices.to(torch.int64), True)


def formats(name: str, num_keys: int) -> Iterator[tuple[str, str, str, bool, Rule]]:
    """Format, its query and key kinds, rotation, rule; the other rules at one size only."""
    for rotated in (False, True):
        yield "fp8", "fp8", "fp8", rotated, Rule.VLLM
        yield "mxfp4 keys", "bf16", "mxfp4", rotated, Rule.VLLM
        yield "mxfp4 both", "mxfp4", "mxfp4", rotated, Rule.VLLM
    if name == "gaussian" and num_keys <= 65_536:
        for rule in Rule:
            if rule is not Rule.VLLM:
                yield "mxfp4 both", "mxfp4", "mxfp4", False, rule


def interval(samples: list[float]) -> float:
    """Half width of the 95 % interval of a mean over seeds."""
    count = len(samples)
    mean = sum(samples) / count
    if count < 2:
        return math.nan
    spread = math.sqrt(sum((s - mean) ** 2 for s in samples) / (count - 1))
    return STUDENT_95[count] * spread / math.sqrt(count)


def measure(name: str, num_keys: int, queries: int, seeds: int, ks: list[int]) -> list[dict[str, Any]]:
    """All formats on one key set."""
    matrix = hadamard()
    found: dict[tuple[Any, ...], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for seed in range(seeds):
        q, weights, keys, needles = key_set(name, num_keys, queries, seed)
        exact = scored(q.to(torch.float32), weights, keys.to(torch.float32))
        best = {k: chosen(exact, k) for k in ks}
        turned = [(x.to(torch.float32) @ matrix).to(torch.bfloat16) for x in (q, keys)]
        for format_name, query_kind, key_kind, rotated, rule in formats(name, num_keys):
            inputs = turned if rotated else (q, keys)
            scores = scored(stored(inputs[0], query_kind, rule), weights, stored(inputs[1], key_kind, rule))
            for k in ks:
                pick = chosen(scores, k)
                mass = (exact * pick).sum(dim=1) / (exact * best[k]).sum(dim=1)
                into = found[format_name, rotated, rule, k]
                into["recall"].append(float((pick & best[k]).sum()) / (k * queries))
                into["lost_mass"].append(float((1 - mass).mean()))
                if name == "needle":
                    into["needle_recall"].append(float(pick.gather(1, needles).double().mean()))
                    into["needle_recall_exact"].append(float(best[k].gather(1, needles).double().mean()))
    rows = []
    for (format_name, rotated, rule, k), samples in found.items():
        row: dict[str, Any] = {"keys": name, "num_keys": num_keys, "format": format_name}
        row |= {"rotated": rotated, "rule": str(rule), "k": k}
        for field, values in samples.items():
            row[field] = round(sum(values) / len(values), 6)
            if field in ("recall", "lost_mass"):
                row[f"{field}_95"] = round(interval(values), 6)
        rows.append(row | {"seeds": seeds, "queries": queries})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", type=Path, default=Path("results"), help="directory of the records")
    parser.add_argument("--num-keys", type=int, nargs="*", default=[16_384, 65_536, 262_144])
    parser.add_argument("--sets", nargs="*", default=["gaussian", "heavy", "outlier", "needle"])
    parser.add_argument("--queries", type=int, default=4)
    parser.add_argument("--seeds", type=int, nargs="*", default=[5, 5, 3], help="one for each --num-keys")
    parser.add_argument("--k", type=int, nargs="*", default=[512, 1024])
    options = parser.parse_args()
    facts = machine(("torch", "numba"))
    rows: list[dict[str, Any]] = []
    for num_keys, seeds in zip(options.num_keys, options.seeds, strict=True):
        for name in options.sets:
            start = time.perf_counter()
            found = measure(name, num_keys, options.queries, seeds, options.k)
            print(f"{name}, {num_keys:,} keys ({time.perf_counter() - start:.0f} s)")
            for row in found:
                rotated = "rotated" if row["rotated"] else ""
                print(
                    f"  {row['format']:12} {rotated:8} {row['rule']:13} k {row['k']:5}"
                    f"  recall {row['recall']:.3f}  lost mass {row['lost_mass']:.4f}"
                    f"  {row.get('needle_recall', '')}"
                )
            rows += [row | facts for row in found]
            write_record(options.results, "indexer_recall", rows)


if __name__ == "__main__":
    main()
