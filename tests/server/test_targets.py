"""Registered targets: kept across restarts, scraped independently, unaffected by a bad one."""

import asyncio
import gzip
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest

from rl_insight.errors import ConfigError
from rl_insight.server.scrape.targets import MAX_TARGETS, Target, TargetBook, make_targets, target_url

PAGE = b"""# HELP requests_total Requests.
# TYPE requests_total counter
requests_total{code="200",job="inner"} 7
# TYPE running gauge
running 3
# TYPE latency histogram
latency_bucket{le="1.0"} 1
latency_bucket{le="4.0"} 3
latency_bucket{le="+Inf"} 3
latency_sum 5.5
latency_count 3
"""


class Endpoint:
    """An HTTP server that serves a page, or misbehaves."""

    def __init__(self):
        endpoint = self
        self.pages = {"/metrics": (200, PAGE, {})}
        self.hang = threading.Event()

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                if self.path == "/hang":
                    endpoint.hang.wait(20)
                    return
                status, body, headers = endpoint.pages.get(self.path, (404, b"", {}))
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *arguments):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.address = f"127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self):
        self.hang.set()
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def endpoint():
    endpoint = Endpoint()
    yield endpoint
    endpoint.close()


def scrape(services, address, **options):
    (target,) = make_targets([address], **options)
    services.targets.add([target])
    return asyncio.run(services.scraper.scrape(target))


def test_a_target_is_read_into_its_run(services, endpoint, query):
    health = scrape(services, endpoint.address, job_name="vllm", labels={"role": "rollout"}, run_id="r9")
    assert (health.is_up, health.problem) == (True, "")
    labels = f'"instance":"{endpoint.address}","job":"vllm","role":"rollout"'
    rows = query(
        services, "r9", "SELECT name, kind, labels, value FROM samples WHERE name != 'scrape_duration_seconds'"
    )
    assert sorted(rows) == [
        ("requests", "counter", '{"code":"200","exported_job":"inner",' + labels + "}", 7.0),
        ("running", "gauge", "{" + labels + "}", 3.0),
        ("up", "gauge", "{" + labels + "}", 1.0),
    ]
    assert query(services, "r9", "SELECT name, count, sum, list_sum(counts) FROM histograms") == [
        ("latency", 3, 5.5, 3)
    ]
    assert query(services, "r9", "SELECT role, process_id FROM processes") == [
        ("vllm", f"scrape-{endpoint.address}-vllm")
    ]


def test_a_target_without_a_run_has_its_health_read_and_makes_no_run(services, endpoint, client_of):
    health = scrape(services, endpoint.address, job_name="vllm")
    assert (health.is_up, health.samples > 0) == (True, True)
    client = client_of(services)
    assert client.get("/api/v1/runs").json() == []
    (listed,) = client.get("/api/v1/targets").json()["targets"]
    assert (listed.get("run_id", ""), listed["health"]["is_up"]) == ("", True)


def test_targets_of_an_earlier_version_that_had_no_run_are_stored_nowhere(tmp_path):
    """They were stored in a run `targets`, which the file does not mention."""
    (tmp_path / "targets.json").write_text('{"version": 1, "targets": [{"url": "http://a:1/metrics"}]}')
    assert [target.run_id for target in TargetBook(tmp_path / "targets.json").list()] == [""]


def test_a_counter_continues_when_its_target_starts_again(services, endpoint, query):
    for value in (7, 2):
        endpoint.pages["/metrics"] = (200, b"# TYPE done_total counter\ndone_total %d\n" % value, {})
        scrape(services, endpoint.address, run_id="r9")
    rows = query(services, "r9", "SELECT value FROM samples WHERE name = 'done' ORDER BY time_ns")
    assert rows == [(7.0,), (9.0,)]


def test_a_target_that_is_read_by_one_server_after_another_misses_nothing(make_services, endpoint, client_of):
    for _ in range(2):
        services = make_services()
        scrape(services, endpoint.address, run_id="r9")
        (process,) = client_of(services).get("/api/v1/processes", params={"run": "r9"}).json()
        services.close()
    assert (process["batches"], process["missing_batches"]) == (2, 0)


def test_gzip_and_openmetrics_are_read(services, endpoint):
    page = b"# TYPE done counter\ndone_total 4\n# EOF\n"
    headers = {"Content-Type": "application/openmetrics-text; version=1.0.0", "Content-Encoding": "gzip"}
    endpoint.pages["/metrics"] = (200, gzip.compress(page), headers)
    assert scrape(services, endpoint.address).samples == 1


