"""Guards the tables that people cite: a file that the library no longer computes is worse than none."""

import csv
import json
import os
from pathlib import Path

import pytest

from kvslab import files
from kvslab.errors import InputError
from kvslab.results import KEPT_TABLES, RESULT_TABLES, rendered_results, stale_results, write_results

RESULTS = Path(__file__).parent.parent / "results"


def test_committed_tables_are_what_the_library_computes() -> None:
    assert stale_results(RESULTS) == (), "run `make results` and commit what changed"


def test_every_table_has_a_schema_and_sources() -> None:
    package = json.loads((RESULTS / "datapackage.json").read_text(encoding="utf-8"))
    resources = {resource["name"]: resource for resource in package["resources"]}
    assert set(resources) == {table.name for table in (*RESULT_TABLES, *KEPT_TABLES)}
    for resource in resources.values():
        with (RESULTS / resource["path"]).open(newline="", encoding="utf-8") as stream:
            rows = list(csv.DictReader(stream))
        assert rows
        assert [field["name"] for field in resource["schema"]["fields"]] == list(rows[0])
        assert all(field["description"] for field in resource["schema"]["fields"])
        kept = resource["name"] in {table.name for table in KEPT_TABLES}
        assert resource["sources"] and kept != (resource["regenerate"] == "make results")
        if "source" in rows[0]:
            assert all(row["source"] for row in rows)
        else:  # a measurement: its machine, or the script that wrote it, is the source
            assert kept and resource["regenerate"].startswith("python benchmarks/")
        for field in resource["schema"]["fields"]:
            for row in rows:
                if field["type"] == "integer":
                    int(row[field["name"]])
                elif field["type"] == "number" and (row[field["name"]] or not kept):
                    float(row[field["name"]])


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
    assert {path.name for path in tmp_path.iterdir()} == set(rendered_results())
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
    assert set(stale_results(tmp_path)) == {"strides.csv", "pages.csv"}


def test_a_directory_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"results directory: got .*, need a directory that exists"):
        write_results(tmp_path / "missing")


def test_the_readme_shows_the_computed_headline() -> None:
    readme = (RESULTS.parent / "README.md").read_text(encoding="utf-8")
    assert (RESULTS / "gb200_blocks.md").read_text(encoding="utf-8") in readme
