"""Metrics derived from spans are sent by sinks that accept metrics, with the same values as on `/metrics`."""

from __future__ import annotations

import time

import pytest
from prometheus_client.parser import text_string_to_metric_families

from rl_insight.collector import SeriesTable, SinkContext
from rl_insight.collector.derived import DURATION_BOUNDS, DerivedMetrics
from rl_insight.collector.sinks.otlp import otlp_sinks
from rl_insight.collector.sinks.remote_write import RemoteWriteSink
from rl_insight.metrics.prometheus import render
from rl_insight.schema import OPEN
from rl_insight.server.config import load_settings
from rl_insight.server.services import Services

SECOND = 1_000_000_000
STATE = {"segment": "state_interval"}


class Clock:
    def __init__(self):
        self.now_ns = time.time_ns()

    def __call__(self):
        return self.now_ns


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def derived(clock):
    return DerivedMetrics(clock=clock)


@pytest.fixture(params=["prometheus", "victoria-metrics"])
def receiver(request):
    """A real receiver of remote-write."""
    if request.param == "prometheus":
        words = ("--web.enable-remote-write-receiver", "--enable-feature=exemplar-storage")
        return request.getfixturevalue("start_prometheus")([], *words)
    return request.getfixturevalue("start_victoria_metrics")()


def context_of(derived):
    """The context that a collector with these derived metrics shares with its sinks."""
    return SinkContext("t", derived.started_ns, SeriesTable(), [derived])


@pytest.fixture
def make_sink(derived):
    made = []

    def make(url, **options):
        made.append(RemoteWriteSink(url, **options))
        made[-1].attach(context_of(derived))
        return made[-1]

    yield make
    for sink in made:
        sink.close()


def trainer(fake_process, clock):
    """A process that has finished two steps and has an open state."""
    process = fake_process("trainer-0", role="trainer", rank=0)
    start = {"start_ns": clock.now_ns - 60 * SECOND}
    process.span("update", 1, 2 * SECOND, trace=(5, 7), step=1, **start, **STATE)
    process.span("update", 2, 3 * SECOND, trace=(5, 8), step=2, **start, **STATE)
    process.span("session", 3, 9 * SECOND, trace=(5, 9), segment="session", **start)
    return process.span("sync", 4, OPEN, **start, **STATE)


def page_of(derived):
    """The derived series on /metrics: names and labels with values, as a receiver returns them."""
    body, _ = render(derived.families(), "t")
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(body.decode())
        for sample in family.samples
    }


def found_in(receiver):
    found = {}
    for labels, value in receiver.query('{__name__=~"t_.+"}'):
        name = labels.pop("__name__")
        if "le" in labels:
            labels["le"] = str(float(labels["le"]))
        found[(name, *sorted(labels.items()))] = value
    return found


def as_numbers(page):
    return {
        (name, *(("le", str(float(value))) if key == "le" else (key, value) for key, value in labels)): number
        for (name, *labels), number in page.items()
    }


def test_a_real_receiver_has_what_the_page_shows(receiver, make_sink, derived, fake_process, clock, wait_until):
    sink = make_sink(f"{receiver.url}/api/v1/write")
    batch = trainer(fake_process, clock).batch(sent_ns=clock.now_ns)
    derived.write(batch)
    sink.write(batch)
    sink.flush()
    expected = as_numbers(page_of(derived))
    assert any(name == "t_span_duration_seconds_bucket" for name, *_ in expected)
    wait_until(lambda: found_in(receiver) == pytest.approx(expected, rel=1e-9))
    assert sink.get_status()["refused_samples"] == 0


def test_exemplars_lead_from_a_pushed_histogram_to_a_trace(
    start_prometheus, make_sink, derived, fake_process, clock, wait_until
):
    prometheus = start_prometheus([], "--web.enable-remote-write-receiver", "--enable-feature=exemplar-storage")
    sink = make_sink(f"{prometheus.url}/api/v1/write")
    batch = trainer(fake_process, clock).batch()
    derived.write(batch)
    sink.write(batch)
    sink.flush()

    def traces():
        found = prometheus.api("query_exemplars", query="t_span_duration_seconds_bucket", start=0, end=9999999999)
        return {one["labels"]["trace_id"] for series in found for one in series["exemplars"]}

    assert wait_until(traces) == {f"{5:016x}{low:016x}" for low in (7, 8, 9)}


def test_series_of_a_process_that_ended_end(start_prometheus, make_sink, derived, fake_process, clock, wait_until):
    prometheus = start_prometheus([], "--web.enable-remote-write-receiver")
    sink = make_sink(f"{prometheus.url}/api/v1/write")
    process = trainer(fake_process, clock)
    for final in (False, True):
        batch = process.batch(sent_ns=clock.now_ns, final=final)
        derived.write(batch)
        sink.write(batch)
        sink.flush()
        if not final:
            wait_until(lambda: prometheus.query("t_open_spans"))
    wait_until(lambda: not prometheus.query("t_open_spans"))
    assert prometheus.query("t_spans_total"), "what was counted stays"