@pytest.mark.parametrize(
    ("page", "said"),
    [
        ((500, b"", {}), "status 500"),
        ((302, b"", {"Location": "/metrics"}), "status 302"),
        ((200, b"<html>not metrics", {}), "not in Prometheus' format"),
        ((200, b"x" * 5000, {}), "longer than 2048 bytes"),
        ((200, gzip.compress(bytes(1_000_000)), {"Content-Encoding": "gzip"}), "too large"),
    ],
)
def test_a_bad_page_is_a_target_that_is_down_with_the_reason(make_services, endpoint, query, page, said):
    services = make_services("scrape.max_body_bytes=2048")
    endpoint.pages["/metrics"] = page
    health = scrape(services, endpoint.address, run_id="r9")
    assert not health.is_up
    assert said in health.problem
    assert query(services, "r9", "SELECT value FROM samples WHERE name = 'up'") == [(0.0,)]


def test_a_hanging_and_an_absent_target_cost_the_others_nothing(make_services, endpoint, wait_until):
    services = make_services("scrape.interval_s=0.1", "scrape.timeout_s=0.3")
    endpoint.pages["/other"] = (200, PAGE, {})
    addresses = [f"http://{endpoint.address}/hang", "127.0.0.1:1", endpoint.address, f"http://{endpoint.address}/other"]
    services.targets.add(make_targets(addresses))

    async def watch():
        task = asyncio.create_task(services.scraper.run())
        for _ in range(500):
            await asyncio.sleep(0.02)
            if len(services.scraper.health()) == 4:
                break
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(watch())
    states = [services.scraper.health()[target_url(address)].is_up for address in addresses]
    assert states == [False, False, True, True]
    assert "timed out after 0.3 s" in services.scraper.health()[addresses[0]].problem


def test_targets_are_kept_and_replaced(tmp_path):
    path = tmp_path / "targets.json"
    book = TargetBook(path)
    assert book.add(make_targets(["a:1", "b:2"], job_name="vllm")) == 2
    assert book.add(make_targets(["http://a:1/metrics"], job_name="sglang")) == 0
    assert [(target.url, target.job_name) for target in TargetBook(path).list()] == [
        ("http://a:1/metrics", "sglang"),
        ("http://b:2/metrics", "vllm"),
    ]
    assert TargetBook(path).remove(["http://a:1/metrics", "http://c:3/metrics"]) == 1
    assert [target.url for target in TargetBook(path).list()] == ["http://b:2/metrics"]


class Clock:
    now_s = 0.0

    def __call__(self):
        return self.now_s


def test_a_target_with_a_lease_is_forgotten_unless_it_is_registered_again(tmp_path):
    clock = Clock()
    book = TargetBook(tmp_path / "targets.json", clock)
    book.add(make_targets(["kept:1"]))
    for owner in ("renewed", "silent"):
        book.add(make_targets([f"{owner}:1"], lease_s=60.0), owner)
    clock.now_s = 40.0
    assert book.add(make_targets(["renewed:1"], lease_s=60.0), "renewed") == 0
    assert book.forget_expired() == 0
    clock.now_s = 70.0
    assert book.forget_expired() == 1
    assert [target.url for target in book.list()] == ["http://kept:1/metrics", "http://renewed:1/metrics"]
    clock.now_s = 1000.0
    restarted = TargetBook(tmp_path / "targets.json", clock)
    assert restarted.forget_expired() == 0
    clock.now_s = 1061.0
    assert restarted.forget_expired() == 1
    assert [target.url for target in TargetBook(tmp_path / "targets.json").list()] == ["http://kept:1/metrics"]


def test_what_an_owner_registers_takes_the_place_of_what_it_registered_before(tmp_path):
    book = TargetBook(tmp_path / "targets.json")
    book.add(make_targets(["a:1", "b:1"]), "hub")
    book.add(make_targets(["c:1"]), "other")
    assert book.add(make_targets(["a:2", "b:1"]), "hub") == 1
    assert sorted(target.url for target in book.list()) == [f"http://{host}/metrics" for host in ("a:2", "b:1", "c:1")]
    book.add([], "hub")
    assert [target.url for target in book.list()] == ["http://c:1/metrics"]


def test_a_renewed_lease_does_not_write_the_list_again(tmp_path):
    path = tmp_path / "targets.json"
    book = TargetBook(path)
    book.add(make_targets(["a:1"], lease_s=60.0), "hub")
    written = path.stat()
    book.add(make_targets(["a:1"], lease_s=60.0), "hub")
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (written.st_ino, written.st_mtime_ns)


