"""Guards the tables that people cite: a file that the library no longer computes is worse than none."""

import csv
import hashlib
import json
import os
import re
from pathlib import Path

import pandas as pd
import pytest
import yaml

import kvslab
from kvslab import files
from kvslab.errors import InputError
from kvslab.results import (
    KEPT_TABLES,
    RESULT_TABLES,
    export_results,
    rendered_results,
    software_bibtex,
    verify_results,
    write_results,
)

RESULTS = Path(__file__).parent.parent / "results"


def test_committed_tables_hold() -> None:
    assert verify_results(RESULTS) == {}, "run `make results`, or the benchmark, and commit what changed"


def test_no_file_is_unknown() -> None:
    """A table that no schema describes would be cited all the same."""
    known = {RESULTS / name for name in rendered_results(RESULTS)}
    known |= {path for table in KEPT_TABLES for path in table.files(RESULTS)}
    known |= {RESULTS / "slab_before_after.svg", RESULTS / "measured.sha256"}
    found = {path for path in RESULTS.rglob("*") if path.is_file()}
    assert {path for path in found if not path.name.startswith(".")} == known, "hidden: a run that goes on"


def test_every_table_has_an_id_a_schema_units_a_source_a_command_and_a_checksum() -> None:
    package = json.loads((RESULTS / "datapackage.json").read_text(encoding="utf-8"))
    kept = {p.relative_to(RESULTS).as_posix(): k for k in KEPT_TABLES for p in k.files(RESULTS)}
    resources = {resource["path"]: resource for resource in package["resources"]}
    assert set(resources) == {f"{table.name}.csv" for table in RESULT_TABLES} | set(kept)
    assert len({resource["id"] for resource in resources.values()}) == len(resources)
    for path, resource in resources.items():
        data = (RESULTS / path).read_bytes()
        assert resource["bytes"] == len(data)
        assert resource["hash"] == f"sha256:{hashlib.sha256(data).hexdigest()}"
        rows = list(csv.DictReader(data.decode("utf-8").splitlines()))
        fields = resource["schema"]["fields"]
        assert rows
        assert [field["name"] for field in fields] == list(rows[0])
        assert all(field["description"] for field in fields)
        assert all(field["unit"] for field in fields if field["type"] in ("integer", "number")), path
        assert resource["sources"] and (path in kept) != (resource["regenerate"] == "make results")
        if "source" in rows[0]:
            assert all(row["source"] for row in rows)
        else:  # a measurement: the script that wrote it is the source
            assert path in kept and "python benchmarks/" in resource["regenerate"]
        for field in fields:
            for row in rows:
                if row[field["name"]] == "" and path in kept:
                    continue
                if field["type"] == "integer":
                    int(row[field["name"]])
                elif field["type"] == "number":
                    float(row[field["name"]])


def test_regeneration_commands_exist() -> None:
    """A table whose script has gone cannot be made again."""
    root = RESULTS.parent
    for table in KEPT_TABLES:
        for name in re.findall(r"benchmarks/\S+\.(?:py|sbatch)", table.regenerate):
            assert (root / name).is_file(), name
        assert table.regenerate.startswith(("python ", "kvslab ", "sbatch "))


def test_citation_file_and_bibtex_agree() -> None:
    text = yaml.safe_load((RESULTS.parent / "CITATION.cff").read_text(encoding="utf-8"))
    entry = dict(re.findall(r"^  (\w+) *= \{+(.*?)\}+,?$", software_bibtex(), flags=re.MULTILINE))
    assert entry["title"] == text["title"]
    assert entry["author"] == text["authors"][0]["name"]
    assert entry["version"] == str(text["version"]) == kvslab.__version__
    assert entry["year"] == str(text["date-released"])[:4]
    assert entry["license"] == text["license"]
    changelog = (RESULTS.parent / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"## [{kvslab.__version__}] - {text['date-released']}" in changelog


def test_exports_say_what_the_tables_say(tmp_path: Path) -> None:
    export_results(RESULTS, tmp_path)
    package = json.loads((RESULTS / "datapackage.json").read_text(encoding="utf-8"))
    bib = (tmp_path / "kvslab.bib").read_text(encoding="utf-8")
    for resource in package["resources"]:
        name = resource["path"].removesuffix(".csv").replace("/", "-")
        with (RESULTS / resource["path"]).open(newline="", encoding="utf-8") as stream:
            rows = list(csv.DictReader(stream))
        frame = pd.read_parquet(tmp_path / f"{name}.parquet")
        assert list(frame.columns) == list(rows[0]) and len(frame) == len(rows)
        for column in frame.columns:
            for cell, row in zip(frame[column], rows, strict=True):
                if pd.isna(cell) or cell == "":
                    assert row[column] == ""
                elif isinstance(cell, str) or frame[column].dtype == "boolean":
                    assert str(cell) == row[column]
                else:
                    assert float(cell) == float(row[column])
        latex = (tmp_path / f"{name}.tex").read_text(encoding="utf-8")
        assert latex.count(r" \\" + "\n") >= len(rows) + 1
        assert resource["hash"].removeprefix("sha256:") in (tmp_path / f"{name}.bib").read_text("utf-8")
        assert resource["hash"].removeprefix("sha256:") in bib
        assert (tmp_path / f"{name}.csv").read_bytes() == (RESULTS / resource["path"]).read_bytes()


def test_the_headline_counts() -> None:
    with (RESULTS / "gb200_blocks.csv").open(newline="", encoding="utf-8") as stream:
        rows = {row["backend"]: row for row in csv.DictReader(stream)}
    assert (rows["flashinfer"]["num_blocks_before"], rows["flashinfer"]["num_blocks_after"]) == (
        "21709",
        "23120",
    )
    assert (rows["flashmla"]["num_blocks_before"], rows["flashmla"]["num_blocks_after"]) == ("19015", "21306")


def test_the_ablation_needs_more_blocks_a_request() -> None:
    # 4096 + 131 + 131 + 1041 + 2051 blocks by hand; the second state group costs 2051 more.
    with (RESULTS / "ablation.csv").open(newline="", encoding="utf-8") as stream:
        rows = {(row["backend"], row["slab"], row["indexer"]): row for row in csv.DictReader(stream)}
    assert rows["flashinfer", "bucketed", "fp8"]["blocks_per_request"] == "7450"
    assert rows["flashinfer", "bucketed", "mxfp4"]["blocks_per_request"] == "9501"
    assert rows["flashinfer", "bucketed", "mxfp4"]["num_blocks"] == "23958"


def test_writing_is_whole_or_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_results(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == set(rendered_results(tmp_path))
    target = tmp_path / "gb200_blocks.csv"
    before = target.read_text(encoding="utf-8")

    def fail(source: str, destination: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "replace", fail)
    with pytest.raises(InputError, match=r"gb200_blocks\.csv: got 'No space left on device'"):
        files.write_atomically(target, "half")
    assert target.read_text(encoding="utf-8") == before
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_a_changed_file_is_noticed(tmp_path: Path) -> None:
    write_results(tmp_path)
    (tmp_path / "strides.csv").write_text("", encoding="utf-8")
    os.unlink(tmp_path / "pages.csv")
    assert verify_results(tmp_path) == {
        "strides.csv": "differs from what the library computes",
        "pages.csv": "is missing",
    }


def test_a_directory_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"results directory: got .*, need a directory that exists"):
        write_results(tmp_path / "missing")


def test_the_readme_shows_the_computed_headline() -> None:
    readme = (RESULTS.parent / "README.md").read_text(encoding="utf-8")
    assert (RESULTS / "gb200_blocks.md").read_text(encoding="utf-8") in readme
