"""Metrics made from spans."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from rl_insight.collector import Collector
from rl_insight.collector.derived import DECLARATIONS, DURATION_BOUNDS, DerivedMetrics
from rl_insight.schema import NO_STEP, OPEN

SECOND = 1_000_000_000
STATE = {"segment": "state_interval"}


class Clock:
    def __init__(self):
        self.now_ns = 1_000_000 * SECOND

    def __call__(self):
        return self.now_ns

    def go_on(self, seconds):
        self.now_ns += int(seconds * SECOND)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def derived(clock):
    return DerivedMetrics(clock=clock)


def values(derived, name):
    """The series of a family: `{(other labels): value}` by their sorted text."""
    for family in derived.families():
        if family.name == name:
            return {_key(labels): value for labels, value, _ in family.points}
    return {}


def durations(derived, name="span_duration_seconds"):
    for family in derived.families():
        if family.name == name:
            return {_key(labels): entry for labels, entry, _ in family.points}
    return {}


def _key(labels):
    return ",".join(f"{name}={value}" for name, value in labels if name not in {"project", "experiment_name", "run_id"})


def test_time_in_states_adds_up_over_lanes_and_batches(derived, fake_process):
    process = fake_process("a", role="rollout", rank=3)
    for number in range(2):
        process.span("generate", number * 2 + 1, 2 * SECOND, lane="slot_0", **STATE)
        process.span("generate", number * 2 + 2, 3 * SECOND, lane="slot_1", **STATE)
        derived.write(process.batch())
    assert values(derived, "state_seconds") == {"rank=3,role=rollout,state=generate": 10.0}


def test_nested_states_and_operations_do_not_count_as_lane_time(derived, fake_process):
    process = fake_process("a")
    process.span("inner", 1, SECOND, segment="state_nested").span("work", 2, SECOND, segment="duration")
    derived.write(process.batch())
    assert values(derived, "state_seconds") == {}
    assert values(derived, "spans") == {"span_name=inner,status=ok": 1, "span_name=work,status=ok": 1}


def test_phases_of_sessions_are_time_of_a_lane_but_the_execution_around_them_is_not(derived, fake_process):
    process = fake_process("a")
    process.span("generate", 1, SECOND, segment="phase").span("execution", 2, 3 * SECOND, segment="phase")
    derived.write(process.batch())
    assert values(derived, "state_seconds") == {"state=generate": 1.0}


def test_an_open_state_counts_while_it_runs_and_only_once_when_it_ends(derived, fake_process, clock):
    process = fake_process("a")
    start_ns = clock.now_ns
    process.span("wait", 1, OPEN, start_ns=start_ns, **STATE)
    derived.write(process.batch(sent_ns=start_ns + 4 * SECOND))
    assert values(derived, "state_seconds") == {"state=wait": 4.0}
    derived.write(process.batch(sent_ns=start_ns + 9 * SECOND))
    assert values(derived, "state_seconds") == {"state=wait": 9.0}
    process.span("wait", 1, 10 * SECOND, start_ns=start_ns, **STATE)
    derived.write(process.batch(sent_ns=start_ns + 11 * SECOND))
    assert values(derived, "state_seconds") == {"state=wait": 10.0}
    assert values(derived, "open_spans") == {}


@pytest.mark.parametrize("final", [True, False])
def test_what_a_process_left_open_counts_up_to_its_last_batch(derived, fake_process, clock, final):
    process = fake_process("a")
    process.span("wait", 1, OPEN, start_ns=clock.now_ns, **STATE)
    derived.write(process.batch(sent_ns=clock.now_ns + 3 * SECOND, final=final))
    other = fake_process("b")
    clock.go_on(4000)
    derived.write(other.batch(sent_ns=clock.now_ns))
    assert values(derived, "state_seconds") == {"state=wait": 3.0}
    assert values(derived, "open_spans") == {}
    assert derived.get_status()["processes"] == 1


@given(
    st.lists(
        st.tuples(st.integers(0, 20), st.integers(0, 30)), min_size=1, max_size=8
    )  # when each state begins, and how long it lasts
)
def test_time_in_states_never_falls(spans):
    clock = Clock()
    origin = clock.now_ns
    derived = DerivedMetrics(clock=clock)
    from rl_insight.schema import BatchBuilder, Process

    process = Process(process_id="p", run_id="r", host="h", pid=1)
    before = 0.0
    reported = set()
    for sequence, now in enumerate(range(1, 60, 7), 1):
        builder = BatchBuilder()
        for span_id, (start, length) in enumerate(spans, 1):
            ended = start + length <= now
            if start > now or (span_id, ended) in reported or (span_id, True) in reported:
                continue
            reported.add((span_id, ended))
            builder.add_span(
                span_id=span_id,
                trace=(0, 1),
                name="s",
                start_ns=origin + start * SECOND,
                duration_ns=length * SECOND if ended else OPEN,
                segment="state_interval",
            )
        derived.write(builder.build(process, sequence=sequence, sent_ns=origin + now * SECOND))
        total = sum(values(derived, "state_seconds").values())
        assert total >= before
        before = total
    assert before == sum(length for start, length in spans)


def test_an_open_report_that_was_overtaken_by_the_completion_opens_nothing(derived, fake_process):
    process = fake_process("a")
    opened = process.span("work", 1, OPEN).batch()
    completed = process.span("work", 1, SECOND).batch()
    derived.write(completed)
    derived.write(opened)
    assert values(derived, "open_spans") == {}


def test_the_age_of_open_work_grows_while_its_process_is_silent(derived, fake_process, clock):
    process = fake_process("a", role="rollout", rank=0)
    process.span("tool", 1, OPEN, start_ns=clock.now_ns).span("tool", 2, OPEN, start_ns=clock.now_ns + SECOND)
    derived.write(process.batch(sent_ns=clock.now_ns + 5 * SECOND))
    clock.go_on(100)
    key = "rank=0,role=rollout,span_name=tool"
    assert values(derived, "open_spans") == {key: 2}
    assert values(derived, "open_span_oldest_seconds") == {key: 105.0}


def test_durations_are_filed_by_name_over_all_ranks_with_the_last_trace(derived, fake_process):
    for rank in (0, 1):
        process = fake_process(f"p{rank}", role="rollout", rank=rank)
        process.span("generate", 1, 3 * SECOND // 2, trace=(0xAB, rank + 1), start_ns=SECOND * (1 + rank))
        derived.write(process.batch())
    ((key, entry),) = durations(derived).items()
    assert key == "role=rollout,segment=duration,span_name=generate"
    assert (entry.count, sum(entry.buckets.values()), entry.sum) == (2, 2, 3.0)
    ((position, exemplar),) = entry.exemplars.items()
    assert DURATION_BOUNDS[position - 1] < 1.5 <= DURATION_BOUNDS[position]
    assert exemplar == ("00000000000000ab0000000000000002", 1.5, 2 * SECOND + 3 * SECOND // 2)
    assert values(derived, "span_seconds") == {
        "rank=0,role=rollout,span_name=generate": 1.5,
        "rank=1,role=rollout,span_name=generate": 1.5,
    }


def test_an_exemplar_is_never_replaced_by_an_older_one(derived, fake_process):
    for process_id, trace, starts in (("p0", 7, (20, 30, 10)), ("p1", 8, (25,))):
        process = fake_process(process_id, role="rollout")
        for start in starts:
            process.span("generate", start, SECOND, trace=(trace, start), start_ns=start * SECOND)
        derived.write(process.batch())
    ((_, entry),) = durations(derived).items()
    (exemplar,) = entry.exemplars.values()
    assert exemplar == (f"{7:016x}{30:016x}", 1.0, 31 * SECOND)


def test_an_exemplar_is_not_replaced_within_the_same_millisecond(derived, fake_process):
    """Prometheus stores milliseconds, and rejects a second exemplar in the same one."""
    process = fake_process("p0", role="rollout")
    for number, start_ns in enumerate((SECOND, SECOND + 300_000, SECOND + 3_000_000), 1):
        derived.write(process.span("generate", number, SECOND, trace=(7, number), start_ns=start_ns).batch())
        ((_, entry),) = durations(derived).items()
        (exemplar,) = entry.exemplars.values()
        assert exemplar.trace_id == f"{7:016x}{3 if number == 3 else 1:016x}"


def test_a_deleted_run_leaves_at_once(derived, fake_process):
    for run_id in ("r1", "r2"):
        process = fake_process(run_id, run_id=run_id, role="trainer")
        derived.write(process.span("work", 1, SECOND, step=4).span("open", 2, OPEN).batch())
    derived.drop_run("r1")
    runs = {dict(point.labels).get("run_id") for family in derived.families() for point in family.points}
    assert runs == {"r2", None}


@pytest.mark.parametrize("seconds", [0.0, 0.0005, 0.001, 1.0, 4000.0, 1e6])
def test_a_duration_is_counted_at_the_first_bound_that_contains_it(derived, fake_process, seconds):
    derived.write(fake_process("a").span("work", 1, int(seconds * SECOND)).batch())
    ((_, entry),) = durations(derived).items()
    ((position, count),) = entry.buckets.items()
    assert count == 1
    assert position == len(DURATION_BOUNDS) or DURATION_BOUNDS[position] >= seconds
    assert position == 0 or DURATION_BOUNDS[position - 1] < seconds


def add_session(process, session_id, status):
    process.builder.add_session(session_id=session_id, task_id="t", status=status, time_ns=1, record="{}")
    return process


def test_sessions_are_counted_once_by_outcome(derived, fake_process):
    process = fake_process("a", role="rollout")
    for session_id in ("s1", "s2", "s3"):
        add_session(process, session_id, "pending")
    derived.write(process.batch())
    assert values(derived, "open_sessions") == {"role=rollout": 3}
    add_session(process, "s1", "accepted")
    add_session(process, "s2", "failed")
    derived.write(process.batch())
    add_session(process, "s1", "accepted")
    add_session(process, "s2", "pending")
    derived.write(process.batch())
    assert values(derived, "sessions") == {"role=rollout,status=accepted": 1, "role=rollout,status=failed": 1}
    assert values(derived, "open_sessions") == {"role=rollout": 1}


def test_the_span_of_a_session_reports_how_long_it_took(derived, fake_process):
    process = fake_process("a", role="rollout")
    process.span("session", 1, SECOND, segment="session").span("session", 2, SECOND, segment="session", status="error")
    process.span("session", 3, OPEN, segment="session")
    derived.write(process.batch())
    assert durations(derived, "session_duration_seconds")["role=rollout"].count == 2


def test_steps_report_when_they_last_increased(derived, fake_process, clock):
    process = fake_process("a", role="trainer")
    process.span("work", 1, SECOND, step=4)
    derived.write(process.batch())
    grew = clock.now_ns / SECOND
    clock.go_on(50)
    process.span("work", 2, SECOND, step=3).span("work", 3, SECOND, step=NO_STEP)
    derived.write(process.batch())
    assert values(derived, "current_step") == {"role=trainer": 4}
    assert values(derived, "last_step_timestamp_seconds") == {"role=trainer": grew}
    seen = values(derived, "process_last_seen_timestamp_seconds")
    assert seen == {"role=trainer,host=node0": grew + 50}


def test_a_run_that_ended_shows_no_steps_and_later_nothing(derived, fake_process, clock):
    process = fake_process("a", role="trainer")
    derived.write(process.span("work", 1, SECOND, step=4).batch(final=True))
    assert values(derived, "last_step_timestamp_seconds") == {}
    assert values(derived, "spans") == {"role=trainer,span_name=work,status=ok": 1}
    clock.go_on(4000)
    assert values(derived, "spans") == {}
    assert durations(derived) == {}
    assert derived.get_status()["runs"] == 0


def test_too_many_names_share_one_series_and_are_counted(clock, fake_process):
    derived = DerivedMetrics(clock=clock, max_series=3, max_histograms=2)
    process = fake_process("a")
    for number in range(10):
        process.span(f"work-{number}", number + 1, SECOND)
    derived.write(process.batch())
    spans = values(derived, "spans")
    assert len(spans) == 4
    assert spans["role=__overflow__"] == 7
    assert len(durations(derived)) == 3
    assert durations(derived)["role=__overflow__"].count == 8
    assert values(derived, "derived_overflow")[""] == 7 + 7 + 8


def test_a_recorded_metric_cannot_take_the_name_of_a_derived_one(fake_process):
    derived = DerivedMetrics()
    collector = Collector([derived])
    process = fake_process("a").gauge("current_step", 17.0).gauge("span_duration_seconds_sum", 1.0)
    collector.ingest(process.span("work", 1, SECOND, step=4).payload())
    assert collector.wait_idle(10.0)
    body = collector.metrics_page()[0].decode()
    collector.close()
    assert body.count("# TYPE rl_insight_monitor_current_step ") == 1
    assert 'rl_insight_monitor_current_step{experiment_name="grpo",project="demo",run_id="r1"} 4' in body
    assert body.count("span_duration_seconds_sum{") == 1
    assert collector.series.refused == {"name": 2}


def test_the_page_is_valid_openmetrics_with_exemplars(fake_process):
    derived = DerivedMetrics()
    collector = Collector([derived])
    collector.ingest(fake_process("a", role="r", rank=0).span('a "name"\n', 1, SECOND, trace=(1, 2)).payload())
    assert collector.wait_idle(10.0)
    body, content_type = collector.metrics_page("application/openmetrics-text")
    collector.close()
    assert content_type.startswith("application/openmetrics-text")
    families = {family.name: family for family in text_string_to_metric_families(body.decode())}
    samples = families["rl_insight_monitor_span_duration_seconds"].samples
    exemplars = [sample.exemplar for sample in samples if sample.exemplar is not None]
    assert [exemplar.labels for exemplar in exemplars] == [{"trace_id": f"{1:016x}{2:016x}"}]
    assert samples[0].labels["span_name"] == 'a "name"\n'
    assert families["rl_insight_monitor_spans"].type == "counter"


def test_names_are_those_that_are_exposed(derived, fake_process):
    process = fake_process("a")
    process.span("s", 1, SECOND, segment="session", step=1).span("w", 2, SECOND, **STATE)
    process.span("s", 3, OPEN, segment="session")
    add_session(add_session(process, "s1", "pending"), "s2", "accepted")
    derived.write(process.batch())
    assert {family.name for family in derived.families()} == {declared.name for declared in DECLARATIONS}
