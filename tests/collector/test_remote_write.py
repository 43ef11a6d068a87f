"""The remote-write sink's requests, and how real receivers handle them."""

from __future__ import annotations

import math
import random
import re
import socket
import time

import cramjam
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from rl_insight.collector import Collector, SeriesTable, SinkContext, SinkRunner
from rl_insight.collector.derived import DerivedMetrics
from rl_insight.collector.sinks.remote_write import RemoteWriteSink
from rl_insight.errors import ConfigError, TransportError
from rl_insight.schema import encode
from rl_insight.schema.histogram import bucket_code

MINUTE_NS = 60_000_000_000


def _write_request_class():
    """Return the class of `prometheus.WriteRequest`, as in its published definition."""
    file = descriptor_pb2.FileDescriptorProto(name="remote_write.proto", package="prometheus", syntax="proto3")
    kinds = {"double": 1, "int64": 3, "enum": 13, "string": 9}
    messages = {
        "Label": [("name", 1, "string", False), ("value", 2, "string", False)],
        "Sample": [("value", 1, "double", False), ("timestamp", 2, "int64", False)],
        "TimeSeries": [("labels", 1, "Label", True), ("samples", 2, "Sample", True)],
        "MetricMetadata": [
            ("type", 1, "enum", False),
            ("metric_family_name", 2, "string", False),
            ("help", 4, "string", False),
            ("unit", 5, "string", False),
        ],
        "WriteRequest": [("timeseries", 1, "TimeSeries", True), ("metadata", 3, "MetricMetadata", True)],
    }
    for name, entries in messages.items():
        message = file.message_type.add(name=name)
        for field, number, kind, repeated in entries:
            added = message.field.add(name=field, number=number, label=3 if repeated else 1)
            if kind in kinds:
                added.type = kinds[kind]
            else:
                added.type, added.type_name = 11, f".prometheus.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("prometheus.WriteRequest"))


WriteRequest = _write_request_class()


class Clock:
    """A wall clock that stands still unless it is advanced."""

    def __init__(self):
        self.now_ns = 1_800_000_000_000_000_000

    def __call__(self):
        return self.now_ns


@pytest.fixture
def received(http_receiver):
    """Read the samples: `received()` returns ``{series: [(time_ms, value), ...]}``, in the order of arrival."""

    def read():
        found = {}
        for body in http_receiver.requests:
            for series in WriteRequest.FromString(bytes(cramjam.snappy.decompress_raw(body))).timeseries:
                names = [label.name for label in series.labels]
                assert names == sorted(set(names)), "labels must be sorted and unique"
                key = ",".join(f"{label.name}={label.value}" for label in series.labels)
                found.setdefault(key, []).extend((sample.timestamp, sample.value) for sample in series.samples)
        return found

    return read


class Attached:
    """A sink with a collector's series table: a batch is merged there before the sink gets it."""

    def __init__(self, sink, namespace="rl_insight_monitor"):
        self.table = SeriesTable()
        self.sink = sink
        sink.attach(SinkContext(namespace, 0, self.table, []))

    def write(self, batch):
        self.table.apply(batch)
        self.sink.write(batch)

    def __getattr__(self, name):
        return getattr(self.sink, name)


@pytest.fixture
def make_sink(http_receiver):
    made = []

    def make(url=http_receiver.url, namespace="rl_insight_monitor", **options):
        made.append(Attached(RemoteWriteSink(url, **options), namespace))
        return made[-1]

    yield make
    for sink in made:
        sink.close()


def send(sink, *batches):
    for batch in batches:
        sink.write(batch)
    sink.flush()


def exposed(collector):
    """Return the user's series on /metrics in the form of `received`: labels sorted, the name among them."""
    found = {}
    for line in collector.metrics_page()[0].decode().splitlines():
        match = re.fullmatch(r"(\w+)\{(.*)\} (\S+)", line)
        if match and "_collector_" not in match[1] and "telemetry_lost" not in match[1]:
            pairs = [("__name__", match[1]), *re.findall(r'(\w+)="([^"]*)"', match[2])]
            found[",".join(f"{name}={value}" for name, value in sorted(pairs))] = float(match[3])
    return found


