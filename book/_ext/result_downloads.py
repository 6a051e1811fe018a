"""Writes every table of ``results/`` as CSV, Parquet, LaTeX and BibTeX before the pages are read.

The pages link to ``reference/downloads/``, which holds nothing that is not made here.
"""

from __future__ import annotations

from pathlib import Path

from sphinx.application import Sphinx

from kvslab.results import export_results


def write_downloads(app: Sphinx) -> None:
    """Make the files, unless they are newer than the tables."""
    results = Path(app.srcdir).parent / "results"
    target = Path(app.srcdir) / "reference" / "downloads"
    newest = max(path.stat().st_mtime for path in results.rglob("*") if path.is_file())
    stamp = target / "kvslab.bib"
    if not stamp.is_file() or stamp.stat().st_mtime < newest:
        export_results(results, target)


def setup(app: Sphinx) -> dict[str, bool]:
    """Register with Sphinx."""
    app.connect("builder-inited", write_downloads)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
