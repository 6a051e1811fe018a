"""Keeps the built site on its own files: local MathJax, no launcher of remote kernels."""

from __future__ import annotations

from importlib.metadata import distribution
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx
from sphinx.config import Config

MATHJAX = "mathjax/tex-svg.js"  # one file with every glyph as a path: loads no font
# Its speech engine, which a reader can switch on in MathJax's menu, would ask this host for its rules.
REMOTE = "https://cdn.jsdelivr.net/npm/"


def use_local_mathjax(app: Sphinx, config: Config) -> None:
    """Point the pages at the copy under ``_static`` instead of a content delivery network."""
    config["mathjax_path"] = MATHJAX


def copy_mathjax(app: Sphinx, failure: Exception | None) -> None:
    """Copy MathJax out of the package that ships it, without the addresses it knows.

    The package's directory has hyphens in its name, so it is found by its file list and not by an import.
    """
    if failure is not None or app.builder.format != "html":
        return
    package = distribution("sphinx-mathjax-offline")
    source = next(file for file in package.files or [] if file.as_posix().endswith(f"static/{MATHJAX}"))
    target = Path(app.outdir, "_static", MATHJAX)
    target.parent.mkdir(parents=True, exist_ok=True)
    text = Path(str(source.locate())).read_text(encoding="utf-8")
    target.write_text(text.replace(REMOTE, "_static/mathjax/"), encoding="utf-8")


def drop_thebe(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: object) -> None:
    """Drop the scripts of thebe, which names a remote host and has nothing to launch here."""
    context["script_files"] = [
        script
        for script in context.get("script_files", [])
        if "thebe" not in f"{getattr(script, 'filename', script)}{getattr(script, 'attributes', '')}".lower()
    ]


def setup(app: Sphinx) -> dict[str, bool]:
    """Register with Sphinx."""
    app.connect("config-inited", use_local_mathjax)
    app.connect("html-page-context", drop_thebe, priority=900)
    app.connect("build-finished", copy_mathjax)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
