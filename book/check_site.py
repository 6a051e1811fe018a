"""Checks a built book: no request to another host, no dead link, no picture without a description.

``python book/check_site.py book/_build/html`` prints one line per fault and exits 1, or one summary line.
A link that a reader clicks may lead anywhere; what a page loads by itself must lie in the site.
"""

from __future__ import annotations

import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# What a browser fetches without being asked: (tag, attribute).
LOADED = {
    ("audio", "src"), ("embed", "src"), ("iframe", "src"), ("image", "href"), ("image", "xlink:href"),
    ("img", "src"), ("img", "srcset"), ("input", "src"), ("link", "href"), ("object", "data"),
    ("script", "src"), ("source", "src"), ("source", "srcset"), ("track", "src"), ("use", "href"),
    ("use", "xlink:href"), ("video", "poster"), ("video", "src"),
}  # fmt: skip
# <link> relations that only name an address.
NAMED_RELATIONS = {"alternate", "author", "canonical", "help", "index", "license", "next", "prev", "search"}
REMOTE = re.compile(r"^\s*(?:https?|wss?|ftp):|^\s*//", re.IGNORECASE)
CSS_URL = re.compile(r"""url\(\s*["']?\s*([^"')]+)|@import\s+["']([^"']+)""", re.IGNORECASE)
COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
# A script can build an address in ways no pattern sees; these are the plain ones.
JS_REQUEST = re.compile(
    r"""(?:fetch|importScripts|import|WebSocket|EventSource|sendBeacon|\$\.(?:get|ajax|getJSON|getScript))\(\s*"""
    r"""["'`](?:(?:https?|wss?):)?//[^"'`]*"""
    r"""|\.(?:src|href)\s*=\s*["'`](?:https?:)?//[^"'`]*"""
    r"""|\bfrom\s*["'`]https?://[^"'`]*"""
    r"""|["'`(](?:https?:)?//(?:[\w.-]+\.)?(?:jsdelivr\.net|unpkg\.com|cdnjs\.cloudflare\.com|googleapis\.com"""
    r"""|gstatic\.com|googletagmanager\.com|google-analytics\.com|plausible\.io|bootstrapcdn\.com|polyfill\.io"""
    r"""|esm\.sh|skypack\.dev|mybinder\.org|fontawesome\.com/[^"'`]*\.(?:js|css)|mathjax\.org/[^"'`]*\.js)"""
    r"""[^"'`]*""",
)


