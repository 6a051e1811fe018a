"""Opens every page of a built book in headless Chromium, in light and dark and as wide as a phone.

``python book/check_browser.py book/_build/html`` prints one line per fault and exits 1, or one summary line.
A fault is a console error, a failed request or one to another host, a page that scrolls sideways,
a figure without a description, text that is hard to read on its background, a search without results,
or a download that does not arrive. ``--screenshots DIR`` also saves a picture of every view to look at.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http.client import HTTPConnection
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from selenium import webdriver
from selenium.common.exceptions import TimeoutException, WebDriverException
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement

# Debian's places. Elsewhere Selenium looks for a browser, or fetches one.
CHROMIUM = Path("/usr/bin/chromium")
CHROMEDRIVER = Path("/usr/bin/chromedriver")
NO_BROWSER = "check_browser: cannot start Chromium; try: apt-get install chromium chromium-driver"
FLAGS = (
    "--headless=new",
    # The sandbox needs rights that a container lacks; only our own pages are opened, so little is lost.
    "--no-sandbox",
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--disable-software-rasterizer",
    "--no-first-run",
    # The browser's own requests would fail where there is no network.
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-quic",
    # One page at a time and none kept for "back": less work.
    "--process-per-site",
    "--disable-features=BackForwardCache",
    "--no-proxy-server",
    # A page that asks another host fails here as it would on a reader's train.
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)
QUERY = "overlay"
PATIENCE_S = 10.0
TALLEST_SCREENSHOT = 12_000  # pixels; Chromium cannot draw much more in one piece


class View(NamedTuple):
    """One way to look at a page."""

    name: str
    theme: str
    width: int
    height: int


# Each step changes one thing; the first is how a page is loaded.
VIEWS = (
    View("light", "light", 1280, 900),
    View("dark", "dark", 1280, 900),
    View("dark, 390 px", "dark", 390, 844),
    View("light, 390 px", "light", 390, 844),
)

# A page changes at once: what slides or fades would be looked at half-way.
AT_ONCE = """
const sheet = new CSSStyleSheet();
sheet.replaceSync("*, ::before, ::after { transition: none !important; animation: none !important; }");
document.adoptedStyleSheets = [sheet];
"""

# Resolves when the page has the wanted width and colours, formulas and fonts are there
# and all is drawn. What does not come in time is a fault.
SETTLE = """
const [width, theme, done] = arguments;
const root = document.documentElement;
const drawn = () => new Promise(next => requestAnimationFrame(() => setTimeout(next)));
const ready = () =>
  root.clientWidth <= width && root.clientWidth > width - 30 && root.dataset.theme === theme;
const wait = async () => {
  const end = performance.now() + 5000;
  while (!ready() && performance.now() < end) await drawn();
  await window.MathJax?.startup?.promise;
  await document.fonts.ready;
  await drawn();
  return ready() ? "" : `is ${root.clientWidth} px wide in theme "${root.dataset.theme ?? ""}"`;
};
wait().then(done, error => done("does not settle: " + error));
"""

# What only a browser knows about a page. Returns the faults.
INSPECT = r"""
const faults = [];
const root = document.documentElement;
const named = element => {
  const classes = [...element.classList].slice(0, 2).map(name => "." + name).join("");
  return `<${element.tagName.toLowerCase()}${element.id ? "#" + element.id : classes}>`;
};
const quoted = element => `${named(element)} "${element.textContent.trim().slice(0, 40)}"`;
const source = element => (element.getAttribute("src") ?? "").slice(-80);

if (root.scrollWidth > root.clientWidth + 1) {
  // The culprit is the innermost that reaches farthest; what is clipped or scrolls by itself is none.
  const right = ({offsetWidth, scrollWidth}, box) => box.left + Math.max(offsetWidth, scrollWidth);
  const counts = element => {
    if (getComputedStyle(element).position === "fixed") return false;
    for (let at = element; at !== document.body; at = at.parentElement)
      if (getComputedStyle(at).overflowX !== "visible") return false;
    return true;
  };
  const wide = [...document.body.querySelectorAll("*")].filter(
    element => element.scrollWidth
      && right(element, element.getBoundingClientRect()) > root.scrollWidth - 1 && counts(element));
  const culprit = wide.length ? ": " + quoted(wide.at(-1)) : "";
  faults.push(`scrolls sideways: ${root.scrollWidth} of ${root.clientWidth} px${culprit}`);
}

const described = element =>
  ["alt", "aria-label", "aria-labelledby"].some(name => (element.getAttribute(name) ?? "").trim());
// MathJax draws formulas as <svg>; what they say is in the markup beside them.
const pictures = "img, .kvs-figure svg, figure svg, figure canvas, svg[role=img]";
for (const picture of document.querySelectorAll(pictures))
  if (!picture.closest("mjx-container, [aria-hidden=true]") && !described(picture))
    faults.push(`figure without a description: ${named(picture)} ${source(picture)}`);
