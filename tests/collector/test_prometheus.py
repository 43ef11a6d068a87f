from __future__ import annotations

import math
import shutil
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from rl_insight.collector import Collector
from rl_insight.collector.health import HEALTH
from rl_insight.collector.sinks.memory import MemorySink
from rl_insight.metrics import HISTOGRAM, Distribution, Family
from rl_insight.metrics.prometheus import OPENMETRICS_TYPE, TEXT_TYPE, wants_openmetrics
from rl_insight.schema import BatchBuilder, Loss, Process, encode
from rl_insight.schema.histogram import bucket_code

OPENMETRICS = "application/openmetrics-text"
RUN = {"project": "demo", "experiment_name": "grpo", "run_id": "r1"}


def samples(collector, accept="text/plain"):
    """Return ``{(name, label items): value}`` as prometheus_client reads the page."""
    body, content_type = collector.metrics_page(accept)
    parse = parse_openmetrics if content_type == OPENMETRICS_TYPE else parse_text
    found = {}
    for family in parse(body.decode()):
        assert family.documentation
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in found, "a series must stand once"
            found[key] = sample.value
    return found


def value(collector, name, **labels):
    return samples(collector)[name, tuple(sorted(labels.items()))]


@pytest.mark.parametrize("accept", ["text/plain", OPENMETRICS])
def test_metrics_have_the_namespace_the_user_labels_and_the_run(fake_process, accept):
    collector = Collector(namespace="rl")
    process = fake_process().count("steps", 2, rank="0").gauge("reward", 0.5).gauge("reward", 1.5, rank="0")
    collector.ingest(process.payload())
    found = samples(collector, accept)
    assert found["rl_steps_total", tuple(sorted((RUN | {"rank": "0"}).items()))] == 2
    assert found["rl_reward", tuple(sorted(RUN.items()))] == 0.5
    assert found["rl_reward", tuple(sorted((RUN | {"rank": "0"}).items()))] == 1.5


def test_empty_run_labels_are_left_out_and_users_cannot_set_them(fake_process):
    collector = Collector(namespace="rl")
    collector.ingest(fake_process(project="", experiment_name="").gauge("x", 1.0, project="mine").payload())
    assert value(collector, "rl_x", run_id="r1") == 1.0


def test_namespace_may_be_empty(fake_process):
    collector = Collector(namespace="")
    collector.ingest(fake_process().count("steps").payload())
    assert value(collector, "steps_total", **RUN) == 1


@pytest.mark.parametrize("number", [math.inf, -math.inf, 0.1, 1e300, -0.0])
def test_numbers_survive(fake_process, number):
    collector = Collector(namespace="rl")
    collector.ingest(fake_process().gauge("x", number).payload())
    assert value(collector, "rl_x", **RUN) == number


def test_nan_survives(fake_process):
    collector = Collector(namespace="rl")
    collector.ingest(fake_process().gauge("x", math.nan).payload())
    assert math.isnan(value(collector, "rl_x", **RUN))


label_values = st.text(alphabet=st.characters(blacklist_categories=["Cs"]), max_size=20)
metric_names = st.text(alphabet="abc/_-.1", min_size=1, max_size=6)


@given(
    rows=st.lists(
        st.tuples(
            metric_names,
            st.sampled_from(["counter", "gauge", "histogram"]),
            st.dictionaries(st.text(alphabet="abl_e.", min_size=1, max_size=3), label_values, max_size=3),
            st.floats(-1e6, 1e6),
            st.text(alphabet='\\"\n a', max_size=8),
        ),
        max_size=12,
    ),
    accept=st.sampled_from(["text/plain", OPENMETRICS]),
)
def test_any_page_can_be_parsed(rows, accept):
    import json

    builder = BatchBuilder()
    for name, kind, labels, number, documentation in rows:
        series = builder.add_series(name, kind, documentation, json.dumps(labels))
        if kind == "histogram":
            builder.add_histogram(
                series,
                time_ns=1,
                count=1,
                total=number,
                minimum=number,
                maximum=number,
                buckets={bucket_code(number): 1},
            )
        else:
            builder.add_sample(series, time_ns=1, value=number)
    collector = Collector(namespace="rl")
    process = Process(process_id="p", run_id='r"\\\n', host="h", pid=1)
    collector.ingest(encode(builder.build(process, sequence=1, sent_ns=1)))
    found = samples(collector, accept)
    for family in collector.series.families():
        exposed = family.exposed_name("rl")
        for labels, recorded, _ in family.points:
            if not isinstance(recorded, Distribution):
                assert found[exposed, tuple(sorted(labels))] == recorded
                continue
            assert found[f"{exposed}_count", tuple(sorted(labels))] == recorded.count
            assert found[f"{exposed}_bucket", tuple(sorted([*labels, ("le", "+Inf")]))] == recorded.count


def test_series_of_one_histogram_share_their_bounds_so_that_they_can_be_summed(fake_process):
    collector = Collector(namespace="rl")
    process = fake_process().observe("latency", 1.0, 40.0, rank="0").observe("latency", 500.0, rank="1")
    collector.ingest(process.payload())
    bounds = {"0": [], "1": []}
    for name, labels in samples(collector):
        if name == "rl_latency_bucket":
            bounds[dict(labels)["rank"]].append(dict(labels)["le"])
    assert bounds["0"] == bounds["1"]
    assert len(bounds["0"]) == 7


