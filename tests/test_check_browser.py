"""The browser check reports each fault of a small site, and none of a clean one. It needs Chromium."""

import subprocess
import sys
from pathlib import Path

import pytest

import kvslab

CHECKER = Path(kvslab.__file__).parents[2] / "book" / "check_browser.py"
PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>A page</title><link rel="icon" href="data:,">
<style>
  :root {{ color: #111; background: #fff; }}
  [data-theme=dark] {{ color: #eee; background: #111; }}
  body {{ margin: 0; }}
  a {{ color: inherit; }}
</style>
<script>
  const system = matchMedia("(prefers-color-scheme: dark)");
  const follow = () => {{ document.documentElement.dataset.theme = system.matches ? "dark" : "light"; }};
  system.addEventListener("change", follow);
  follow();
</script>
</head>
<body><main>{body}</main></body>
</html>
"""
DOT = '<svg viewBox="0 0 9 9" width="9" height="9" role="img" {label}><circle r="4" cx="4" cy="4"/></svg>'
CLEAN = f"""
<button class="search-button__button" onclick="document.querySelector('dialog').showModal()">Search</button>
<dialog><form action="search.html"><input type="search" name="q"></form></dialog>
<p>Words.</p><figure>{DOT.format(label='aria-label="a dot"')}</figure>
<a href="_downloads/1/rows.csv" download>rows</a>
"""
SEARCH = """
<form><input type="search" name="q"></form><ul id="search-results"></ul>
<script>
  if (new URLSearchParams(location.search).get("q") === "overlay")
    document.querySelector("#search-results").innerHTML = "<li><a href='index.html'>found</a></li>";
</script>
"""
# What is wrong on the page -> what the check says about it.
FAULTS = {
    "<script>console.error('out of cheese')</script>": "console error: ",
    "<script>undefinedFunction()</script>": "undefinedFunction is not defined",
    "<img src='gone.png' alt='a picture'>": "request fails with 404: /gone.png",
    "<img src='http://elsewhere.invalid/x.png' alt='x'>": "request to another host: http://elsewhere.invalid/x.png",
    "<div id='wide' style='width: 2000px'>wide</div>": "scrolls sideways: 2000 of 390 px: <div#wide>",
    f"<figure>{DOT.format(label='')}</figure>": "figure without a description: <svg>",
    "<p style='color: #999; background: #888'>faint</p>": 'contrast 1.2 of 4.5: <p> "faint"',
    "<a href='_downloads/2/gone.csv' download>gone</a>": "download fails with 404: _downloads/2/gone.csv",
    "<a href='_downloads/3/empty.csv' download>empty</a>": "download is empty: _downloads/3/empty.csv",
    "<script>removeEventListener.call(system, 'change', follow)</script>": 'in theme "light"',
}


def check(site: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(CHECKER), str(site), *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)


@pytest.fixture
def site(tmp_path: Path) -> Path:
    root = tmp_path / "site"
    for name, content in (("1/rows.csv", "a,b\n1,2\n"), ("3/empty.csv", "")):
        path = root / "_downloads" / name
        path.parent.mkdir(parents=True)
        path.write_text(content)
    (root / "index.html").write_text(PAGE.format(body=CLEAN))
    (root / "search.html").write_text(PAGE.format(body=SEARCH))
    return root


def test_a_clean_site_has_no_fault(site: Path, tmp_path: Path) -> None:
    result = check(site, "--screenshots", str(tmp_path / "shots"))
    assert (result.returncode, result.stderr) == (0, ""), result.stdout
    assert result.stdout.startswith("2 pages in 4 views, 1 downloads, search: no fault")
    names = {path.name for path in Path(tmp_path, "shots").iterdir()}
    assert {"index-light-1280.png", "index-dark-1280.png", "search-light-390.png"} <= names


def test_every_fault_is_reported(site: Path) -> None:
    for number, body in enumerate(FAULTS):
        (site / f"fault{number}.html").write_text(PAGE.format(body=body))
    result = check(site)
    assert result.returncode == 1, result.stderr
    lines = result.stdout.splitlines()
    for number, message in enumerate(FAULTS.values()):
        of_page = [line for line in lines if line.startswith(f"fault{number}.html: ")]
        assert any(message in line for line in of_page), (message, of_page)
    assert not [line for line in lines if line.startswith(("index", "search"))]


def test_a_dead_search_is_reported(site: Path) -> None:
    (site / "search.html").write_text(PAGE.format(body=SEARCH.replace("overlay", "other")))
    result = check(site)
    assert result.returncode == 1
    for page in ("index.html", "search.html"):
        assert f"search: no results for 'overlay' typed on {page}" in result.stdout


def test_a_folder_without_a_site_is_refused(tmp_path: Path) -> None:
    result = check(tmp_path)
    assert result.returncode == 2
    assert f"no index.html in {tmp_path}" in result.stderr