for (const picture of document.images)
  if (picture.complete && !picture.naturalWidth && picture.getClientRects().length)
    faults.push(`picture does not show: ${source(picture)}`);

// WCAG 2: the luminance of two colours may not be closer than 4.5 : 1, or 3 : 1 for large text.
const parse = text => {
  const numbers = text.match(/[\d.]+/g).map(Number);
  const scale = text.startsWith("color(") ? 255 : 1;
  return {rgb: numbers.slice(0, 3).map(value => value * scale), alpha: numbers[3] ?? 1};
};
const over = (top, below) => top.rgb.map((value, i) => value * top.alpha + below[i] * (1 - top.alpha));
const background = element => {
  const layers = [];
  for (let at = element; at; at = at.parentElement) {
    const layer = parse(getComputedStyle(at).backgroundColor);
    if (layer.alpha) layers.push(layer);
    if (layer.alpha === 1) break;
  }
  return layers.reverse().reduce((below, layer) => over(layer, below), [255, 255, 255]);
};
const luminance = rgb => rgb.map(value => value / 255)
  .map(value => value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4)
  .reduce((sum, value, i) => sum + value * [0.2126, 0.7152, 0.0722][i], 0);
const seen = new Set();
const article = document.querySelector("main, article") ?? document.body;
const walker = document.createTreeWalker(article, NodeFilter.SHOW_TEXT);
for (let node = walker.nextNode(); node; node = walker.nextNode()) {
  const element = node.parentElement;
  const key = [element, element.parentElement, element.parentElement?.parentElement]
    .map(at => at ? at.tagName + "." + (at.getAttribute("class") ?? "") : "").join(" ");
  if (!node.data.trim() || seen.has(key) || element.closest("svg, script, style, noscript")) continue;
  if (!element.checkVisibility({opacityProperty: true, visibilityProperty: true})) continue;
  seen.add(key);
  const style = getComputedStyle(element);
  const below = background(element);
  const [dark, light] = [luminance(over(parse(style.color), below)), luminance(below)].sort((a, b) => a - b);
  const ratio = (light + 0.05) / (dark + 0.05);
  const size = parseFloat(style.fontSize);
  const needed = size >= 24 || (size >= 18.66 && style.fontWeight >= 700) ? 3 : 4.5;
  if (ratio < needed)
    faults.push(`hard to read, contrast ${ratio.toFixed(1)} of ${needed}: ${quoted(element)}`);
}
return faults;
"""

LINKS = """
return [...document.querySelectorAll("a[href]")].map(link => link.href.split("#")[0])
  .filter(href => href.includes("/_downloads/") || href.includes("/_sources/"));
