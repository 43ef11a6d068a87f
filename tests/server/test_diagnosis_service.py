"""Findings of a running server: stored, listed, counted, muted, and sent as alerts."""

from __future__ import annotations

import json
import re
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import msgspec
import pytest

from rl_insight.diagnosis.feed import ReplayFeed
from rl_insight.diagnosis.run import LiveDiagnosis, replay
from rl_insight.schema import BatchBuilder, Process, encode, frame
from rl_insight.server import alerts as alerting
from rl_insight.server import diagnosis
from rl_insight.server.alerts import Alerts
from rl_insight.server.config import AlertSettings
from rl_insight.server.diagnosis import announce
from rl_insight.store import queries

FINDING = queries.Finding(finding_id="a", rule="stalled_run", severity="critical", title="slow", start_ns=1, end_ns=2)


@pytest.fixture
def receiver():
    """A real HTTP receiver that fails the first request."""
    got: list[dict[str, object]] = []
    state = {"failures": 1}

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["content-length"]))
            if state["failures"]:
                state["failures"] -= 1
                self.send_response(503)
            else:
                got.append({"path": self.path, **json.loads(body)})
                self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}", got
    server.shutdown()
    thread.join()
    server.server_close()


def _batch(steps=40, nan_at=38, *, first=0, process="trainer-0", sequence=1, is_imported=False, final=True, age_s=None):
    builder = BatchBuilder()
    begin = time.time_ns() - (2 * (steps + 10) if age_s is None else age_s) * 1_000_000_000
    for step in range(first, steps):
        start = begin + step * 2_000_000_000
        builder.add_span(
            span_id=step + 1, trace=(1, step + 1), name="update", start_ns=start, duration_ns=1_900_000_000,
            segment="state_interval", step=step,
        )  # fmt: skip
        series = builder.add_series("loss", "gauge", "", "{}")
        value = float("nan") if step == nan_at else 0.1
        builder.add_sample(series, time_ns=start + 1_900_000_000, value=value, step=step)
    who = Process(process_id=process, run_id="r1", host="node", pid=1, role="trainer", rank=0)
    return builder.build(who, sequence=sequence, sent_ns=0 if is_imported else time.time_ns(), final=final)


def test_a_finding_is_stored_listed_counted_muted_and_sent(make_services, client_of, receiver, wait_until):
    url, got = receiver
    services = make_services(f"alerts.webhook={url}/hook", "diagnosis.interval_s=0.1", "alerts.link=http://page")
    client = client_of(services)
    body = frame(encode(_batch()))
    assert client.post(
        "/api/v1/ingest", content=body, headers={"content-type": "application/vnd.rl-insight.frames"}
    ).is_success
    found = wait_until(lambda: client.get("/api/v1/findings").json())
    assert found[0]["rule"] == "non_finite"
    assert found[0]["culprit"]["metric"] == "loss"
    wait_until(lambda: "open_findings" in client.get("/metrics").text or None)
    wait_until(lambda: got)
    assert got[0]["path"] == "/hook"
    assert got[0]["finding"]["finding_id"] == found[0]["finding_id"]
    assert got[0]["link"].startswith("http://page/?run=r1")
    assert client.post("/api/v1/findings/mute?rule=non_finite").json() == {"rules": ["non_finite"]}
    assert client.get("/api/v1/findings").json() == []
    assert client.get("/api/v1/findings?muted=true").json()
    assert client.get("/api/v1/findings/mute").json() == {"rules": ["non_finite"]}
    assert client.post("/api/v1/findings/mute?rule=non_finite&muted=false").json() == {"rules": []}
    assert client.post("/api/v1/findings/mute?rule=nothing").status_code == 400
    missing = {one["rule"]: one["missing"] for one in client.get("/api/v1/findings/coverage").json()}
    assert "register the address" in missing["stuck_engine"]
    assert "non_finite" not in missing