HUB_PAGE = b"""\
# TYPE rl_insight_monitor_collector_batches_total counter
rl_insight_monitor_collector_batches_total 12
# TYPE rl_insight_monitor_collector_processes gauge
rl_insight_monitor_collector_processes{state="live"} 8
# TYPE rl_insight_monitor_collector_clock_offset_seconds gauge
rl_insight_monitor_collector_clock_offset_seconds{process_id="p",host="h"} 0.5
# TYPE rl_insight_monitor_reward gauge
rl_insight_monitor_reward 0.5
# TYPE rl_insight_monitor_latency histogram
rl_insight_monitor_latency_bucket{le="+Inf"} 3
rl_insight_monitor_latency_sum 5.5
rl_insight_monitor_latency_count 3
"""


def test_of_a_hub_that_forwards_its_batches_only_its_own_health_is_kept(services, endpoint, query):
    endpoint.pages["/metrics"] = (200, HUB_PAGE, {})
    scrape(services, endpoint.address, job_name="trainer_metrics", run_id="r9", forwards=True)
    rows = query(services, "r9", "SELECT name, kind, value FROM samples WHERE name != 'scrape_duration_seconds'")
    assert sorted(rows) == [("hub_batches", "counter", 12.0), ("hub_processes", "gauge", 8.0), ("up", "gauge", 1.0)]
    assert query(services, "r9", "SELECT count(*) FROM histograms") == [(0,)]


def test_a_hub_that_is_forgotten_has_ended(make_services, endpoint, query):
    services = make_services("scrape.interval_s=0.1")
    services.targets.add(make_targets([endpoint.address], run_id="r9", lease_s=60.0), "hub")

    async def watch():
        task = asyncio.create_task(services.scraper.run())
        for _ in range(500):
            await asyncio.sleep(0.02)
            if services.scraper.health():
                services.targets.add([], "hub")
            elif not services.targets.list() and query(services, "r9", "SELECT final FROM processes") == [(True,)]:
                break
        else:
            pytest.fail("it has not ended")
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(watch())


def test_an_unreadable_list_is_set_aside(tmp_path):
    path = tmp_path / "targets.json"
    path.write_text('{"targets": [')
    assert TargetBook(path).list() == []
    assert list(tmp_path.glob("targets.json.unreadable-*"))


def test_a_list_that_cannot_be_written_changes_nothing(tmp_path):
    (tmp_path / "file").write_text("in the place of a folder")
    book = TargetBook(tmp_path / "file" / "targets.json")
    with pytest.raises(OSError):
        book.add(make_targets(["a:1"]))
    assert book.list() == []


def test_the_number_of_targets_is_bounded(tmp_path):
    book = TargetBook(tmp_path / "targets.json")
    with pytest.raises(ConfigError, match="too many"):
        book.add([Target(url=f"http://a:1/{number}") for number in range(MAX_TARGETS + 1)])


@pytest.mark.parametrize(
    "address",
    [
        "",
        " ",
        "ftp://a:1",
        "http://",
        "a:0",
        "a:99999",
        "a b:1",
        "http://me:pw@a:1",
        "http://a:1/x#y",
        "a:1\r\nX: y",
        "é:1",
        "-:1",
        "h" * 600,
        "file:///etc/passwd",
        "http://[::1",
    ],
)
def test_what_is_not_a_target_is_refused(client, address):
    answer = client.post("/api/v1/targets", json={"addresses": [address]})
    assert answer.status_code == 400
    assert answer.json()["error"]


@pytest.mark.parametrize(
    ("registration", "status"),
    [
        ({"addresses": ["a:1", "b:2"], "labels": [{"x": "1"}]}, 400),
        ({"addresses": []}, 422),
        ({"addresses": "a:1"}, 422),
        ({"addresses": ["a:1"], "unknown": 1}, 422),
        ({"addresses": ["a:1"], "lease_s": -1}, 422),
        ({"addresses": ["a:1"], "owner": "o" * 501}, 422),
        ({}, 422),
    ],
)
def test_a_registration_that_cannot_be_used_is_a_sentence(client, registration, status):
    answer = client.post("/api/v1/targets", json=registration)
    assert answer.status_code == status
    assert answer.json()["error"]


def test_targets_are_added_listed_and_removed_over_http(client):
    answer = client.post("/api/v1/targets", json={"addresses": ["a:1", "b:2"], "labels": [{"x": "1"}, {"x": "2"}]})
    assert answer.json() == {"added": 2, "targets": 2}
    listed = client.get("/api/v1/targets").json()["targets"]
    assert [(entry["url"], entry["labels"], entry["health"]) for entry in listed] == [
        ("http://a:1/metrics", {"x": "1"}, None),
        ("http://b:2/metrics", {"x": "2"}, None),
    ]
    assert client.request("DELETE", "/api/v1/targets", params={"address": "a:1"}).json() == {"removed": 1}