"""


class QuietHandler(SimpleHTTPRequestHandler):
    """Serves files without a line for each, and lets the browser keep what all pages share."""

    protocol_version = "HTTP/1.1"

    def end_headers(self) -> None:
        """Allow a file to be kept: the browser starts empty and the site does not change meanwhile."""
        self.send_header("Cache-Control", "max-age=3600")
        super().end_headers()

    def log_message(self, format: str, *arguments: object) -> None:
        """Say nothing: the browser reports what failed."""


@contextmanager
def serve(root: Path) -> Iterator[str]:
    """Serve a directory on a free local port; give its address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietHandler, directory=str(root)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def chromium(scratch: Path) -> Iterator[webdriver.Chrome]:
    """Start a browser that knows nothing of the user's own; end it afterwards."""
    options = webdriver.ChromeOptions()
    for flag in (*FLAGS, f"--user-data-dir={scratch / 'profile'}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    options.add_experimental_option("perfLoggingPrefs", {"enableNetwork": True, "enablePage": False})
    service = webdriver.ChromeService(log_output=subprocess.DEVNULL)
    if CHROMIUM.exists() and CHROMEDRIVER.exists():
        options.binary_location = str(CHROMIUM)
        service.path = str(CHROMEDRIVER)
    os.environ.setdefault("SE_AVOID_STATS", "true")
    driver = webdriver.Chrome(options=options, service=service)
    try:
        driver.set_page_load_timeout(60)
        driver.set_script_timeout(60)
        driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": AT_ONCE})
        yield driver
    finally:
        driver.quit()


def wait_for(condition: Callable[[], object]) -> bool:
    """Wait until a condition holds; False when patience ends."""
    end = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


class BrowserCheck:
    """A served site and a browser; ``check`` returns the faults."""

    def __init__(self, root: Path, address: str, driver: webdriver.Chrome, scratch: Path) -> None:
        self.root = root
        self.address = address
        self.driver = driver
        self.downloads = scratch / "downloads"
        # The theme leaves templates of its own under _static, which are no pages.
        self.pages = [
            page
            for page in sorted(path.relative_to(root) for path in root.rglob("*.html"))
            if page.parts[0] != "_static"
        ]
        self.links: dict[str, Path] = {}  # what is offered for download, and a page that does
        self.views = list(VIEWS)

    def check(self, screenshots: Path | None) -> list[str]:
        """Open every page in every view, then search and download as a reader would."""
        faults: list[str] = []
        for number, page in enumerate(self.pages, 1):
            faults += [f"{page.as_posix()}: {fault}" for fault in self._check_page(page, screenshots)]
            if number % 50 == 0:
                print(f"{number} of {len(self.pages)} pages", flush=True)
        faults += [f"search: {fault}" for fault in self._check_search()]
        return faults + self._check_downloads()

    def _check_page(self, page: Path, screenshots: Path | None) -> list[str]:
        faults: dict[str, list[str]] = {}  # the views in which a fault shows
        for number, view in enumerate(VIEWS):
            self._show(view)
            if number == 0:
                self.driver.get(self.address + page.as_posix())
                self.links |= dict.fromkeys(self.driver.execute_script(LINKS), page)
            for fault in self._inspect(view):
                faults.setdefault(fault, []).append(view.name)
            if screenshots:
                self._save_screenshot(screenshots, page, view)
        found = [
            fault if len(views) == len(VIEWS) else f"{fault} ({'; '.join(views)})"
            for fault, views in faults.items()
        ]
        return self._logged_faults() + found

    def _show(self, view: View) -> None:
        """Give the window the view's width and the system the view's colours."""
        size = {
            "width": view.width,
            "height": view.height,
            "deviceScaleFactor": 1,
            "mobile": view.width < 500,
        }
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        features = [
            {"name": "prefers-color-scheme", "value": view.theme},
            {"name": "prefers-reduced-motion", "value": "reduce"},
        ]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def _inspect(self, view: View) -> list[str]:
        problem = self.driver.execute_async_script(SETTLE, view.width, view.theme)
        found = self.driver.execute_script(INSPECT)
        return list(dict.fromkeys([problem, *found] if problem else found))

    def _save_screenshot(self, directory: Path, page: Path, view: View) -> None:
        """Save the whole page, not only what fits in the window, as far as Chromium can."""
        size = self.driver.execute_cdp_cmd("Page.getLayoutMetrics", {})["cssContentSize"]
        height = min(size["height"], TALLEST_SCREENSHOT)
        clip = {"x": 0, "y": 0, "width": view.width, "height": height, "scale": 1}
        shot = {"format": "png", "captureBeyondViewport": True, "clip": clip}
        picture = self.driver.execute_cdp_cmd("Page.captureScreenshot", shot)["data"]
        name = f"{page.with_suffix('').as_posix().replace('/', '-')}-{view.theme}-{view.width}.png"
        Path(directory, name).write_bytes(base64.b64decode(picture))

    def _logged_faults(self) -> list[str]:
        """Read and empty the browser's logs."""
        faults = []
        urls: dict[str, str] = {}
        read_log: Callable[[str], list[dict[str, Any]]] = self.driver.get_log
        for entry in read_log("performance"):
            event = json.loads(entry["message"])["message"]
            faults += network_faults(event["method"], event["params"], urls, self.address)
        for entry in read_log("browser"):
            # A failed request is in the performance log too, with its address.
            if entry["level"] == "SEVERE" and entry["source"] != "network":
                faults.append(f"console error: {' '.join(entry['message'].split())[:200]}")
        return list(dict.fromkeys(fault.replace(self.address, "/") for fault in faults))

    def _check_search(self) -> list[str]:
        """Type a word into the search dialog of the first page, as a reader would, and on the search page."""
        self._show(VIEWS[0])
        self.driver.get(self.address + "search.html")
        faults = self._type_query("search.html")
        self.driver.get(self.address + "index.html")
        buttons = self.driver.find_elements(By.CSS_SELECTOR, ".search-button__button")
        shown = [button for button in buttons if button.is_displayed()]
        if not shown:
            return [*faults, "no button to open it on index.html"]
        shown[0].click()
        return [*faults, *self._type_query("index.html"), *self._logged_faults()]

    def _type_query(self, page: str) -> list[str]:
        fields = self.driver.find_elements(By.CSS_SELECTOR, "input[type=search], input[name=q]")
        shown = [field for field in fields if field.is_displayed()]
        if not shown:
            return [f"no field to type into on {page}"]
        shown[0].send_keys(QUERY, Keys.ENTER)
        if not wait_for(self._found):
            return [
                f"no results for {QUERY!r} typed on {page}, now at {urlsplit(self.driver.current_url).path}"
            ]
        # A result's excerpt is read from its page: let those requests end, so that a failed one is noticed.
        self.driver.execute_async_script(SETTLE, VIEWS[0].width, VIEWS[0].theme)
        return []

    def _found(self) -> bool:
        script = """
            return location.search.includes("q=") && document.querySelector("#search-results li a") !== null;
        """
        return bool(self.driver.execute_script(script))

    def _check_downloads(self) -> list[str]:
        """Fetch every file that a page offers, and let the browser save one."""
        faults = [
            f"{page.as_posix()}: download {fault}: {link.removeprefix(self.address)}"
            for link, page in sorted(self.links.items())
            if (fault := self._fetch_fault(link))
        ]
        offered = [link for link in sorted(self.links) if "/_downloads/" in link]
        if not faults and offered:
            faults += self._save_fault(offered[0], self.links[offered[0]])
        return faults

    def _fetch_fault(self, link: str) -> str:
        """Fetch a file; return what is wrong with it, or nothing."""
        parts = urlsplit(link)
        connection = HTTPConnection(str(parts.hostname), parts.port or 80, timeout=PATIENCE_S)
        try:
            connection.request("GET", parts.path)
            response = connection.getresponse()
            content = response.read()
        finally:
            connection.close()
        if response.status != 200:
            return f"fails with {response.status}"
        return "" if content else "is empty"

    def _save_fault(self, link: str, page: Path) -> list[str]:
        """Click a download and compare the saved file, byte for byte."""
        behavior = {"behavior": "allow", "downloadPath": str(self.downloads)}
        self.driver.execute_cdp_cmd("Browser.setDownloadBehavior", behavior)
        self.driver.get(self.address + page.as_posix())
        anchor = next(a for a in self.driver.find_elements(By.CSS_SELECTOR, "a[href]") if leads_to(a, link))
        self.driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", anchor)
        anchor.click()
        path = unquote(urlsplit(link).path)
        wanted = Path(self.root, path.lstrip("/")).read_bytes()
        saved = self.downloads / Path(path).name
        if wait_for(lambda: saved.is_file() and saved.read_bytes() == wanted):
            return []
        return [f"{page.as_posix()}: a click on {path} does not save the file"]


def leads_to(anchor: WebElement, link: str) -> bool:
    """Tell whether a link that a reader can see leads to an address."""
    return anchor.get_attribute("href") == link and anchor.is_displayed()


def network_faults(method: str, event: dict[str, Any], urls: dict[str, str], address: str) -> list[str]:
    """Read one event of the browser's network; ``urls`` remembers what each request asked for."""
    match method:
        case "Network.requestWillBeSent":
            url = event["request"]["url"]
            urls[event["requestId"]] = url
            if not url.startswith((address, "data:", "blob:", "about:", "chrome:")):
                return [f"request to another host: {url[:200]}"]
        case "Network.responseReceived":
            status = event["response"]["status"]
            if status >= 400:
                return [f"request fails with {status}: {event['response']['url'][:200]}"]
        case "Network.loadingFailed" if not event.get("canceled"):
            url = urls.get(event["requestId"], "")
            if url.startswith(address):
                return [f"request fails with {event['errorText']}: {url[:200]}"]
    return []


def run(root: Path, screenshots: Path | None) -> int:
    """Serve and check a site; print its faults and return the exit status."""
    scratch = Path(tempfile.mkdtemp(prefix="kvslab-browser-"))
    start = time.monotonic()
    try:
        with serve(root) as address, chromium(scratch) as driver:
            check = BrowserCheck(root, address, driver, scratch)
            faults = check.check(screenshots)
    finally:
        # The last of Chromium's processes may still be writing.
        shutil.rmtree(scratch, ignore_errors=True)
    for fault in faults:
        print(fault)
    pages = len(check.pages)
    if faults:
        print(f"{len(faults)} faults in {pages} pages", file=sys.stderr)
        return 1
    seconds = f"{time.monotonic() - start:.0f} s"
    print(f"{pages} pages in {len(VIEWS)} views, {len(check.links)} downloads, search: no fault, {seconds}")
    return 0


def main(arguments: list[str]) -> int:
    """Check the site named on the command line; return the exit status."""
    parser = argparse.ArgumentParser(prog="check_browser.py", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("site", type=Path, help="a directory with an index.html")
    parser.add_argument("--screenshots", type=Path, metavar="DIR", help="save a picture of every view here")
    options = parser.parse_args(arguments)
    if not Path(options.site, "index.html").is_file():
        parser.error(f"no index.html in {options.site}")
    if options.screenshots:
        options.screenshots.mkdir(parents=True, exist_ok=True)
    try:
        return run(options.site.resolve(), options.screenshots)
    except TimeoutException as error:
        print(f"check_browser: Chromium does not answer: {error.msg}", file=sys.stderr)
    except WebDriverException as error:
        first = (error.msg or "").partition("\n")[0]
        print(f"{NO_BROWSER} ({first})", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
