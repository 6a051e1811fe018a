"""Puts local SVG figures into the page itself, so that they follow its light or dark colours.

An ``<img>`` knows nothing about the page around it. Inside the page, what a figure drew in ``INK`` becomes
``currentColor`` (text, axes, outlines), while the fills of the palette stay as they are.
"""

from __future__ import annotations

import re
from html import escape
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx

INK = "#1f2328"  # text.color, axes.edgecolor, ... of the figure style

_ID = re.compile(r'(\bid="|\bhref="#|url\(#)([^")]+)')
_HEAD = re.compile(r"<svg\b[^>]*>")
_VIEW_BOX = re.compile(r'viewBox="([\d.\s-]+)"')
_NOISE = re.compile(r"<metadata>.*?</metadata>|<style\b.*?</style>|<defs>\s*</defs>|<!--.*?-->", re.DOTALL)


def inline(text: str, alt: str, prefix: str) -> str:
    """Turn the text of an SVG file into HTML that may stand on a page with others.

    Identifiers get ``prefix``; the style sheet, which would leak onto the page, becomes two attributes.
    """
    head = _HEAD.search(text)
    view_box = _VIEW_BOX.search(head.group()) if head else None
    if head is None or view_box is None:
        raise ValueError("an SVG figure needs an <svg> element with a viewBox")
    body = _NOISE.sub("", text[head.end() :])
    body = _ID.sub(lambda match: f"{match[1]}{prefix}-{match[2]}", body)
    body = re.sub(re.escape(INK), "currentColor", body, flags=re.IGNORECASE)
    body = body.replace("xlink:href", "href")
    width = float(view_box[1].split()[2])
    svg = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{view_box[1]}" role="img" '
        f'aria-label="{escape(alt)}" style="max-width: {width * 4 / 3:.0f}px" '
        'stroke-linejoin="round" stroke-linecap="butt">'
    )
    return f'<div class="kvs-figure">{svg}{body.strip()}</div>'


def replace_images(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Replace the image nodes of local SVG files, in HTML only."""
    if app.builder.format != "html":
        return
    for number, image in enumerate(list(doctree.findall(nodes.image)), 1):
        uri = str(image.get("uri", ""))
        path = Path(app.srcdir, uri.lstrip("/"))
        if not uri.endswith(".svg") or "://" in uri or not path.is_file():
            continue
        alt = str(image.get("alt", ""))
        html = inline(path.read_text(encoding="utf-8"), alt, f"fig{number}")
        image.replace_self(nodes.raw("", html, format="html"))


def setup(app: Sphinx) -> dict[str, bool]:
    """Register with Sphinx."""
    app.connect("doctree-resolved", replace_images)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