def test_the_step_time_on_metrics_is_the_one_of_the_steps_view(make_services, client_of, wait_until):
    services = make_services("diagnosis.interval_s=0.1")
    client = client_of(services)
    headers = {"content-type": "application/vnd.rl-insight.frames"}
    assert client.post("/api/v1/ingest", content=frame(encode(_batch(steps=7))), headers=headers).is_success

    def on_metrics(name):
        line = re.search(rf'^rl_insight_monitor_{name}{{run_id="r1"}} (.+)$', client.get("/metrics").text, re.MULTILINE)
        return line and float(line[1])

    wait_until(lambda: on_metrics("run_last_step") == 6)
    last = client.get("/api/v1/steps?run=r1").json()[-1]
    assert last["step"] == 6
    # The last step of a run that has ended lasts until its last record.
    assert on_metrics("run_step_seconds") == (last["end_ns"] - last["start_ns"]) / 1e9 == 1.9


def test_the_step_that_a_crash_ended_is_the_same_on_metrics_and_in_the_steps_view(make_services, client_of, wait_until):
    services = make_services("diagnosis.interval_s=0.1")
    client = client_of(services)
    headers = {"content-type": "application/vnd.rl-insight.frames"}
    builder = BatchBuilder()
    begin_ns = time.time_ns() - 100_000_000_000
    times = [(step, 10 * step, 9) for step in range(5)] + [(5, 50, 3)]  # it was killed three seconds into step 5
    for step, start_s, length_s in times:
        builder.add_span(
            span_id=step + 1, trace=(1, step + 1), name="update", start_ns=begin_ns + start_s * 10**9,
            duration_ns=length_s * 10**9, segment="state_interval", step=step,
        )  # fmt: skip
    who = Process(process_id="trainer-0", run_id="r1", host="node", pid=1, role="trainer", rank=0, heartbeat_s=0.5)
    content = frame(encode(builder.build(who, sequence=1, sent_ns=time.time_ns(), final=False)))
    assert client.post("/api/v1/ingest", content=content, headers=headers).is_success
    wait_until(lambda: _last_step(services) == 5)
    step = services.diagnosis.last_steps()["r1"]
    assert (step.start_ns - begin_ns, step.end_ns - begin_ns) == (50 * 10**9, 53 * 10**9)
    assert 'run_step_seconds{run_id="r1"} 3.0' in client.get("/metrics").text
    last = client.get("/api/v1/steps?run=r1").json()[-1]
    assert (last["step"], last["start_ns"], last["end_ns"]) == step


def test_the_figures_of_a_run_that_ended_leave_metrics_with_its_other_series(
    make_services, client_of, wait_until, monkeypatch
):
    client = client_of(make_services("diagnosis.interval_s=0.1"))
    headers = {"content-type": "application/vnd.rl-insight.frames"}
    assert client.post("/api/v1/ingest", content=frame(encode(_batch())), headers=headers).status_code == 200

    def shown():
        return set(
            re.findall(
                r'_(open_findings|run_last_step|run_step_seconds)\{[^}]*run_id="r1"', client.get("/metrics").text
            )
        )

    wait_until(lambda: shown() == {"open_findings", "run_last_step", "run_step_seconds"})
    monkeypatch.setattr(diagnosis, "GRACE_S", 0.0)
    wait_until(lambda: shown() == set())