def test_series_are_those_of_the_metrics_page(make_sink, received, fake_process):
    sink, collector = make_sink(), Collector()
    first = fake_process("p1").count("steps", 3, Rank="0", zone="b").gauge("timing_s/step", 1.5, le="x")
    first.observe("latency", 0.1, 0.2, 900.0, 0.0, -3.0, a="1", z="2")
    second = fake_process("p2").count("steps", 4, Rank="0", zone="b").observe("latency", 5.0, a="1", z="2")
    for batch in (first.batch(), second.batch()):
        collector.ingest(encode(batch))
        sink.write(batch)
    sink.flush()
    assert {key: points[-1][1] for key, points in received().items()} == exposed(collector)
    assert any("le=+Inf" in key for key in received())


def test_request_says_what_it_is(make_sink, http_receiver, fake_process):
    sink = make_sink(f"{http_receiver.url}/api/v1/write", headers={"Authorization": "Bearer t"})
    send(sink, fake_process().count("steps").batch())
    (headers,) = http_receiver.headers
    assert http_receiver.paths == ["/api/v1/write"]
    assert headers["Content-Encoding"] == "snappy"
    assert headers["Content-Type"] == "application/x-protobuf"
    assert headers["X-Prometheus-Remote-Write-Version"] == "0.1.0"
    assert headers["Authorization"] == "Bearer t"


def test_user_and_password_in_the_url_become_basic_authentication_and_are_not_shown(
    make_sink, http_receiver, fake_process
):
    sink = make_sink(http_receiver.url.replace("http://", "http://me:p%40ss@"))
    send(sink, fake_process().count("steps").batch())
    assert http_receiver.headers[0]["Authorization"] == "Basic bWU6cEBzcw=="
    assert sink.get_status()["url"] == http_receiver.url


def test_metadata_reports_kind_and_documentation_once_in_a_while(make_sink, http_receiver, fake_process):
    clock = Clock()
    sink = make_sink(clock=clock)
    process = fake_process()
    for minutes in (0, 1, 11):
        clock.now_ns += minutes * MINUTE_NS
        send(sink, process.count("steps", documentation="Steps done.").observe("latency", 1.0).batch())
    requests = [WriteRequest.FromString(bytes(cramjam.snappy.decompress_raw(body))) for body in http_receiver.requests]
    described = [{(one.metric_family_name, one.type, one.help) for one in request.metadata} for request in requests]
    both = {
        ("rl_insight_monitor_steps_total", 1, "Steps done."),
        ("rl_insight_monitor_latency", 3, "Histogram latency"),
    }
    assert described == [both, set(), both]


def test_counter_is_the_sum_over_processes_and_a_repeated_batch_changes_nothing(make_sink, received, fake_process):
    clock = Clock()
    sink = make_sink(clock=clock, namespace="")
    batches = [fake_process(name).count("steps", 2).batch() for name in ("a", "b")]
    for batch in (*batches, batches[0]):
        clock.now_ns += 1_000_000_000
        send(sink, batch)
    (points,) = received().values()
    assert [value for _, value in points] == [2.0, 4.0, 4.0]


