"""Does any file make a reader answer with anything but a plan or one clear line?

Ten thousand inputs for each of the four readers of a user's files: config.json, layer
file, startup log, trace.  The inputs are those of `tests/fuzzing.py`, spoilt by structure
and by bytes; the same seed gives the same ones.

What is done is kept beside the record, part by part, so an interrupted run continues; a
change of the code starts it anew.  Exit code 1 and the seed and number of every input
that breaks the rule.
"""

import argparse
import hashlib
import json
import multiprocessing
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import kvslab
from kvslab.errors import PlanError
from kvslab.files import read_json, write_atomically
from kvslab.intmath import checked_int
from kvslab.results.records import machine, write_record

TESTS = Path(__file__).resolve().parent.parent / "tests"
sys.path.insert(0, str(TESTS))

import fuzzing  # noqa: E402  # beside the tests, which use it too

INPUTS_A_PART = 250
SHARED_MEMORY = Path("/dev/shm")


_directory = Path()


def _start(directory: str) -> None:
    """Give this worker process a directory of its own for its inputs."""
    global _directory
    _directory = Path(directory) / str(os.getpid())
    _directory.mkdir()


def run_part(part: tuple[str, int, int, int]) -> dict[str, Any]:
    """Check inputs `start` to `stop - 1` of a reader."""
    reader, seed, start, stop = part
    errors: Counter[str] = Counter()
    found: dict[str, Any] = {"accepted": 0, "slowest_ms": 0.0, "slowest_index": start, "unclear": {}}
    for index in range(start, stop):
        try:
            outcome = fuzzing.check(reader, seed, index, _directory)
        except fuzzing.Unclear as error:
            found["unclear"][str(index)] = str(error)
            continue
        found["accepted"] += outcome.accepted
        if outcome.error:
            errors[outcome.error] += 1
        if outcome.milliseconds > found["slowest_ms"]:
            found |= {"slowest_ms": outcome.milliseconds, "slowest_index": index}
    return found | {"errors": dict(errors)}


def row_of(reader: str, inputs: int, seed: int, parts: list[dict[str, Any]]) -> dict[str, object]:
    """One row of the record."""
    errors: Counter[str] = sum((Counter(part["errors"]) for part in parts), Counter())
    return {
        "reader": reader,
        "inputs": inputs,
        "seed": seed,
        "accepted": sum(part["accepted"] for part in parts),
        "refused": errors.total(),
        "input_errors": errors["InputError"],
        "other_plan_errors": errors.total() - errors["InputError"],
        "unclear": sum(len(part["unclear"]) for part in parts),
        "slowest_ms": round(max(part["slowest_ms"] for part in parts), 1),
    }


def code_hash() -> str:
    """The code that the outcome depends on."""
    digest = hashlib.sha256()
    source = Path(kvslab.__file__).parent
    for path in (TESTS / "fuzzing.py", *sorted(source.rglob("*.py")), *sorted(source.rglob("*.json"))):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def parts_of(readers: list[str], inputs: int, seed: int) -> Iterator[tuple[str, int, int, int]]:
    """Reader, seed, first and last input of each part."""
    for reader, start in product(readers, range(0, inputs, INPUTS_A_PART)):
        yield reader, seed, start, min(inputs, start + INPUTS_A_PART)


def run_all(readers: list[str], inputs: int, seed: int, jobs: int, checkpoint: Path) -> list[dict[str, Any]]:
    """Every part's outcome, in order; those that the checkpoint holds are not computed again."""
    key = {"inputs": inputs, "seed": seed, "readers": readers, "code": code_hash()}
    saved = read_json(checkpoint) if checkpoint.is_file() else {}
    done: dict[str, Any] = saved["done"] if isinstance(saved, dict) and saved.get("key") == key else {}
    parts = list(parts_of(readers, inputs, seed))
    missing = [part for part in parts if str(part) not in done]
    if len(missing) < len(parts):
        print(f"{len(parts) - len(missing)} of {len(parts)} parts are done already", flush=True)
    memory = SHARED_MEMORY if SHARED_MEMORY.is_dir() else None
    forked = multiprocessing.get_context("fork")
    with (
        tempfile.TemporaryDirectory(dir=memory) as directory,
        forked.Pool(min(jobs, max(1, len(missing))), _start, (directory,)) as pool,
    ):
        for part, found in zip(missing, pool.imap(run_part, missing), strict=True):
            done[str(part)] = found
            write_atomically(checkpoint, json.dumps({"key": key, "done": done}))
    return [done[str(part)] for part in parts]


def main(arguments: list[str] | None = None) -> int:
    """Fuzz, print one line a reader, write the record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--inputs", type=int, default=10_000, help="for each reader")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--results", type=Path, default=Path("results"), help="directory of the records")
    options = parser.parse_args(arguments)
    readers = list(fuzzing.READERS)
    checkpoint = options.results / ".fuzz_inputs.json"
    try:
        checked_int("inputs", options.inputs, maximum=10**7)
        checked_int("jobs", options.jobs, maximum=1024)
        outcomes = run_all(readers, options.inputs, options.seed, options.jobs, checkpoint)
        facts = machine(())
        rows, each = [], len(outcomes) // len(readers)
        for i, reader in enumerate(readers):
            parts = outcomes[i * each : (i + 1) * each]
            rows.append(row_of(reader, options.inputs, options.seed, parts) | facts)
            errors: Counter[str] = sum((Counter(part["errors"]) for part in parts), Counter())
            slowest = max(parts, key=lambda part: part["slowest_ms"])
            print(
                f"{reader:8}{options.inputs:>7,} inputs {rows[-1]['accepted']:>7,} accepted"
                f" {rows[-1]['unclear']:>4,} unclear, slowest {slowest['slowest_ms']:,.1f} ms"
                f" (input {slowest['slowest_index']}); refused: "
                + ", ".join(f"{name} {count:,}" for name, count in sorted(errors.items()))
            )
            for part in parts:
                for index, message in part["unclear"].items():
                    print(f"  seed {options.seed}, {reader} {index}: {message}", file=sys.stderr)
        print(write_record(options.results, "fuzz_inputs", rows))
    except PlanError as error:
        print(f"fuzz_inputs: {error}", file=sys.stderr)
        return 2
    checkpoint.unlink()
    return 1 if any(row["unclear"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