def _solved_steps(first, last, begin_ns):
    """Return a batch of steps in which more and more groups have identical rewards."""
    builder = BatchBuilder()
    series = builder.add_series("uniform_group_fraction", "gauge", "", "{}")
    for step in range(first, last):
        start = begin_ns + step * 2_000_000_000
        builder.add_span(
            span_id=step + 1, trace=(1, step + 1), name="update", start_ns=start, duration_ns=1_900_000_000,
            segment="state_interval", step=step,
        )  # fmt: skip
        builder.add_sample(series, time_ns=start + 1_900_000_000, value=0.6 + step / 1000, step=step)
    who = Process(process_id="trainer-0", run_id="r1", host="node", pid=1, role="trainer", rank=0)
    return builder.build(who, sequence=1 + first // 20, sent_ns=time.time_ns(), final=False)


def _last_step(services):
    step = services.diagnosis.last_steps().get("r1")
    return step and step.step


def _evaluated_steps(services):
    watched = services.diagnosis._watched.get("r1")
    return watched and watched.diagnosis.steps_seen


def test_the_last_numbers_of_an_open_finding_are_stored_when_the_server_stops(make_services, client_of, wait_until):
    services = make_services("diagnosis.interval_s=0.1")
    client = client_of(services)
    headers = {"content-type": "application/vnd.rl-insight.frames"}
    begin_ns = time.time_ns() - 2_000_000_000 * 60
    for first, last in ((0, 20), (20, 40)):
        content = frame(encode(_solved_steps(first, last, begin_ns)))
        assert client.post("/api/v1/ingest", content=content, headers=headers).is_success
        wait_until(lambda last=last: _evaluated_steps(services) == last - 1)
        wait_until(lambda: "dead_groups" in {one["rule"] for one in client.get("/api/v1/findings").json()})
    services.close()
    with make_services("diagnosis.enabled=false").runs.open("r1") as store, store.reader() as cursor:
        (stored,) = [one for one in queries.read_findings(cursor) if one.rule == "dead_groups"]
        (found,) = [one for one in replay(cursor).findings if one.rule == "dead_groups"]
    assert (stored.title, stored.last_step, stored.evidence) == (found.title, found.last_step, found.evidence)


@pytest.mark.parametrize("is_imported", [False, True])
def test_a_later_server_diagnoses_a_run_again_only_if_records_arrived_or_the_rules_changed(
    make_services, client_of, wait_until, monkeypatch, is_imported
):
    looked = []
    for owner, name in ((LiveDiagnosis, "evaluate"), (diagnosis, "replay")):
        whole = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *args, whole=whole: looked.append(1) or whole(*args))
    monkeypatch.setattr(diagnosis, "_QUIET_S", 0.0)
    headers = {"content-type": "application/vnd.rl-insight.frames"}

    def serve(*words, new=None):
        """Return how often a server evaluated the run until it was done."""
        services = make_services("diagnosis.interval_s=0.1", *words)
        looked.clear()
        if new is not None:
            assert client_of(services).post("/api/v1/ingest", content=frame(encode(new)), headers=headers).is_success
        services.diagnosis.note("r1")

        def is_done():
            with services.runs.open("r1") as store, store.reader() as cursor:
                told = queries.DIAGNOSED.read(cursor)
                is_told = told is not None and told.extent == queries.read_extent(cursor)
            known = services.diagnosis._watched.get("r1")
            return known is None or (is_told and known.diagnosed == told and bool(looked))

        wait_until(is_done)
        services.close()
        return len(looked)

    assert serve(new=_batch(is_imported=is_imported)) > 0
    assert serve() == 0
    words = ("diagnosis.rules.non_finite.enabled=false",)
    assert serve(*words) > 0
    assert serve(*words, new=_batch(process="trainer-1", is_imported=is_imported)) > 0


def test_silence_while_the_server_did_not_keep_up_is_its_own(make_services, client_of, wait_until):
    """After a server was suspended, starved or overloaded, processes get time to report before they count as dead."""
    services = make_services("diagnosis.interval_s=3600")
    client = client_of(services)
    headers = {"content-type": "application/vnd.rl-insight.frames"}
    begin_ns = time.time_ns() - 2_000_000_000 * 60
    for first, last, waited_s in ((0, 20, 0), (20, 40, 9)):  # the second one waited before it was taken
        batch = _solved_steps(first, last, begin_ns)
        late = msgspec.structs.replace(batch, sent_ns=batch.sent_ns - waited_s * 1_000_000_000)
        assert client.post("/api/v1/ingest", content=frame(encode(late)), headers=headers).is_success
    received_ns = time.time_ns()
    behind_ns = wait_until(lambda: services.ingest_delay.behind_ns(received_ns))
    assert behind_ns >= 8_000_000_000

    def said_after(seconds):
        live = LiveDiagnosis()
        now_ns = received_ns + seconds * 1_000_000_000 - behind_ns
        with services.runs.open("r1") as store:
            while not live.is_current(now_ns):
                with store.reader() as cursor:
                    live.evaluate(cursor, now_ns)
        return {one.rule for one in live.engine.open_findings()}

    assert "telemetry_gap" not in said_after(23)  # three heartbeats are 15 s, and what it sends now takes 9 s
    assert "telemetry_gap" in said_after(60)
    assert services.ingest_delay.behind_ns(received_ns + 60_000_000_000) == 0