def test_an_owner_registers_itself_and_takes_itself_back_over_http(client):
    own = {"owner": "r1/hub", "lease_s": 60, "forwards": True}
    client.post("/api/v1/targets", json={"addresses": ["a:1"], **own})
    (listed,) = client.get("/api/v1/targets").json()["targets"]
    assert {name: listed[name] for name in own} == own
    client.post("/api/v1/targets", json={"addresses": ["b:1"], **own})
    assert [entry["url"] for entry in client.get("/api/v1/targets").json()["targets"]] == ["http://b:1/metrics"]
    assert client.post("/api/v1/targets", json={"addresses": [], "owner": "r1/hub"}).json() == {
        "added": 0,
        "targets": 0,
    }


def test_a_running_server_forgets_a_target_that_stays_silent(start_server, wait_until):
    server = start_server()
    registration = {"addresses": ["127.0.0.1:1"], "owner": "hub", "lease_s": 0.5}
    assert httpx.post(f"{server.url}/api/v1/targets", json=registration).json()["targets"] == 1
    wait_until(lambda: not httpx.get(f"{server.url}/api/v1/targets").json()["targets"], 40)


def test_the_event_loop_does_not_wait_while_the_list_is_written(tmp_path, monkeypatch):
    book = TargetBook(tmp_path / "targets.json")
    book.add(make_targets(["a:1"]))
    is_writing, may_write = threading.Event(), threading.Event()

    def slow(*_arguments, **_options):
        is_writing.set()
        assert may_write.wait(20)

    monkeypatch.setattr("rl_insight.server.scrape.targets.replace_file", slow)
    adding = threading.Thread(target=book.add, args=(make_targets(["b:1"]),))
    adding.start()
    assert is_writing.wait(20)
    reading = threading.Thread(target=lambda: (book.renew("http://a:1/metrics"), book.list()), daemon=True)
    reading.start()
    reading.join(20)
    was_delayed = reading.is_alive()
    may_write.set()
    adding.join(20)
    assert not was_delayed
    assert [target.url for target in book.list()] == ["http://a:1/metrics", "http://b:1/metrics"]


async def until(condition):
    for _ in range(500):
        if condition():
            return
        await asyncio.sleep(0.02)
    pytest.fail("it did not happen in time")


def test_a_target_that_was_removed_and_registered_again_at_once_is_scraped(make_services, endpoint, monkeypatch):
    services = make_services("scrape.interval_s=1")
    scraper, targets = services.scraper, make_targets([endpoint.address])
    scraped = []

    async def scrape_once(target):
        scraped.append(target.url)
        if len(scraped) == 1:  # its task finds no target, and ends
            services.targets.remove([target.url])

    monkeypatch.setattr(scraper, "scrape", scrape_once)
    real_sleep = asyncio.sleep

    async def sleep(seconds):
        await real_sleep(0.001 if seconds < 1 else 0.05)
        if len(scraped) == 1 and seconds == min(1.0, services.settings.scrape.interval_s):
            services.targets.add(targets)

    monkeypatch.setattr("rl_insight.server.scrape.scraper.asyncio.sleep", sleep)

    async def main():
        services.targets.add(targets)
        running = asyncio.create_task(scraper.run())
        await until(lambda: len(scraped) > 1)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(main())
    assert len(scraped) > 1


def test_scraping_continues_when_the_last_batch_of_a_removed_target_fails(make_services, endpoint, monkeypatch, caplog):
    services = make_services("scrape.interval_s=1")
    scraper, scraped = services.scraper, []

    async def scrape_once(target):
        scraped.append(target.url)

    def fail(_url):
        raise RuntimeError("unexpected")

    monkeypatch.setattr(scraper, "scrape", scrape_once)
    monkeypatch.setattr(scraper, "_forget", fail)
    monkeypatch.setattr(services.settings.scrape, "interval_s", 0.01)

    async def main():
        running = asyncio.create_task(scraper.run())
        for address in (endpoint.address, "127.0.0.1:9"):
            targets = make_targets([address])
            services.targets.add(targets)
            await until(lambda url=targets[0].url: url in scraped)
            services.targets.remove([targets[0].url])
            await until(lambda: "unexpected" in caplog.text)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(main())
    assert scraped[-1] == "http://127.0.0.1:9/metrics"