def test_gauge_keeps_every_value_with_its_own_time_and_in_order(make_sink, received, fake_process):
    clock = Clock()
    sink = make_sink(clock=clock)
    second = 1_000_000_000
    process = fake_process()
    for offset, value in ((3, 3.0), (1, 1.0), (2, math.inf)):
        process.gauge("reward", value, time_ns=clock.now_ns + offset * second)
    send(sink, process.batch())
    process.gauge("reward", 2.5, time_ns=clock.now_ns + 2 * second + second // 2)  # not newer than what was sent
    process.gauge("reward", 4.0, time_ns=clock.now_ns + 4 * second)
    process.gauge("reward", 4.5, time_ns=clock.now_ns + 4 * second + 10)  # in the same millisecond
    send(sink, process.batch())
    (points,) = received().values()
    start_ms = clock.now_ns // 1_000_000
    assert points == [
        (start_ms + 1000, 1.0),
        (start_ms + 2000, math.inf),
        (start_ms + 3000, 3.0),
        (start_ms + 4000, 4.5),
    ]
    assert sink.get_status()["late_samples"] == 1


def test_times_of_a_counter_grow_even_when_the_clock_is_set_back(make_sink, received, fake_process):
    clock = Clock()
    sink = make_sink(clock=clock)
    process = fake_process()
    for _ in range(3):
        send(sink, process.count("steps").batch())
        clock.now_ns -= MINUTE_NS
    (points,) = received().values()
    times = [time_ms for time_ms, _ in points]
    assert times == sorted(set(times))


def test_series_without_change_are_not_sent_but_repeated_while_the_run_lives(make_sink, received, fake_process):
    clock = Clock()
    sink = make_sink(clock=clock)
    process, other = fake_process(), fake_process("p2")
    start_ms = clock.now_ns // 1_000_000
    send(sink, process.count("steps").gauge("reward", 0.5, time_ns=clock.now_ns).batch())
    clock.now_ns += MINUTE_NS // 2
    send(sink, other.count("other").batch())
    clock.now_ns += MINUTE_NS
    send(sink, other.batch())  # nothing but a sign of life
    found = {key.partition(",")[0]: points for key, points in received().items()}
    name = "__name__=rl_insight_monitor_"
    assert [time_ms - start_ms for time_ms, _ in found[f"{name}steps_total"]] == [0, 90_000]
    # By the clock of whoever set it, and a little late: its next value must not come out of order.
    assert found[f"{name}reward"] == [(start_ms, 0.5), (start_ms + 75_000, 0.5)]
    send(sink, process.gauge("reward", 0.75, time_ns=clock.now_ns).batch())
    assert sink.get_status()["late_samples"] == 0


def test_series_of_a_run_that_left_the_page_are_marked_as_ended(make_sink, received, fake_process):
    clock = Clock()
    sink = make_sink(clock=clock)
    gone, other = fake_process("p1", run_id="gone"), fake_process("p2", run_id="other")
    gone.count("steps").gauge("reward", 0.5, time_ns=clock.now_ns).observe("latency", 1.0)
    send(sink, gone.batch(), other.count("steps").batch())
    sink.table.drop_run("gone")
    clock.now_ns += MINUTE_NS
    send(sink, other.batch())
    last = {key: points[-1][1] for key, points in received().items()}
    ended = {key for key, value in last.items() if math.isnan(value)}
    assert ended == {key for key in last if "run_id=gone" in key}
    assert any("le=" in key for key in ended)
    clock.now_ns += MINUTE_NS
    send(sink, other.batch())
    assert sum(math.isnan(value) for points in received().values() for _, value in points) == len(ended)


def test_the_last_run_that_ended_is_marked_although_nothing_reports_any_more(
    http_receiver, received, fake_process, wait_until
):
    sink = RemoteWriteSink(http_receiver.url, flush_interval_s=0.02, repeat_s=0.05)
    derived = DerivedMetrics(forget_after_s=1.0)
    collector = Collector([sink, derived], forget_after_s=1.0)
    process = fake_process().count("steps").gauge("reward", 0.5).observe("latency", 1.0).span("work")
    collector.ingest(process.payload(final=True))

    def last():
        return {key: points[-1][1] for key, points in received().items() if "run_id=r1" in key}

    for name in ("steps_total", "reward", "latency_bucket", "spans_total"):
        wait_until(lambda name=name: any(f"__name__=rl_insight_monitor_{name}," in key for key in last()))
    wait_until(lambda: all(math.isnan(value) for value in last().values()))
    collector.close()


def test_new_bucket_appears_in_every_series_of_the_histogram(make_sink, received, fake_process):
    sink = make_sink()
    process = fake_process()
    send(sink, process.observe("latency", 1.0, rank="0").batch())
    send(sink, process.observe("latency", 100.0, rank="1").batch())
    bounds = {}
    for key in received():
        if match := re.search(r"le=([^,]*).*rank=(\d)", key):
            bounds.setdefault(match[2], set()).add(match[1])
    assert bounds["0"] == bounds["1"]
    assert len(bounds["0"]) > 3


def test_large_flush_is_cut_into_requests(make_sink, http_receiver, received, fake_process):
    sink = make_sink(max_samples=10)
    process = fake_process()
    for number in range(35):
        process.count("steps", rank=str(number))
    send(sink, process.batch())
    assert len(http_receiver.requests) == 4
    assert len(received()) == 35
    assert sink.get_status()["sent_samples"] == 35


def test_gauges_are_sent_before_the_time_when_enough_are_gathered(make_sink, http_receiver, fake_process):
    sink = make_sink(max_samples=3)
    process = fake_process()
    for number in range(4):
        sink.write(process.gauge("reward", 1.0, rank=str(number)).batch())
    assert len(http_receiver.requests) == 1
    assert sink.get_status()["pending_samples"] == 1


def test_transient_failures_are_retried(make_sink, http_receiver, received, fake_process):
    http_receiver.answers = [(500, {}, b""), (429, {"Retry-After": "0"}, b""), (503, {}, b"")]
    sink = make_sink()
    send(sink, fake_process().count("steps").batch())
    assert len(received()) == 1
    status = sink.get_status()
    assert (status["requests"], status["retries"], status["lost_samples"]) == (4, 3, 0)


def test_receiver_that_stays_down_is_abandoned_within_the_bound(make_sink, fake_process):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        sink = make_sink(f"http://127.0.0.1:{taken.getsockname()[1]}", retry_for_s=0.3, max_samples=1)
        for rank in "012":
            sink.write(fake_process().count("steps", rank=rank).batch())
        with pytest.raises(TransportError, match="does not answer"):
            sink.flush()
    assert sink.get_status()["lost_samples"] == 3


def test_refusal_is_not_retried_and_reported_in_the_receivers_words(make_sink, http_receiver, fake_process):
    http_receiver.answers = [(401, {}, b"no token\n")]
    sink = make_sink()
    sink.write(fake_process().count("steps").batch())
    with pytest.raises(TransportError, match="401 no token"):
        sink.flush()
    status = sink.get_status()
    assert (status["refused_samples"], status["sent_samples"], status["retries"]) == (1, 0, 0)
    assert "401 no token" in status["last_refusal"]


@pytest.mark.parametrize("url", ["", "localhost:9090", "ftp://host/x", "http://", "http://host:99999999"])
def test_address_that_is_not_a_url_is_refused(url):
    with pytest.raises(ConfigError, match="http or https URL"):
        RemoteWriteSink(url)


def test_slow_receiver_delays_nobody_and_memory_stays_bounded(http_receiver, fake_process, wait_until):
    http_receiver.may_answer.clear()
    runner = SinkRunner(Attached(RemoteWriteSink(http_receiver.url, flush_interval_s=0.01)), max_batches=5)
    process = fake_process()
    runner.put(process.count("steps").batch(), 10)
    wait_until(lambda: http_receiver.paths)
    for _ in range(50):
        runner.put(process.count("steps").batch(), 10)
    assert runner.get_status().queued <= 6
    assert runner.get_status().dropped == 45
    http_receiver.may_answer.set()
    runner.close(30.0)
    # What was dropped is made good by what came after it.
    last = WriteRequest.FromString(bytes(cramjam.snappy.decompress_raw(http_receiver.requests[-1])))
    assert last.timeseries[0].samples[-1].value == 51.0


@pytest.fixture(params=["prometheus", "victoria-metrics"])
def receiver(request):
    """A real receiver of remote-write, and its endpoint."""
    if request.param == "prometheus":
        start = request.getfixturevalue("start_prometheus")
        return start([], "--web.enable-remote-write-receiver")
    return request.getfixturevalue("start_victoria_metrics")()


def write_url(receiver):
    return f"{receiver.url}/api/v1/write"


def values(receiver, expression):
    """Return the values of a query by the label `rank`."""
    return {labels.get("rank", ""): value for labels, value in receiver.query(expression)}


def test_real_receiver_has_the_values_that_were_recorded(receiver, make_sink, fake_process, wait_until):
    sink = make_sink(write_url(receiver), namespace="t")
    first, second = fake_process("p1"), fake_process("p2")
    first.count("steps", 3, rank="0").count("steps", 5, rank="1").gauge("reward", -0.25, rank="0")
    second.count("steps", 4, rank="0").gauge("reward", math.inf, rank="1")
    send(sink, first.batch(), second.batch())
    wait_until(lambda: values(receiver, "t_steps_total") == {"0": 7.0, "1": 5.0})
    assert values(receiver, "t_reward") == {"0": -0.25, "1": math.inf}
    assert sink.get_status()["refused_samples"] == 0
    ((labels, _),) = receiver.query('t_steps_total{rank="0"}')
    expected = {"__name__": "t_steps_total", "rank": "0", "run_id": "r1", "project": "demo", "experiment_name": "grpo"}
    assert labels == expected


def test_real_receiver_computes_quantiles_within_five_percent(receiver, make_sink, fake_process, wait_until):
    sink = make_sink(write_url(receiver), namespace="t")
    generator = random.Random(7)
    observed = []
    for rank in range(3):
        mine = [generator.lognormvariate(3.0, 1.5) for _ in range(400)]
        observed += mine
        send(sink, fake_process(f"p{rank}").observe("latency", *mine, rank=str(rank)).batch())
    wait_until(lambda: values(receiver, "sum(t_latency_count)") == {"": 1200.0})
    observed.sort()
    for quantile in (0.1, 0.5, 0.95, 0.99):
        ((_, value),) = receiver.query(f"histogram_quantile({quantile}, sum by (le) (t_latency_bucket))")
        assert value == pytest.approx(observed[int(quantile * 1200)], rel=0.05)
    ((_, total),) = receiver.query("sum(t_latency_sum)")
    assert total == pytest.approx(sum(observed))


def test_replays_and_restarts_of_a_real_receiver_lose_and_double_nothing(receiver, fake_process, wait_until):
    sink = RemoteWriteSink(write_url(receiver), flush_interval_s=0.05)
    collector = Collector([sink], namespace="t")
    process = fake_process()
    gauge_times = []

    def record():
        gauge_times.append(time.time_ns() // 1_000_000)
        payload = (
            process.count("steps").observe("latency", 2.0).gauge("reward", 1.0, gauge_times[-1] * 1_000_000).payload()
        )
        assert collector.ingest(payload).accepted == 1
        assert collector.ingest(payload).duplicates == 1

    def is_sent(count):
        return values(receiver, "t_steps_total") == {"": float(count)}

    record()
    wait_until(lambda: is_sent(1))
    receiver.stop()
    retries = sink.get_status()["retries"]
    record()
    wait_until(lambda: sink.get_status()["retries"] > retries)
    wait_until(lambda: time.time_ns() // 1_000_000 > gauge_times[-1])  # the times' resolution
    record()
    receiver.start()
    wait_until(lambda: is_sent(3), 60.0)
    assert values(receiver, "t_latency_count") == {"": 3.0}
    kept = receiver.api("query", query="t_reward[1h]")["result"][0]["values"]
    assert sorted({round(float(stamp) * 1000) for stamp, _ in kept}) == gauge_times
    collector.close()
    status = sink.get_status()
    assert (status["lost_samples"], status["refused_samples"], status["late_samples"]) == (0, 0, 0)


def test_one_bad_series_does_not_spoil_the_others(start_prometheus, make_sink, fake_process):
    receiver = start_prometheus([], "--web.enable-remote-write-receiver")
    sink = make_sink(write_url(receiver), namespace="t")
    process = fake_process()
    for rank in range(20):
        process.count("steps", rank=str(rank))
    send(sink, process.batch())
    two_hours_ago = time.time_ns() - 120 * MINUTE_NS  # older than Prometheus takes
    process.gauge("old", 1.0, time_ns=two_hours_ago)
    for rank in range(20):
        process.count("steps", rank=str(rank))
    sink.write(process.batch())
    with pytest.raises(TransportError, match=r"1 samples were rejected.*400"):
        sink.flush()
    assert values(receiver, "t_steps_total") == {str(rank): 2.0 for rank in range(20)}
    status = sink.get_status()
    assert (status["refused_samples"], status["sent_samples"]) == (1, 40)


def test_process_that_reports_buckets_beyond_its_count_is_sent_as_on_the_page(make_sink, received, fake_process):
    process = fake_process()
    series = process.builder.add_series("latency", "histogram", "", "{}")
    process.builder.add_histogram(
        series, time_ns=1, count=1, total=1.0, minimum=1.0, maximum=1.0, buckets={bucket_code(1.0): 3}
    )
    send(make_sink(), process.batch())
    counts = {points[-1][1] for key, points in received().items() if "_count" in key or "le=+Inf" in key}
    assert counts == {3.0}
