"""Which run the page shows, and what it shows without one or without the server."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import textwrap

import pytest

pytestmark = pytest.mark.xdist_group("web")

_RECORD = """
    import sys
    import rl_insight as insight

    insight.init("project", "experiment", config={"server": {"url": sys.argv[2]}, "run_id": sys.argv[1]})
    with insight.trace_state("rollout"):
        pass
    insight.finish()
"""


def record(server, run):
    subprocess.run([sys.executable, "-c", textwrap.dedent(_RECORD), run, server.url], check=True, timeout=60)


@pytest.fixture
def shown(page):
    """Return the run that the page shows, once it shows one."""

    def read():
        page.locator(".run-line").wait_for()
        return page.locator(".run-picker option").first.inner_text()

    return read


def test_the_page_keeps_its_run_and_outlives_the_server(page, server, shown, wait_until):
    page.goto("/")
    page.get_by_text("No runs yet").wait_for()
    line = page.locator(".snippet pre", has_text="insight.init")
    assert server.url in line.inner_text()
    assert line.evaluate("element => element.scrollWidth <= element.clientWidth")
    page.get_by_text(f"rl-insight demo --server {server.url}").wait_for()

    record(server, "first")
    assert shown() == "Latest run: first"
    record(server, "second")
    page.get_by_role("button", name="Newer run").wait_for()
    record(server, "first")  # written last, but not begun last
    assert shown() == "Latest run: first"
    page.get_by_role("button", name="Newer run").click()
    wait_until(lambda: shown() == "Latest run: second")
    page.reload()
    assert shown() == "Latest run: second"

    page.get_by_role("navigation", name="Views").get_by_role("link", name="Overview").click()
    page.get_by_role("link", name=re.compile("Telemetry")).click()
    table = page.get_by_role("table", name="Processes")
    table.get_by_text(socket.gethostname()).first.wait_for()
    table.get_by_text("ended", exact=True).wait_for()

    page.wait_for_timeout(2500)  # the other views are loaded by then
    server.kill()
    page.locator("[data-live=disconnected]").wait_for()
    page.get_by_role("navigation", name="Views").get_by_role("link", name="Runs").click()
    page.get_by_role("table", name="Runs").wait_for()
    page.evaluate("window.stillThere = true")
    server.start()
    page.locator("[data-live=live]").wait_for()
    page.get_by_role("link", name="second", exact=True).wait_for()
    assert page.evaluate("window.stillThere") is True