def test_coverage_is_kept_with_the_run_and_answered_without_reading_its_records(
    make_services, client_of, wait_until, monkeypatch
):
    services = make_services("diagnosis.interval_s=0.1")
    client = client_of(services)
    headers = {"content-type": "application/vnd.rl-insight.frames"}
    assert client.post("/api/v1/ingest", content=frame(encode(_batch())), headers=headers).is_success

    def kept():
        with services.runs.open("r1") as store, store.reader() as cursor:
            return queries.COVERAGE.read(cursor)

    known = wait_until(kept)
    monkeypatch.setattr(ReplayFeed, "__init__", None)  # reading the run would fail
    assert client.get("/api/v1/findings/coverage").json() == [msgspec.to_builtins(one) for one in known]


def test_coverage_of_a_run_that_was_never_diagnosed_costs_its_last_minutes(make_services, client_of):
    services = make_services("diagnosis.enabled=false")
    client = client_of(services)
    headers = {"content-type": "application/vnd.rl-insight.frames"}
    assert client.post("/api/v1/ingest", content=frame(encode(_batch(steps=400))), headers=headers).is_success
    missing = {one["rule"] for one in client.get("/api/v1/findings/coverage").json()}
    assert "stuck_engine" in missing
    assert "non_finite" not in missing
    with services.runs.open("r1") as store, store.reader() as cursor:
        spans = ReplayFeed(cursor).last_tick().spans
    assert 100 < len(spans.end_ns) < 200


def test_slack_gets_one_line_of_text_and_a_link(make_services, client_of, receiver, wait_until):
    url, got = receiver
    services = make_services(f"alerts.slack={url}/slack", "diagnosis.interval_s=0.1", "alerts.link=http://page")
    client = client_of(services)
    headers = {"content-type": "application/vnd.rl-insight.frames"}
    assert client.post("/api/v1/ingest", content=frame(encode(_batch())), headers=headers).is_success
    (message, *_) = wait_until(lambda: got)
    assert message["path"] == "/slack"
    assert set(message) == {"path", "text"}
    first, *rest = message["text"].splitlines()
    assert first.startswith(":red_circle: *r1* critical opened: ")
    assert "loss" in first
    assert rest[-1].startswith("<http://page/?run=r1#/findings?finding=non_finite-")


def test_a_command_gets_the_finding_on_its_standard_input(make_services, client_of, tmp_path, wait_until):
    told = tmp_path / "told.json"
    services = make_services(f"alerts.command=cat >> '{told}'", "diagnosis.interval_s=0.1")
    client = client_of(services)
    headers = {"content-type": "application/vnd.rl-insight.frames"}
    assert client.post("/api/v1/ingest", content=frame(encode(_batch())), headers=headers).is_success
    text = wait_until(lambda: told.exists() and told.read_text())
    alert = json.loads(text)
    assert (alert["event"], alert["run_id"], alert["finding"]["rule"]) == ("opened", "r1", "non_finite")


def test_a_finding_is_reported_when_it_becomes_severe_enough_and_only_once(receiver, wait_until):
    url, got = receiver
    alerts = Alerts(AlertSettings(webhook=url, severity="warning"), pause_s=0.01)
    told: set[str] = set()
    try:
        for severity in ("info", "warning", "critical"):
            announce(alerts, "r1", told, [msgspec.structs.replace(FINDING, severity=severity)], frozenset())
        wait_until(lambda: got)
    finally:
        alerts.close()
    assert [one["finding"]["severity"] for one in got] == ["warning"]


def test_an_alert_to_another_host_goes_through_the_proxy_of_the_environment(receiver, wait_until, monkeypatch):
    url, got = receiver
    monkeypatch.setenv("http_proxy", url)
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    alerts = Alerts(AlertSettings(webhook="http://hooks.invalid/a?b=c"), pause_s=0.01)
    try:
        alerts.send("r1", FINDING, "opened")
        wait_until(lambda: got)
    finally:
        alerts.close()
    assert [one["path"] for one in got] == ["http://hooks.invalid:80/a?b=c"]