class Page(HTMLParser):
    """What one HTML page loads, links to, defines and lacks."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.ids: set[str] = set()
        self.loads: list[tuple[str, str]] = []
        self.links: list[str] = []
        self.scripts: list[str] = []
        self.styles: list[str] = []
        self.undescribed: list[str] = []
        self.title = ""
        self._inside: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note identifiers, loads, links and pictures."""
        values = {name: value or "" for name, value in attrs}
        self.ids.update(value for value in (values.get("id"), tag == "a" and values.get("name")) if value)
        if tag in {"script", "style", "title"}:
            self._inside.append(tag)
        if "style" in values:
            self.styles.append(values["style"])
        if tag in {"a", "area"} and "href" in values:
            self.links.append(values["href"])
        if tag == "img" and not values.get("alt", "").strip():
            self.undescribed.append(f"<img> without alt text: {values.get('src', '')[:80]}")
        if tag == "svg" and values.get("role") == "img" and not values.get("aria-label", "").strip():
            self.undescribed.append("<svg role=img> without aria-label")
        if tag == "link" and set(values.get("rel", "").lower().split()) & NAMED_RELATIONS:
            return
        for name, value in values.items():
            if (tag, name) in LOADED:
                parts = value.split(",") if name == "srcset" else [value]
                self.loads.extend((tag, part.split()[0]) for part in parts if part.strip())

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Treat ``<tag/>`` as an opened and closed tag."""
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        """Leave a script, style or title."""
        if self._inside and self._inside[-1] == tag:
            self._inside.pop()

    def handle_data(self, data: str) -> None:
        """Keep the text of scripts, styles and the title."""
        match self._inside[-1] if self._inside else None:
            case "script":
                self.scripts.append(data)
            case "style":
                self.styles.append(data)
            case "title":
                self.title += data


class Site:
    """A directory of built pages; ``check`` returns its faults."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        # The theme leaves templates of its own under _static, which are no pages.
        self.pages = {
            path: Page(path.read_text(encoding="utf-8"))
            for path in sorted(self.root.rglob("*.html"))
            if path.relative_to(self.root).parts[0] != "_static"
        }
        self.num_links = 0
        self._assets: set[Path] = set()

    def check(self) -> list[str]:
        """Return one line for every fault of every page and of every file that a page loads."""
        faults: list[str] = []
        for path, page in self.pages.items():
            found = [*page.undescribed, *self._check_loads(path, page), *self._check_links(path, page)]
            if not page.title.strip():
                found.append("no <title>")
            for style in page.styles:
                found += self._check_css(path, style)
            for script in page.scripts:
                found += check_js(script)
            faults += [f"{path.relative_to(self.root)}: {fault}" for fault in dict.fromkeys(found)]
        return faults + self._check_assets()

    def _check_loads(self, path: Path, page: Page) -> list[str]:
        faults = []
        for tag, value in page.loads:
            if REMOTE.match(value):
                faults.append(f"<{tag}> loads from another host: {value}")
            elif value.startswith(("data:", "#")):
                continue
            elif (target := self._target(path, value)) is None or not target.is_file():
                faults.append(f"<{tag}> loads a file that is not there: {value}")
            else:
                self._assets.add(target)
        return faults

    def _check_links(self, path: Path, page: Page) -> list[str]:
        faults = []
        for link in page.links:
            parts = urlsplit(link)
            if REMOTE.match(link) or parts.scheme:
                continue
            self.num_links += 1
            target = self._target(path, link)
            if target is None or not target.is_file():
                faults.append(f"link to a file that is not there: {link}")
                continue
            fragment = unquote(parts.fragment)
            if fragment and target in self.pages and fragment not in self.pages[target].ids:
                faults.append(f"link to an anchor that is not there: {link}")
        return faults

    def _check_assets(self) -> list[str]:
        faults = []
        pending = sorted(self._assets)
        seen: set[Path] = set()
        while pending:
            asset = pending.pop(0)
            if asset in seen or asset.suffix not in {".css", ".js"}:
                continue
            seen.add(asset)
            text = asset.read_text(encoding="utf-8", errors="replace")
            before = set(self._assets)
            found = self._check_css(asset, text) if asset.suffix == ".css" else check_js(text)
            pending += sorted(self._assets - before)
            faults += [f"{asset.relative_to(self.root)}: {fault}" for fault in dict.fromkeys(found)]
        return faults

    def _check_css(self, path: Path, text: str) -> list[str]:
        faults = []
        for match in CSS_URL.finditer(COMMENT.sub("", text)):
            value = (match[1] or match[2]).strip()
            if REMOTE.match(value):
                faults.append(f"style sheet loads from another host: {value}")
            elif value.startswith(("data:", "#")):
                continue
            elif (target := self._target(path, value)) is None or not target.is_file():
                faults.append(f"style sheet loads a file that is not there: {value}")
            else:
                self._assets.add(target)
        return faults

    def _target(self, path: Path, link: str) -> Path | None:
        """Return the file that a relative address means; None when it leaves the site."""
        relative = unquote(urlsplit(link).path)
        if relative.startswith("/"):
            return None
        target = (path.parent / relative).resolve() if relative else path
        if target.is_dir():
            target /= "index.html"
        return target if target.is_relative_to(self.root) else None


def check_js(text: str) -> list[str]:
    """Return the requests to another host that can be read off a script."""
    return [f"script names another host: {match.group()[:100]}" for match in JS_REQUEST.finditer(text)]


def main(arguments: list[str]) -> int:
    """Check the site named on the command line; return the exit status."""
    if len(arguments) != 1 or not Path(arguments[0], "index.html").is_file():
        print("usage: check_site.py SITE_DIR (a directory with an index.html)", file=sys.stderr)
        return 2
    site = Site(Path(arguments[0]))
    faults = site.check()
    for fault in faults:
        print(fault)
    if faults:
        print(f"{len(faults)} faults in {len(site.pages)} pages", file=sys.stderr)
        return 1
    print(f"{len(site.pages)} pages, {site.num_links} internal links: no fault, no request to another host")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
