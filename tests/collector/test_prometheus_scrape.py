"""A real Prometheus scrapes the endpoint of a collector that has received real batches."""

from __future__ import annotations

import math
import random

import pytest

from rl_insight.collector import Collector
from rl_insight.collector.derived import DerivedMetrics
from rl_insight.metrics.endpoint import MetricsEndpoint

NAMESPACE = "rl_insight_monitor"


def exact_quantile(values, q):
    return sorted(values)[math.ceil(q * len(values)) - 1]


@pytest.fixture
def scraped(start_prometheus):
    """A collector, and the Prometheus that scrapes it."""
    collector = Collector()
    endpoint = MetricsEndpoint(collector.metrics_page)
    yield collector, start_prometheus([endpoint.address])
    endpoint.close()
    collector.close()


def test_prometheus_reads_back_what_processes_sent(scraped, fake_process):
    collector, prometheus = scraped
    noise = random.Random(7)
    latencies = [noise.lognormvariate(math.log(42.0), 0.5) for _ in range(5000)]
    first, second = fake_process("a", rank=0), fake_process("b", rank=1)
    payloads = [
        first.count("steps", 3).gauge("reward", 0.25).observe("latency_ms", *latencies[:2500]).payload(),
        second.count("steps", 4)
        .gauge("reward", 0.75, tool="search")
        .observe("latency_ms", *latencies[2500:])
        .payload(),
        first.count("steps", 5).gauge("loss", math.nan).gauge("limit", math.inf).payload(),
    ]
    for payload in payloads:
        collector.ingest(payload)
    prometheus.wait_for(f"{NAMESPACE}_limit")

    def check():
        ((labels, steps),) = prometheus.query(f"{NAMESPACE}_steps_total")
        assert steps == 12
        assert {labels[name] for name in ("project", "experiment_name", "run_id")} == {"demo", "grpo", "r1"}
        rewards = {labels.get("tool"): value for labels, value in prometheus.query(f"{NAMESPACE}_reward")}
        assert rewards == {None: 0.25, "search": 0.75}
        assert math.isnan(prometheus.query(f"{NAMESPACE}_loss")[0][1])
        assert prometheus.query(f"{NAMESPACE}_limit")[0][1] == math.inf
        for q in (0.5, 0.95, 0.99):
            ((_, found),) = prometheus.query(f"histogram_quantile({q}, sum by (le) ({NAMESPACE}_latency_ms_bucket))")
            assert found == pytest.approx(exact_quantile(latencies, q), rel=0.05)
        ((_, mean),) = prometheus.query(f"{NAMESPACE}_latency_ms_sum / {NAMESPACE}_latency_ms_count")
        assert mean == pytest.approx(sum(latencies) / 5000)

    check()
    for payload in payloads:
        collector.ingest(payload)
    prometheus.wait_for_next_scrape()
    check()
    assert prometheus.query(f"{NAMESPACE}_collector_duplicate_batches_total")[0][1] == 3
    metadata = prometheus.api("metadata", metric=f"{NAMESPACE}_latency_ms")
    assert metadata[f"{NAMESPACE}_latency_ms"][0]["type"] == "histogram"


def test_quantiles_of_rewards_around_zero_are_right(scraped, fake_process):
    collector, prometheus = scraped
    collector.ingest(fake_process().observe("reward", *[-1.0] * 20, *[0.0] * 60, *[1.0] * 20).payload())
    prometheus.wait_for(f"{NAMESPACE}_reward_count")
    for q, expected in ((0.1, -1.0), (0.5, 0.0), (0.95, 1.0)):
        ((_, found),) = prometheus.query(f"histogram_quantile({q}, {NAMESPACE}_reward_bucket)")
        assert found == pytest.approx(expected, rel=0.05, abs=1e-6)


def test_series_of_a_run_that_ended_leave_prometheus_with_the_next_scrape(start_prometheus, fake_process, wait_until):
    """Prometheus returns the last value for five minutes, unless a scrape shows that the series is gone."""
    collector = Collector([DerivedMetrics(forget_after_s=3.0)], forget_after_s=3.0)
    endpoint = MetricsEndpoint(collector.metrics_page)
    prometheus = start_prometheus([endpoint.address])
    ended, live = fake_process("a", run_id="ended"), fake_process("b", run_id="live")
    recorded = {f"{NAMESPACE}_{name}" for name in ("reward", "steps_total", "latency_bucket", "spans_total")}

    def report(*processes):
        for process in processes:
            collector.ingest(process.gauge("reward", 0.5).count("steps").observe("latency", 1.0).span().payload())

    def names(run_id):
        return {labels["__name__"] for labels, _ in prometheus.query(f'{{run_id="{run_id}"}}')}

    def both_are_there():
        report(ended, live)
        return recorded <= names("ended") & names("live")

    def only_one_is_there():
        report(live)
        return not names("ended") and recorded <= names("live")

    wait_until(both_are_there)
    collector.ingest(ended.payload(final=True))
    wait_until(only_one_is_there)
    endpoint.close()
    collector.close()