@pytest.mark.parametrize("problem", ["refused", "unreachable"])
def test_the_secret_of_a_slack_url_is_not_logged_when_delivery_fails(
    receiver, wait_until, caplog, monkeypatch, problem
):
    monkeypatch.setattr("rl_insight.server.alerts._RETRIES", 0)
    url, _ = receiver  # it answers the first request with 503
    base = url if problem == "refused" else "http://127.0.0.1:9"
    alerts = Alerts(AlertSettings(slack=f"{base}/services/T000/SECRET"))
    try:
        alerts.send("r1", FINDING, "opened")
        wait_until(lambda: caplog.text)
    finally:
        alerts.close()
    assert "cannot deliver an alert to alerts.slack: it " in caplog.text
    assert "SECRET" not in caplog.text


def test_an_alert_is_announced_only_once_the_queue_has_room_for_it(receiver, wait_until, monkeypatch):
    url, got = receiver
    monkeypatch.setattr("rl_insight.server.alerts._WAITING", 0)
    alerts = Alerts(AlertSettings(webhook=url), pause_s=0.01)
    told: set[str] = set()
    try:
        assert not announce(alerts, "r1", told, [FINDING], frozenset())
        assert (told, alerts.counts()) == (set(), {"delivered": 0, "failed": 0, "postponed": 1})
        monkeypatch.setattr("rl_insight.server.alerts._WAITING", 1)
        assert announce(alerts, "r1", told, [FINDING], frozenset())
        wait_until(lambda: got)
        monkeypatch.setattr("rl_insight.server.alerts._WAITING", 0)
        resolved = msgspec.structs.replace(FINDING, status="resolved")
        assert not announce(alerts, "r1", told, [resolved], frozenset())
        assert told == {FINDING.finding_id}
        monkeypatch.setattr("rl_insight.server.alerts._WAITING", 1)
        assert announce(alerts, "r1", told, [resolved], frozenset())
        wait_until(lambda: len(got) == 2)
    finally:
        alerts.close()
    assert told == set()
    assert [one["event"] for one in got] == ["opened", "resolved"]
    assert not alerts.send("r1", FINDING, "opened")  # nothing delivers it any more


@pytest.mark.parametrize("is_imported", [False, True])
def test_a_postponed_alert_is_sent_later_even_if_the_run_has_ended(
    make_services, client_of, receiver, wait_until, monkeypatch, is_imported
):
    url, got = receiver
    monkeypatch.setattr("rl_insight.server.alerts._WAITING", 0)
    monkeypatch.setattr(diagnosis, "_QUIET_S", 0.0)
    services = make_services(f"alerts.webhook={url}", "diagnosis.interval_s=0.1")
    client = client_of(services)
    headers = {"content-type": "application/vnd.rl-insight.frames"}
    body = frame(encode(_batch(is_imported=is_imported)))
    assert client.post("/api/v1/ingest", content=body, headers=headers).is_success
    wait_until(lambda: client.get("/api/v1/status").json()["alerts"]["postponed"] > 3)
    assert 'rl_insight_monitor_server_alerts_total{result="postponed"}' in client.get("/metrics").text
    monkeypatch.setattr(diagnosis, "_WATCH_S", 0.0)
    monkeypatch.setattr("rl_insight.server.alerts._WAITING", 1)
    wait_until(lambda: got)
    assert got[0]["finding"]["rule"] == "non_finite"


def test_closing_ends_the_thread_even_if_many_alerts_wait_for_a_receiver_that_is_down(monkeypatch, wait_until, caplog):
    monkeypatch.setattr("rl_insight.server.alerts._WAITING", 5)
    is_delivering, may_fail = threading.Event(), threading.Event()

    def post(_url, _body):
        is_delivering.set()
        may_fail.wait(20)
        raise OSError("it does not answer")

    monkeypatch.setattr("rl_insight.server.alerts._post", post)
    alerts = Alerts(AlertSettings(webhook="http://127.0.0.1:9"), pause_s=0.01)
    alerts.send("r1", FINDING, "opened")
    assert is_delivering.wait(20)
    for _ in range(5):
        assert alerts.send("r1", FINDING, "opened")
    alerts.close(timeout_s=0.0)
    may_fail.set()
    wait_until(lambda: not alerts._thread.is_alive())
    assert alerts.counts() == {"delivered": 0, "failed": 6, "postponed": 0}
    assert "stopped before 5 alerts were delivered" in caplog.text


