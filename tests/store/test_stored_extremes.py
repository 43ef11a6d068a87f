"""Rows stored by an earlier version that are rejected today: every view still works."""

from __future__ import annotations

import time

import duckdb
import pytest
from starlette.testclient import TestClient

from rl_insight.server.app import create_app, openapi_document
from rl_insight.server.config import load_settings
from rl_insight.server.services import Services
from rl_insight.store.run_store import RunStore

HUGE = 2**63 - 1
NOW = time.time_ns()
_LAST_VERSION = 3
"""The last one that stored such values."""

_CHANGES = {
    "span start": f"UPDATE span_data SET start_ns = {HUGE} WHERE span_id = 1",
    "span start below zero": f"UPDATE span_data SET start_ns = {-HUGE} WHERE span_id = 1",
    "span duration": f"UPDATE span_data SET duration_ns = {HUGE} WHERE span_id = 1",
    "open span": f"UPDATE open_span_data SET start_ns = {HUGE}",
    "event": f"UPDATE event_data SET time_ns = {HUGE}",
    "log": f"UPDATE log_data SET time_ns = {-HUGE}",
    "sample": f"UPDATE sample_data SET time_ns = {HUGE}",
    "losses": f"INSERT INTO losses VALUES (0, 'spans', 'a', {HUGE}), (0, 'spans', 'b', {HUGE})",
    "heartbeat": "UPDATE processes SET heartbeat_s = 1e308",
    "infinite heartbeat": "UPDATE processes SET heartbeat_s = 'inf'",
    "clock": f"UPDATE processes SET clock_offset_ns = {-HUGE}, delay_ns = {-HUGE}, last_sent_ns = {HUGE}",
    "rollup": f"INSERT INTO rollup_1s (lane_id, depth, start_ns, end_ns) VALUES (0, 0, {HUGE - 5}, {HUGE})",
    "attributes": """UPDATE span_data SET attributes = repeat('{"a":', 5000) || '1' || repeat('}', 5000)""",
}


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    path = tmp_path_factory.mktemp("data")
    (path / "runs").mkdir()
    return path


@pytest.fixture(params=list(_CHANGES))
def damaged(request, data_dir, make):
    """A run file of that version, with one impossible value in it."""
    path = data_dir / "runs" / f"{request.node.originalname}-{request.param.replace(' ', '-')}.duckdb"
    maker = make()
    for number in range(1, 20):
        maker.span(f"work{number}", start=number)
    maker.span("open", duration=-1)
    maker.builder.add_event(time_ns=NOW, name="e")
    maker.builder.add_log(time_ns=NOW, level=20, logger="l", message="m")
    maker.sample("m", 1.0)
    with RunStore(path, min_free_bytes=0, create=True) as store:
        store.commit([maker.build()])
    with duckdb.connect(str(path)) as connection:
        connection.execute(_CHANGES[request.param])
        connection.execute("UPDATE meta SET value = $version WHERE key = 'schema_version'", {"version": _LAST_VERSION})
    return path


def test_it_opens_and_its_times_can_be_added_and_compared(damaged, fetch):
    with RunStore(damaged, min_free_bytes=0) as store:
        assert fetch(store, "SELECT count(*) FROM spans") == [(19,)]
        ((longest,),) = fetch(store, "SELECT max(start_ns + duration_ns) - min(start_ns) FROM spans")
        assert longest < 2**62
        assert fetch(store, "SELECT sum(count)::BIGINT FROM losses")
        for view in ("open_spans", "events", "logs", "samples"):
            assert len(fetch(store, f"SELECT * FROM {view}")) == 1


@pytest.fixture(scope="module")
def asked():
    """The paths of all views."""
    paths = [path for path, methods in openapi_document()["paths"].items() if "get" in methods and "{" not in path]
    return [path for path in paths if path.startswith("/api/v1/") and not path.endswith("/live")]


@pytest.fixture(scope="module")
def services(data_dir):
    served = Services(load_settings(options={"data_dir": str(data_dir)}))
    yield served
    served.close()


@pytest.fixture(scope="module")
def client(services):
    return TestClient(create_app(services), raise_server_exceptions=False)


def test_every_view_of_it_answers(damaged, asked, services, client):
    assert len(asked) > 15
    answers = {path: client.get(path, params={"run": damaged.stem, "span_id": "1", "name": "m"}) for path in asked}
    assert {path: answer.text for path, answer in answers.items() if answer.status_code >= 500} == {}
    assert answers["/api/v1/summary"].status_code == 200
    services.close_lost_sessions()
