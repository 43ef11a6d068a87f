"""The built page in a real browser, with a real server that a real training run feeds."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.chromium import chromium_path

ROOT = Path(__file__).parents[2]
WEB = ROOT / "web"
STATIC = ROOT / "src" / "rl_insight" / "server" / "static"
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def _is_built():
    # The report's page is built last.
    built = STATIC / "report" / "report.js"
    sources = [path for path in (WEB / "src").rglob("*") if path.is_file()]
    return built.exists() and built.stat().st_mtime >= max(path.stat().st_mtime for path in sources)


@pytest.fixture(scope="session")
def built_page(tmp_path_factory):
    """Return a folder with the page: a copy of the build since the last change, or a new build.

    A concurrent build does not change it.
    """
    folder = tmp_path_factory.mktemp("page") / "static"
    if _is_built() or shutil.which("npm") is None:
        if not (STATIC / "index.html").exists():
            pytest.skip("the page is not built, and npm is not installed")
        shutil.copytree(STATIC, folder)
        return folder
    if not (WEB / "node_modules").is_dir():
        subprocess.run(["npm", "install", "--no-save", "--no-audit", "--no-fund"], cwd=WEB, check=True)
    subprocess.run(["npx", "vite", "build", "--outDir", str(folder), "--emptyOutDir"], cwd=WEB, check=True)
    return folder


class Server:
    """A server that can be killed and restarted on the same port with the same data."""

    def __init__(self, data_dir, page_dir, wait_until, *settings):
        self._settings = settings
        self.data_dir = data_dir
        self._page_dir = page_dir
        self._wait_until = wait_until
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.process = None

    def start(self):
        words = [
            "--port",
            str(self.port),
            "--data-dir",
            str(self.data_dir),
            f"page_dir={self._page_dir}",
            "otlp_http_port=null",
            "otlp_grpc_port=null",
            *self._settings,
        ]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "rl_insight.cli", "server", "start", *words], stdout=subprocess.DEVNULL
        )
        self._wait_until(self._accepts)
        return self

    def _accepts(self):
        assert self.process.poll() is None, "the server ended"
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def kill(self):
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait(10)


@pytest.fixture(scope="module")
def server(built_page, tmp_path_factory, wait_until):
    started = Server(tmp_path_factory.mktemp("data"), built_page, wait_until).start()
    yield started
    started.kill()


@pytest.fixture(scope="module")
def training(server):
    """Run the example training against the server, with a slow worker and failing tools."""
    words = ["--server", server.url, "--speed", "3", "--straggler", "1", "--errors"]
    process = subprocess.Popen(
        [sys.executable, "-m", "examples.async_grpo", *words],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    yield process
    os.killpg(process.pid, signal.SIGINT)
    try:
        process.wait(15)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(10)


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = chromium_path()
    if path is None:
        pytest.skip("there is no Chromium")
    # For one module only: while it runs, asyncio thinks that this thread has a running loop.
    with playwright.sync_playwright() as driver:
        launched = driver.chromium.launch(executable_path=path, args=FLAGS)
        yield launched
        launched.close()


@pytest.fixture
def page(browser, server):
    """Open a page; a script error or a request to any other host fails the test."""
    context = browser.new_context(viewport={"width": 1280, "height": 800}, base_url=server.url)
    opened = context.new_page()
    opened.set_default_timeout(20_000)
    errors, strangers = [], []
    opened.on("pageerror", lambda error: errors.append(str(error)))
    opened.on("dialog", lambda dialog: errors.append(f"a dialog: {dialog.message}"))
    opened.on(
        "request",
        lambda request: (
            None if request.url.startswith((server.url, "data:", "blob:")) else strangers.append(request.url)
        ),
    )
    yield opened
    context.close()
    assert errors == []
    assert strangers == []