def test_an_alert_that_cannot_be_sent_at_all_does_not_end_the_delivery_of_others(receiver, wait_until, monkeypatch):
    url, got = receiver
    monkeypatch.setattr("rl_insight.server.alerts._RETRIES", 1)
    deliver, problems = alerting._post, iter([ValueError("unexpected")] * 2)

    def post(*args):
        if (problem := next(problems, None)) is not None:
            raise problem
        deliver(*args)

    monkeypatch.setattr("rl_insight.server.alerts._post", post)
    sender = Alerts(AlertSettings(webhook=url), pause_s=0.01)
    try:
        sender.send("r1", FINDING, "opened")
        sender.send("r1", FINDING, "resolved")
        wait_until(lambda: got)
    finally:
        sender.close()
    assert [one["event"] for one in got] == ["resolved"]
    assert sender.failed == 1


def _alerting(sequence, level):
    """Return a batch whose training code raises an alert."""
    builder = BatchBuilder()
    time_ns = time.time_ns() - 20_000_000_000
    builder.add_span(
        span_id=1_000 + sequence, trace=(1, sequence), name="work", start_ns=time_ns, duration_ns=1_000_000_000
    )
    builder.add_event(time_ns=time_ns, name="alert", attributes=json.dumps({"title": level, "level": level}))
    who = Process(process_id="trainer-0", run_id="r1", host="node", pid=1, role="trainer", rank=0)
    return builder.build(who, sequence=sequence, sent_ns=time.time_ns(), final=False)


def test_a_finding_that_was_reported_is_not_reported_again_by_a_later_server(
    make_services, client_of, receiver, wait_until
):
    url, got = receiver
    headers = {"content-type": "application/vnd.rl-insight.frames"}
    # The most severe is told first: once the later one is told, the first would have been told again.
    for sequence, level in ((1, "critical"), (2, "warning")):
        services = make_services(f"alerts.webhook={url}", "diagnosis.interval_s=0.1")
        body = frame(encode(_alerting(sequence, level)))
        assert client_of(services).post("/api/v1/ingest", content=body, headers=headers).is_success
        wait_until(lambda level=level: level in {one["finding"]["title"] for one in got})
        services.close()
    assert [one["finding"]["title"] for one in got] == ["critical", "warning"]


def test_a_later_server_reports_that_a_finding_is_resolved_and_nothing_about_older_ones(
    make_services, client_of, receiver, wait_until, monkeypatch
):
    url, got = receiver
    monkeypatch.setattr(LiveDiagnosis.evaluate, "__defaults__", (0.0,))  # one tick at a time
    monkeypatch.setattr(diagnosis, "_CATCH_UP_S", 0.01)
    headers = {"content-type": "application/vnd.rl-insight.frames"}
    parts = (
        _batch(20, 18, age_s=100, final=False),
        _batch(40, first=20, nan_at=None, age_s=100, final=False, sequence=2),
        _alerting(3, "critical"),
    )
    for number, part in enumerate(parts):
        services = make_services(f"alerts.webhook={url}", "diagnosis.interval_s=0.1")
        assert client_of(services).post("/api/v1/ingest", content=frame(encode(part)), headers=headers).is_success
        wait_until(lambda number=number: len(got) > number)
        services.close()
    told = [(one["event"], one["finding"]["rule"]) for one in got]
    assert told == [("opened", "non_finite"), ("resolved", "non_finite"), ("opened", "alert")]


def test_evaluations_that_take_long_come_less_often_and_never_more_seldom_than_twice_the_interval(make_services):
    service = make_services("diagnosis.interval_s=5").diagnosis
    assert [service._pause_s(took_s) for took_s in (0.0, 0.1, 0.15, 9.0)] == [
        5.0,
        5.0,
        pytest.approx(0.15 / 0.02),
        10.0,
    ]


def test_without_diagnosis_nothing_is_remembered_about_runs(make_services):
    service = make_services("diagnosis.enabled=false").diagnosis
    service.note("r1")
    assert service._watched == {}