def test_bounds_stay_once_they_were_seen(fake_process):
    collector = Collector(namespace="rl")
    process = fake_process()
    collector.ingest(process.observe("h", 1.0).payload())
    before = {key for key in samples(collector) if key[0] == "rl_h_bucket"}
    collector.ingest(process.observe("h", 100.0).payload())
    assert before < {key for key in samples(collector) if key[0] == "rl_h_bucket"}


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=50))
def test_every_bound_appears_once_in_ascending_order_and_counts_lower_values(numbers):
    codes = sorted({bucket_code(number) for number in numbers})
    bounds = Family("h", HISTOGRAM, "", [], codes=codes).cumulative_bounds()
    ends = [bound for bound, _ in bounds]
    assert ends == sorted(set(ends))
    assert all(math.isfinite(end) for end in ends)
    filed = [code for _, inside in bounds for code in inside]
    assert filed == [code for code in codes if code in filed]
    for number in numbers:
        below = [end for end, inside in bounds if bucket_code(number) in inside]
        assert not below or number <= below[0] * (1 + 1e-9) or number <= 0


def test_zeros_between_negative_and_positive_values_have_a_bucket_of_their_own():
    codes = sorted(bucket_code(number) for number in (-1.0, 0.0, 1.0))
    ends = [end for end, _ in Family("h", HISTOGRAM, "", [], codes=codes).cumulative_bounds()]
    assert 0.0 in ends
    assert -1e-300 < ends[ends.index(0.0) - 1] < 0.0


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        ("", False),
        ("*/*", False),
        ("text/plain;version=0.0.4", False),
        ("application/openmetrics-text; version=1.0.0", True),
        ("application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1", True),
        ("application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5", True),
        ("application/openmetrics-text;q=0.3,text/plain;q=0.5", False),
        ("application/openmetrics-text;q=nonsense", False),
    ],
)
def test_format_follows_the_accept_header(accept, expected):
    assert wants_openmetrics(accept) is expected
    _, content_type = Collector().metrics_page(accept)
    assert content_type == (OPENMETRICS_TYPE if expected else TEXT_TYPE)


def test_what_openmetrics_cannot_say_is_said_in_text(fake_process):
    collector = Collector(namespace="rl")
    collector.ingest(fake_process().observe("advantage", -1.0, 0.0, 1.0).payload())
    assert collector.metrics_page(OPENMETRICS)[1] == TEXT_TYPE
    assert value(collector, "rl_advantage_sum", **RUN) == 0.0
    collector = Collector(namespace="rl")
    collector.ingest(fake_process().count("jobs").gauge("jobs_created", 1.0).payload())
    assert collector.metrics_page(OPENMETRICS)[1] == TEXT_TYPE
    assert len([name for name, _ in samples(collector) if name.startswith("rl_jobs")]) == 2


def test_collector_reports_its_own_health(fake_process):
    collector = Collector([MemorySink()], namespace="rl")
    process = fake_process().span().gauge("x", 1.0)
    payload = process.payload(losses=[Loss("spans", "buffer", 4)])
    collector.ingest(payload)
    collector.ingest(payload)
    assert collector.wait_idle(10)
    assert value(collector, "rl_collector_batches_total") == 1
    assert value(collector, "rl_collector_duplicate_batches_total") == 1
    assert value(collector, "rl_collector_events_total", kind="spans") == 1
    assert value(collector, "rl_telemetry_lost_total", kind="spans", reason="buffer") == 4
    assert value(collector, "rl_collector_sink_written_total", sink="memory") == 1
    assert value(collector, "rl_collector_sink_dropped_total", sink="memory") == 0
    assert value(collector, "rl_collector_processes", state="live") == 1
    assert value(collector, "rl_collector_series") == 1
    assert abs(value(collector, "rl_collector_clock_offset_seconds", process_id="p1", host="node0")) < 60
    collector.close()


def test_names_of_the_health_metrics_are_reserved(fake_process):
    collector = Collector(namespace="rl")
    families = HEALTH.families(collector.status())
    assert [family.name for family in families] == [declared.name for declared in HEALTH.declarations]
    collector.ingest(fake_process().count("telemetry_lost").payload())
    assert value(collector, "rl_collector_refused_samples_total", reason="name") == 1


def promtool(page):
    if shutil.which("promtool") is None:
        pytest.skip("the program promtool is not installed")
    return subprocess.run(["promtool", "check", "metrics"], input=page, capture_output=True, check=False, timeout=60)


def test_promtool_finds_nothing_to_complain_about(fake_process):
    collector = Collector([MemorySink()])
    process = fake_process().count("steps", 2, rank="0").gauge("reward", math.nan, documentation='a "b"\n\\c')
    process.observe("response_length_tokens", 1.0, 300.0, 0.0, -4.0)
    collector.ingest(process.payload(losses=[Loss("spans", "buffer", 4)]))
    result = promtool(collector.metrics_page()[0])
    assert (result.returncode, result.stdout, result.stderr) == (0, b"", b"")
    collector.close()


def test_promtool_only_advises_against_a_unit_the_user_abbreviated(fake_process):
    collector = Collector()
    collector.ingest(fake_process().observe("step_latency_ms", 42.0).payload())
    result = promtool(collector.metrics_page()[0])
    assert result.stderr.decode().splitlines() == [
        "rl_insight_monitor_step_latency_ms metric names should not contain abbreviated units"
    ]
