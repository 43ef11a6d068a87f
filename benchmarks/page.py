"""The performance of the page in a real browser: frames per second, memory, traffic, size, first paint.

Needs Chromium and Playwright, and the page built into the package (`make web`).
"""

from __future__ import annotations

import contextlib
import gzip
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from benchmarks.chromium import chromium_path
from benchmarks.harness import Figure, Options, SkipBenchmark, say
from benchmarks.make_store import FEW, MANY, RUN_ID, Size, cached_data_dir
from benchmarks.server_process import ServerProcess, running_server
from rl_insight.server.http.pages import STATIC

if TYPE_CHECKING:
    from playwright.sync_api import Browser, CDPSession, Page

NAME = "page"

_ROOT = Path(__file__).parents[1]
_SPANS, _QUICK_SPANS = 10_000_000, 200_000
_IN_VIEW, _QUICK_IN_VIEW = 100_000, 20_000
_SIZE: Any = {"width": 1280, "height": 800}
_VIEWS = ("overview", "timeline", "sessions", "hotspots", "metrics", "hardware", "logs", "findings", "runs")
_FLAGS = ("--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync")
_MEGABYTE = 1_000_000
_LIVE_MINUTES = 30.0
_SPEED = 10.0
"""How much faster than real time the example trains while memory is watched: 3 minutes represent 30."""

_COUNT_FRAMES = """() => {
  const timeline = window.rlInsightTimeline;
  const draw = timeline.draw.bind(timeline);
  window.framesDrawn = [];
  timeline.draw = () => { draw(); window.framesDrawn.push(performance.now()); };
}"""
# Events as the browser creates them, one per frame: a hand is never faster. Over the lane names, the wheel scrolls.
_MOVE = """({seconds, kind}) => new Promise((resolve) => {
  const canvas = document.querySelector(".timeline-canvas");
  const box = canvas.getBoundingClientRect();
  const begun = performance.now();
  window.framesDrawn = [];
  let turn = 0;
  const step = () => {
    const elapsed = performance.now() - begun;
    if (elapsed > seconds * 1000) { resolve(window.framesDrawn.length / (elapsed / 1000)); return; }
    const forth = Math.floor(turn / 30) % 2 === 0 ? 1 : -1;
    turn += 1;
    canvas.dispatchEvent(new WheelEvent("wheel", {
      deltaX: kind === "pan" ? 12 * forth : 0, deltaY: kind === "pan" ? 0 : 20 * forth, bubbles: true, cancelable: true,
      clientX: kind === "scroll" ? box.left + 20 : box.left + box.width / 2, clientY: box.top + box.height / 2,
    }));
    requestAnimationFrame(step);
  };
  requestAnimationFrame(step);
})"""
_SPANS_IN_VIEW = "() => window.rlInsightTimeline?.spansInView() ?? 0"
_FIRST_PAINT = """() => performance.getEntriesByName("first-contentful-paint")[0]?.startTime ?? null"""


def run(options: Options) -> Iterator[Figure]:
    """Measure the page in the package."""
    if not (STATIC / "index.html").is_file():
        raise SkipBenchmark("The page is not built: run `make web`.")
    with tempfile.TemporaryDirectory() as folder, _browser() as browser:
        # A copy, so that a concurrent build does not change the measured page.
        place = Path(shutil.copytree(STATIC, Path(folder) / "page"))
        words = [f"page_dir={place}"]
        yield Figure("everything the page loads, compressed", _bundle_bytes(place) / 1000, "kB", budget=400)
        for size in (FEW, MANY):
            yield from _large_store(browser, words, size, options)
        with running_server(words) as server, _training(server.url, speed=1.0):
            yield from _traffic(browser, server, seconds=5 if options.quick else 20)
        with running_server(words) as server:
            yield from _memory(browser, server, options)


def _bundle_bytes(place: Path) -> int:
    """Return the size of all scripts, styles and images of the page, each compressed as a server would."""
    files = [path for path in place.rglob("*") if path.is_file() and path.relative_to(place).parts[0] != "report"]
    return sum(len(gzip.compress(path.read_bytes(), 6)) for path in files)


def _chromium() -> str:
    program = chromium_path()
    if program is None:
        raise SkipBenchmark("Chromium is not installed.")
    return program


@contextlib.contextmanager
def _browser() -> Iterator[Browser]:
    program = _chromium()
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        raise SkipBenchmark("Playwright is missing: pip install playwright.") from None
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=["--headless", *_FLAGS])
        try:
            yield browser
        finally:
            browser.close()


