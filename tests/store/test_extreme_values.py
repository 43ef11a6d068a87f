"""Values at the limits of their types: every query works, and so does the rest of the run."""

from __future__ import annotations

import time
from functools import partial

import msgspec
import pytest

from rl_insight.schema import Loss
from rl_insight.store import RunStore, queries
from rl_insight.store.queries.gpus_now import gpus_now
from rl_insight.store.queries.hardware import GpuScope, gpu_totals

FAR = 2**63 - 1
DEEP = '{"a":' * 5_000 + "1" + "}" * 5_000
NEAR_LIMIT = '{"a":' * 900 + "1" + "}" * 900


def _far_times(maker):
    maker.builder.add_span(span_id=900, trace=(1, 1), name="far", start_ns=FAR, duration_ns=FAR, step=FAR)
    maker.builder.add_span(span_id=901, trace=(1, 1), name="far", start_ns=FAR, duration_ns=-1, status="open")
    maker.builder.add_span(span_id=902, trace=(1, 1), name="early", start_ns=-FAR, duration_ns=FAR, step=-FAR)
    maker.builder.add_event(time_ns=FAR, name="far", step=FAR)
    maker.builder.add_event(time_ns=-FAR, name="early")
    maker.builder.add_log(time_ns=FAR, level=FAR, message="far")
    for name in ("loss", "gpu_utilization_ratio"):
        series = maker.builder.add_series(name, "gauge", "", "{}")
        maker.builder.add_sample(series, time_ns=FAR, value=1e308, step=FAR)
        maker.builder.add_sample(series, time_ns=-FAR, value=float("-inf"), step=-FAR)
    return maker.build()


def _huge_distributions(maker):
    for at, count in ((1, 2**64 - 1), (2, 2**64 - 2)):
        series = maker.builder.add_series("latency", "histogram", "", "{}")
        maker.builder.add_histogram(
            series, time_ns=FAR - at, count=count, total=1e308, minimum=-1e308, maximum=1e308,
            buckets={2**31 - 1: count, -(2**31): count},
        )  # fmt: skip
    return maker.build()


def _huge_losses(maker):
    return maker.build(losses=[Loss("spans", "a", FAR), Loss("spans", "b", FAR)])


def _deep_texts(maker):
    for text in (DEEP, NEAR_LIMIT, "[" * 3000, "9"):
        maker.span("deep", attributes=text, segment="phase", session_id="s")
        maker.builder.add_event(time_ns=1, name="deep", attributes=text)
        maker.builder.add_log(time_ns=1, level=20, message="deep", attributes=text)
        maker.builder.add_session(session_id="s", status="pending", time_ns=1, record=text)
        maker.builder.add_series("deep", "gauge", "", text)
        series = maker.builder.add_series("gpu_utilization_ratio", "gauge", "", text)
        maker.builder.add_sample(series, time_ns=1, value=0.5)
    return maker.build()


def _extreme_sessions(maker):
    for session_id, moment in (("late", 1e300), ("early", -1e300), ("never", 9e9)):
        record = {"submit_ts": moment, "enqueue_ts": -moment, "finalized_ts": moment, "step": FAR, "tokens": 2**70}
        text = msgspec.json.encode(record).decode()
        maker.builder.add_session(session_id=session_id, status="pending", time_ns=FAR, record=text)
    return maker.build()


EXTREMES = [_far_times, _huge_distributions, _huge_losses, _deep_texts, _extreme_sessions]


def _views(cursor):
    """Yield each query of the page, by name."""
    now = time.time_ns()
    yield "summary", lambda: queries.summary(cursor)
    yield "processes", lambda: queries.processes(cursor, now)
    yield "losses", lambda: queries.losses(cursor)
    yield "lanes", lambda: queries.lanes(cursor)
    for start, end in ((0, 2**62 - 1), (0, now), (2**62 - 10, 2**62 - 1)):
        window = {"start_ns": start, "end_ns": end}
        width = max((end - start) // 100, 1)
        yield "timeline", partial(queries.timeline, cursor, **window, pixels=100, now_ns=now, with_steps=True)
        yield "metrics", partial(queries.range_query, cursor, "loss", **window, width=width)
        yield "quantiles", partial(queries.quantiles, cursor, "latency", **window, width=width, shares=[0.5])
        yield "heat map", partial(queries.heat_map, cursor, "latency", **window, width=width)
        yield "hardware", partial(gpu_totals, cursor, GpuScope(**window))
    yield "hardware now", lambda: gpus_now(cursor)
    everything = {"start_ns": 0, "end_ns": 2**62 - 1}
    yield "by step", lambda: queries.range_query(cursor, "loss", **everything, width=1, axis="step")
    for scope in (queries.Scope(), queries.Scope(last_steps=1), queries.Scope(start_ns=0, end_ns=2**62)):
        yield "hotspots", lambda scope=scope: queries.hotspots(cursor, scope)
        yield "flame", lambda scope=scope: queries.flame(cursor, scope)
    yield "steps", lambda: queries.steps(cursor, 10)
    yield "step metrics", lambda: queries.step_metrics(cursor, 0, 100)
    for order in ("newest", "oldest", "longest"):
        yield "spans", lambda order=order: queries.search_spans(cursor, order=order)
    yield "attribute", lambda: queries.search_spans(cursor, queries.SpanConditions(attribute="a=1"))
    yield "span", lambda: queries.span_detail(cursor, f"{900:016x}")
    yield "open", lambda: queries.open_work(cursor, now)
    yield "open spans", lambda: queries.open_spans(cursor)
    yield "logs", lambda: queries.search_logs(cursor)
    yield "events", lambda: queries.search_events(cursor)
    yield "metric list", lambda: queries.metrics(cursor)
    yield "labels", lambda: queries.label_values(cursor, "a")
    yield "sessions", lambda: queries.sessions(cursor)
    yield "in flight", lambda: queries.sessions_in_flight(cursor, now)
    yield "record", lambda: queries.session_record(cursor, "s")


@pytest.mark.parametrize("extreme", EXTREMES)
@pytest.mark.parametrize("clock", [0, FAR, -FAR])
def test_every_query_survives_what_is_stored(tmp_path, make, extreme, clock):
    good, bad = make(), make("bad", heartbeat_s=1e308, rank=2**62, started_ns=FAR, labels={"a": "b"})
    for number in range(100):
        good.span("work", start=number * 1_000_000, duration=500_000, step=number // 10)
    good.sample("loss", 1.0, step=1)
    batch = extreme(bad)
    batch.sent_ns = clock
    failed = []
    with RunStore(tmp_path / "run.duckdb", min_free_bytes=0, create=True) as store:
        store.commit([good.build(), batch])
        queries.close_lost_sessions(store, time.time_ns())
        with store.reader() as cursor:
            for name, ask in _views(cursor):
                try:
                    msgspec.json.encode(ask(), enc_hook=str)
                except Exception as error:  # all of them shall be named
                    failed.append(f"{name}: {type(error).__name__}: {str(error)[:300]}")
    assert not failed
