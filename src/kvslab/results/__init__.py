"""The tables under `results/`: what they are, how they are written, whether they still hold.

`registry` are the tables that the library computes and `measured` those that are kept;
`package` writes and verifies them, `records` is what a benchmark leaves, `exports` are
other forms for people who cite.
"""

from kvslab.results.citation import software_bibtex, table_bibtex
from kvslab.results.columns import COLUMNS, unit_of
from kvslab.results.exports import export_results
from kvslab.results.measured import KEPT_TABLES, KeptTable
from kvslab.results.package import headline_table, rendered_results, verify_results, write_results
from kvslab.results.records import read_record, write_record
from kvslab.results.registry import REGENERATE, RESULT_TABLES, ResultTable

__all__ = [
    "COLUMNS",
    "KEPT_TABLES",
    "REGENERATE",
    "RESULT_TABLES",
    "KeptTable",
    "ResultTable",
    "export_results",
    "headline_table",
    "read_record",
    "rendered_results",
    "software_bibtex",
    "table_bibtex",
    "unit_of",
    "verify_results",
    "write_record",
    "write_results",
]