@contextlib.contextmanager
def _page(browser: Browser, server: ServerProcess) -> Iterator[Page]:
    """Open a page in a browser with an empty cache."""
    context = browser.new_context(viewport=_SIZE, base_url=server.url)
    try:
        page = context.new_page()
        page.set_default_timeout(60_000)
        yield page
    finally:
        context.close()


def _large_store(browser: Browser, words: list[str], size: Size, options: Options) -> Iterator[Figure]:
    """Measure first paint, and frames per second while the timeline moves, over a large run."""
    spans = _QUICK_SPANS if options.quick else _SPANS
    say(f"page: a store of {spans:,} spans of {size.processes:,} processes (generated once and cached)")
    end = size.suffix
    with running_server(words, data_dir=cached_data_dir(spans, size)) as server:
        server.get_json("/api/v1/summary", run=RUN_ID)  # opens the file
        paints = [_first_paint(browser, server) for _ in range(3 if options.quick else 7)]
        yield Figure(f"first paint on loopback{end}, median", statistics.median(paints), "s", budget=1.0)
        with _page(browser, server) as page:
            seen = _show_many(page, server, _QUICK_IN_VIEW if options.quick else _IN_VIEW)
            yield Figure(f"spans in view{end}", seen, "spans")
            page.evaluate(_COUNT_FRAMES)
            for kind in ("pan", "zoom", "scroll") if size.lanes > 1 else ("pan", "zoom"):
                rates = [page.evaluate(_MOVE, {"seconds": 2, "kind": kind}) for _ in range(2 if options.quick else 5)]
                rate = statistics.median(rates)
                yield Figure(f"frames per second, {kind}{end}", rate, "/s", budget=30, at_least=True)
            took = sorted(page.evaluate("[...window.rlInsightTimeline.frames]"))
            yield Figure(f"drawing one frame{end}, p95", took[int(len(took) * 0.95)], "ms")


def _first_paint(browser: Browser, server: ServerProcess) -> float:
    with _page(browser, server) as page:
        page.goto("/")
        return float(_wait_for(page, _FIRST_PAINT)) / 1000


def _show_many(page: Page, server: ServerProcess, spans: int) -> int:
    """Open the timeline on a window with at least this many spans on the visible lanes; returns how many.

    With many lanes, the visible ones may have fewer in the entire run.
    """
    summary = server.get_json("/api/v1/summary", run=RUN_ID)
    middle = (summary["start_ns"] + summary["end_ns"]) / 2e9
    whole = (summary["end_ns"] - summary["start_ns"]) / 1e9
    width = whole * spans / summary["spans"]
    while True:
        window = f"from={middle - width / 2:.6f}&to={middle + width / 2:.6f}"
        page.goto(f"/?view=timeline&run={RUN_ID}&density=compact&{window}")
        _wait_for_timeline(page)
        seen = int(page.evaluate(_SPANS_IN_VIEW))
        if seen >= spans or width >= whole:
            return seen
        width *= 1.5


def _wait_for(page: Page, expression: str, timeout_s: float = 60.0) -> Any:
    """Wait until an expression is true; Playwright's own wait evaluates a string, which the page's CSP forbids."""
    deadline = time.perf_counter() + timeout_s
    while not (found := page.evaluate(expression)):
        if time.perf_counter() > deadline:
            raise RuntimeError(f"the page did not reach this state within {timeout_s:.0f} s: {expression}")
        page.wait_for_timeout(50)
    return found


def _wait_for_timeline(page: Page) -> None:
    _wait_for(page, _SPANS_IN_VIEW)


