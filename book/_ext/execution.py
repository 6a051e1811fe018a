"""When chapters run: side by side where they are not in the execution cache, before they are read one by one.

Reading a chapter then finds it in the cache. What fails here is not reported here: the chapter is not cached,
so it runs once more when it is read, and the error stands with its page.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from myst_nb.core.execute.cache import NotebookClientCache
from myst_nb.core.read import create_nb_reader
from sphinx.application import Sphinx
from sphinx.util import logging

MOST_WORKERS = 4  # each is a process of its own, with its own copy of the libraries


def run_missing(app: Sphinx, env: Any, docnames: list[str]) -> None:
    """Execute the notebooks among the pages that will be read, as the parser would."""
    workers = min(len(os.sched_getaffinity(0)), MOST_WORKERS)
    if env.mystnb_config.execution_mode != "cache" or workers < 2:
        return
    logging.getLogger(__name__).info("executing chapters that are not cached, %d at a time", workers)
    with ThreadPoolExecutor(workers) as pool:
        for docname in docnames:
            pool.submit(_run, env, Path(env.doc2path(docname)))


def _run(env: Any, path: Path) -> None:
    with suppress(Exception):
        text = path.read_text(encoding="utf-8")
        reader = create_nb_reader(str(path), env.myst_config, env.mystnb_config, text)
        if reader is None:
            return
        notebook = reader.read(text)
        if "execution_mode" in notebook.metadata.get(env.mystnb_config.metadata_key, {}):
            return
        quiet = _Quiet()
        with NotebookClientCache(notebook, path, env.mystnb_config, quiet, read_fmt=reader.read_fmt):
            pass


class _Quiet:
    """A logger that drops what it is told."""

    def __getattr__(self, name: str) -> object:
        return lambda *args, **kwargs: None


def read_again(app: Sphinx, env: Any, added: set[str], changed: set[str], removed: set[str]) -> list[str]:
    """The page on rerunning lists the chapters' parameters, so it is read again with any of them."""
    return (
        ["reference/rerun"] if any(name.startswith("chapters/") for name in added | changed | removed) else []
    )


def setup(app: Sphinx) -> dict[str, bool]:
    """Register with Sphinx."""
    app.connect("env-get-outdated", read_again)
    app.connect("env-before-read-docs", run_missing)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