def test_what_did_not_change_is_sent_again_only_after_a_while(
    http_receiver, make_sink, derived, fake_process, clock
):  # fmt: skip
    sink = make_sink(http_receiver.url, clock=clock, repeat_s=60.0)
    batch = trainer(fake_process, clock).batch()
    derived.write(batch)
    sink.write(batch)
    sent = []
    for _ in range(3):
        before = sink.get_status()["sent_samples"]
        sink.flush()
        sent.append(sink.get_status()["sent_samples"] - before)
    everything = len(page_of(derived))
    assert sent == [everything, 0, 0]
    # Only what depends on the time has changed: the age of the open span.
    clock.now_ns += SECOND
    sink.flush()
    assert sink.get_status()["sent_samples"] == everything + 1
    clock.now_ns += 60 * SECOND
    sink.flush()
    assert sink.get_status()["sent_samples"] == 2 * everything + 1


def test_a_server_pushes_them_where_its_settings_say(
    start_prometheus, otlp_receiver, fake_process, clock, tmp_path, wait_until
):
    prometheus = start_prometheus([], "--web.enable-remote-write-receiver")
    words = [
        f"sinks.remote_write.url={prometheus.url}/api/v1/write",
        f"sinks.otlp.endpoint={otlp_receiver.url}",
        "sinks.otlp.signals=[metrics]",
    ]
    services = Services(load_settings(words=words, options={"data_dir": str(tmp_path / "data")}))
    try:
        # Each sink has a thread of its own: what the first batch made is there for the second.
        process = trainer(fake_process, clock)
        services.collector.ingest(process.payload())
        assert services.collector.wait_idle(10.0)
        services.collector.ingest(process.payload())
        assert services.collector.wait_idle(10.0)
        wait_until(lambda: prometheus.query('rl_insight_monitor_spans_total{span_name="update"} == 2'))
        assert any("spans" in points_of(request)[0] for request in otlp_receiver.requests)
    finally:
        services.close()


def points_of(request):
    """Metrics by name, and their resources."""
    metrics, resources = {}, []
    for resource in request.resource_metrics:
        resources.append({pair.key: pair.value.string_value for pair in resource.resource.attributes})
        metrics |= {metric.name: metric for scope in resource.scope_metrics for metric in scope.metrics}
    return metrics, resources


@pytest.fixture
def otlp_sink(otlp_receiver, derived, clock):
    (sink,) = otlp_sinks(otlp_receiver.url, signals=["metrics"], clock=clock)
    sink.attach(context_of(derived))
    yield sink
    sink.close()


def labels_of(point):
    return {pair.key: pair.value.string_value for pair in point.attributes}


def test_otlp_carries_what_the_page_shows(otlp_receiver, otlp_sink, derived, fake_process, clock):
    batch = trainer(fake_process, clock).batch(sent_ns=clock.now_ns)
    derived.write(batch)
    otlp_sink.write(batch)
    otlp_sink.flush()
    (request,) = otlp_receiver.requests
    metrics, resources = points_of(request)
    page = page_of(derived)
    names = {name.removeprefix("t_").removesuffix("_total") for name, *_ in page}
    whole = {name for name in names if not name.endswith(("_bucket", "_count", "_sum"))}
    assert whole - set(metrics) == {"derived_overflow"}, "which is about no run, and zero"
    assert {(one["service.name"], one["run_id"]) for one in resources} >= {("rl-insight", "r1")}
    (state,) = [one for one in metrics["state_seconds"].sum.data_points if labels_of(one)["state"] == "update"]
    assert (state.as_double, state.start_time_unix_nano) == (5.0, derived.started_ns)
    assert metrics["state_seconds"].sum.is_monotonic
    (step,) = metrics["current_step"].gauge.data_points
    assert step.as_double == 2.0
    assert labels_of(step)["role"] == "trainer"


def test_otlp_histograms_have_the_bounds_of_the_page_and_exemplars(
    otlp_receiver, otlp_sink, derived, fake_process, clock
):
    batch = trainer(fake_process, clock).batch()
    derived.write(batch)
    otlp_sink.write(batch)
    otlp_sink.flush()
    metrics, _ = points_of(otlp_receiver.requests[0])
    histogram = metrics["span_duration_seconds"].histogram
    (point,) = [one for one in histogram.data_points if labels_of(one)["span_name"] == "update"]
    assert (point.count, point.sum) == (2, 5.0)
    assert tuple(point.explicit_bounds) == DURATION_BOUNDS
    filled = [position for position, count in enumerate(point.bucket_counts) if count]
    assert [DURATION_BOUNDS[position - 1] < value <= DURATION_BOUNDS[position]
            for position, value in zip(filled, (2.0, 3.0), strict=True)] == [True, True]  # fmt: skip
    assert {one.trace_id.hex() for one in point.exemplars} == {f"{5:016x}{low:016x}" for low in (7, 8)}


def test_otlp_gets_derived_metrics_now_and_then_only(otlp_receiver, otlp_sink, derived, fake_process, clock):
    process = trainer(fake_process, clock)
    for _ in range(3):
        batch = process.count("steps").batch()
        derived.write(batch)
        otlp_sink.write(batch)
        otlp_sink.flush()
    clock.now_ns += 10 * SECOND
    otlp_sink.write(process.count("steps").batch())
    otlp_sink.flush()
    assert ["spans" in points_of(request)[0] for request in otlp_receiver.requests] == [True, False, False, True]