@contextlib.contextmanager
def _training(url: str, speed: float) -> Iterator[None]:
    """Run the example training against a server."""
    words = [sys.executable, "-m", "examples.async_grpo", "--server", url, "--speed", str(speed)]
    process = subprocess.Popen(
        words, cwd=_ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        yield
    finally:
        os.killpg(process.pid, signal.SIGINT)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


class _Received:
    """Counts the bytes that a page receives on the wire."""

    def __init__(self, session: CDPSession) -> None:
        self.bytes = 0
        self._streams: set[str] = set()
        session.on("Network.responseReceived", self._on_response)
        session.on("Network.dataReceived", self._on_data)
        session.on("Network.loadingFinished", self._on_end)
        session.send("Network.enable")

    def _on_response(self, event: dict[str, Any]) -> None:
        if event["type"] == "EventSource":
            self._streams.add(event["requestId"])

    def _on_data(self, event: dict[str, Any]) -> None:
        # A stream never ends, so its chunks are counted; for others the final event has the total, with headers.
        if event["requestId"] in self._streams:
            self.bytes += event["encodedDataLength"] or event["dataLength"]

    def _on_end(self, event: dict[str, Any]) -> None:
        if event["requestId"] not in self._streams:
            self.bytes += int(event["encodedDataLength"])


def _traffic(browser: Browser, server: ServerProcess, seconds: float) -> Iterator[Figure]:
    """Measure the traffic of each view while it follows the example in real time."""
    _wait_for_steps(server, 3)
    for view in _VIEWS:
        say(f"page: traffic of {view}")
        with _page(browser, server) as page:
            received = _Received(page.context.new_cdp_session(page))
            page.goto(f"/?view={view}")
            page.locator('[data-live="live"]').wait_for()
            page.wait_for_timeout(3000)  # the initial load of a view does not count
            before, begun = received.bytes, time.perf_counter()
            page.wait_for_timeout(seconds * 1000)
            rate = (received.bytes - before) / (time.perf_counter() - begun)
            yield Figure(f"traffic of {view}, following live", rate / 1000, "kB/s", budget=50)


def _wait_for_steps(server: ServerProcess, steps: int, timeout_s: float = 120.0) -> None:
    deadline = time.perf_counter() + timeout_s
    while time.perf_counter() < deadline:
        if server.get_json("/api/v1/runs") and len(server.get_json("/api/v1/steps")) >= steps:
            return
        time.sleep(0.2)
    raise RuntimeError(f"the example did not finish {steps} steps within {timeout_s:.0f} s.")


def _memory(browser: Browser, server: ServerProcess, options: Options) -> Iterator[Figure]:
    """Measure the page's memory after following a run for 30 minutes, extrapolated from a shorter time."""
    speed = 1.0 if options.minutes else _SPEED
    seconds = options.minutes * 60 if options.minutes else 20.0 if options.quick else _LIVE_MINUTES * 60 / _SPEED
    say(f"page: memory, following a training run at {speed:g} times real time for {seconds:.0f} s")
    address = f"{server.url}/?view=timeline"
    with _training(server.url, speed), _page(browser, server) as page:
        _wait_for_steps(server, 3)
        page.goto(address)
        _wait_for_timeline(page)
        session = page.context.new_cdp_session(page)
        with _plain_browser(address) as plain:
            page.wait_for_timeout(5000)
            times: list[float] = []
            kept, used = [], []
            begun = time.perf_counter()
            while (elapsed := time.perf_counter() - begun) < seconds or len(times) < 4:
                times.append(elapsed * speed)
                kept.append(_heap_bytes(session) / _MEGABYTE)
                used.append(_page_process_bytes(plain) / _MEGABYTE)
                page.wait_for_timeout(max(1000, min(10_000, seconds * 1000 / 30)))
    slope, _ = statistics.linear_regression(times, kept)
    yield Figure("JavaScript heap of the page, at first", kept[0], "MB")
    yield Figure("JavaScript heap of the page, growth", slope * 60, "MB/min")
    yield Figure("memory of the page's process, at first", used[0], "MB")
    # The rest is extrapolated from the memory that survives garbage collections.
    to_come = max(0.0, _LIVE_MINUTES * 60 - times[-1])
    after = statistics.median(used[-5:]) + max(0.0, slope) * to_come
    yield Figure("memory of the page's process after 30 minutes live", after, "MB", budget=400)


@contextlib.contextmanager
def _plain_browser(address: str) -> Iterator[psutil.Process]:
    """Run a browser without remote control, as users do: remote control may take extra memory."""
    words = [_chromium(), "--headless", *_FLAGS, "--window-size=1280,800", "--remote-debugging-port=0"]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        program = subprocess.Popen(
            [*words, f"--user-data-dir={profile}", address],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            yield psutil.Process(program.pid)
        finally:
            os.killpg(program.pid, signal.SIGTERM)  # Debian's chromium is a script that starts the browser
            program.wait(20)


def _page_process_bytes(browser: psutil.Process) -> int:
    """Return the private memory of a browser's largest page process."""
    sizes = [0]
    for process in browser.children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if "--type=renderer" in process.cmdline():
                sizes.append(int(process.memory_full_info().uss))
    return max(sizes)


def _heap_bytes(session: CDPSession) -> float:
    """Return the page's JavaScript heap, including typed arrays and documents, without garbage."""
    session.send("HeapProfiler.enable")
    session.send("HeapProfiler.collectGarbage")
    usage = session.send("Runtime.getHeapUsage")
    return float(usage["usedSize"] + usage.get("embedderHeapUsedSize", 0) + usage.get("backingStorageSize", 0))
