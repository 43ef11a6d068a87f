"""Imports: each format, bad lines, incomplete lines, duplicates, and growing files."""

import gzip
import json
import threading

import cramjam
import pytest

from rl_insight.collector.sinks.jsonl import JsonlSink
from rl_insight.exchange.errors import ExchangeError
from rl_insight.exchange.importing import importer
from rl_insight.exchange.importing._files import PORTION_BYTES
from rl_insight.exchange.importing.formats import FORMATS, detect
from rl_insight.schema import BatchBuilder, Process, encode, frame
from rl_insight.store import queries

COUNTS = "SELECT (SELECT count(*) FROM spans), (SELECT count(*) FROM sessions), (SELECT count(*) FROM events)"
XTUNER = {
    "trace_id": "gsm8k:u1",
    "status": "running",
    "task_name": "gsm8k",
    "uid": "u1",
    "session_uid": "s1",
    "train_step": 4,
    "model_step": 3,
    "producer_future_step": 5,
    "produce_batch_id": "train_step=4/model_step=3/producer_future_step=5",
    "worker_rank": 2,
}


def xtuner(stage, at, **fields):
    return XTUNER | {"stage": stage, "timestamp_s": 1_767_225_600.0 + at} | fields


CHROME_EVENTS = [
    {"ph": "M", "name": "process_name", "pid": 7, "args": {"name": "trainer"}},
    {"ph": "X", "name": "forward", "cat": "compute", "pid": 7, "tid": 1, "ts": 1_767_225_600_000_000, "dur": 1500.5},
    {"ph": "B", "name": "outer", "pid": 7, "tid": 2, "ts": 1_767_225_600_000_000, "args": {"a": 1}},
    {"ph": "B", "name": 'inner "}]{[', "pid": 7, "tid": 2, "ts": 1_767_225_600_000_100},
    {"ph": "E", "pid": 7, "tid": 2, "ts": 1_767_225_600_000_200},
    {"ph": "E", "pid": 7, "tid": 2, "ts": 1_767_225_600_000_300, "args": {"b": 2}},
    {"ph": "b", "name": "request", "cat": "http", "id": "0x1", "pid": 7, "tid": 3, "ts": 1_767_225_600_000_000},
    {"ph": "e", "name": "request", "cat": "http", "id": "0x1", "pid": 7, "tid": 4, "ts": 1_767_225_600_000_400},
    {"ph": "i", "name": "mark", "pid": 7, "tid": 1, "ts": 1_767_225_600_000_050, "s": "t"},
    {"ph": "C", "name": "queue depth", "pid": 7, "ts": 1_767_225_600_000_000, "args": {"waiting": 3, "running": 1}},
    {"ph": "M", "name": "thread_name", "pid": 7, "tid": 1, "args": {"name": "main thread"}},
]


def test_areal_sessions_become_records_with_all_derived_fields(tmp_path, samples, import_path, runs):
    file = tmp_path / "sessions-r0.jsonl"
    file.write_bytes(samples.lines([samples.session(0, reward=1.0, step=5, counters={"turns": 2})]))
    summary = import_path(file, run_id="r")
    assert (summary.records, summary.bad, summary.formats) == (1, 0, {"areal-sessions": 1})
    with runs.open("r") as store, store.reader() as cursor:
        (session,), total = queries.sessions(cursor)
    assert total == 1
    found = (session.status, session.task_id, session.rank, session.step, session.reward, session.counters)
    assert found == ("accepted", "0", 0, 5, 1.0, {"turns": 2})
    assert session.rollout_stats == {"accepted": 8, "enqueued": 192, "rejected": 0, "running": 56}
    seconds = (session.queue_wait_s, session.runner_wait_s, session.execution_s, session.post_wait_s, session.total_s)
    assert seconds == (0.25, 0.25, 7.5, 1.0, 9.0)
    assert session.phase_seconds == {"execution": 7.5, "generate": 6.0, "reward": 0.5}


def test_session_numbers_of_two_ranks_do_not_meet(tmp_path, samples, import_path, fetch):
    for rank in (0, 1):
        file = tmp_path / "logs" / f"sessions-r{rank}.jsonl"
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(samples.lines([samples.session(0, rank), samples.session(1, rank)]))
    import_path(tmp_path / "logs", run_id="r")
    assert fetch("r", "SELECT rank, count(DISTINCT session_id) FROM sessions GROUP BY rank ORDER BY 1") == [
        (0, 2),
        (1, 2),
    ]


def test_pending_failed_and_open_phases_are_kept(tmp_path, samples, import_path, fetch):
    open_phase = {"execution": [{"start_ts": samples.begin_s}], "tool_x": None}
    records = [
        samples.session(0) | {"session_id": "a", "status": "pending", "wait_return_ts": None, "phases": open_phase},
        samples.session(1) | {"session_id": "b", "status": "failed", "reason": "timeout"},
    ]
    file = tmp_path / "x.jsonl"
    file.write_bytes(samples.lines(records))
    import_path(file, run_id="r")
    rows = fetch("r", "SELECT session_id, status, reason FROM sessions ORDER BY 1")
    assert rows == [("a", "pending", None), ("b", "failed", "timeout")]
    assert fetch("r", "SELECT name FROM open_spans ORDER BY 1") == [("execution",), ("session",)]
    assert fetch("r", "SELECT status FROM spans WHERE name = 'session'") == [("error",)]


def test_relative_times_are_moved_to_the_origin(tmp_path, samples, import_path, fetch):
    record = samples.session(0) | {"submit_ts": 100.0, "enqueue_ts": 100.25, "wait_return_ts": 109.0}
    record["phases"] = {"generate": [{"start_ts": 101.0, "end_ts": 107.0}]}
    file = tmp_path / "x.jsonl"
    file.write_bytes(samples.lines([record]))
    import_path(file, run_id="r", origin_ns=samples.begin_ns)
    assert fetch("r", "SELECT start_ns FROM spans WHERE name = 'generate'") == [(samples.begin_ns + 101_000_000_000,)]
    assert fetch("r", "SELECT submit_ts FROM sessions") == [(samples.begin_s + 100.0,)]


@pytest.mark.parametrize(
    "fields", [{"timestamp_s": 1e20}, {"timestamp_s": -1e20}, {"elapsed_s": 1e20}, {"elapsed_s": -1e20}]
)
def test_xtuner_times_that_cannot_be_stored_cost_their_line(tmp_path, samples, import_path, fields):
    file = tmp_path / "trace.jsonl"
    records = [xtuner("generate.start", 0.0), xtuner("judge.end", 9.0) | fields, xtuner("generate.end", 3.0)]
    file.write_bytes(samples.lines(records))
    summary = import_path(file, run_id="r")
    assert (summary.records, summary.bad) == (2, 1)
    assert "is not a time in seconds" in summary.problems[0]


def test_xtuner_stages_become_spans_and_hung_ones_stay_open(tmp_path, samples, import_path, fetch, runs):
    records = [
        xtuner("produce.start", 0.0),
        xtuner("generate.start", 1.0),
        xtuner("checkpoint", 1.5),
        xtuner("generate.end", 3.0, elapsed_s=2.0),
        xtuner("reward.start", 3.0),
        xtuner("reward.error", 4.0, status="failed", error_msg="ValueError: no"),
        xtuner("judge.end", 9.0, elapsed_s=2.0, status="cancelled"),
    ]
    file = tmp_path / "producer.jsonl"
    file.write_bytes(samples.lines(records))
    summary = import_path(file, run_id="r")
    assert (summary.records, summary.formats) == (7, {"xtuner": 1})
    rows = fetch("r", "SELECT name, duration_ns, status, error, step, rank, lane FROM spans ORDER BY name")
    assert rows == [
        ("generate", 2_000_000_000, "ok", None, 4, 2, "gsm8k"),
        ("judge", 2_000_000_000, "cancelled", None, 4, 2, "gsm8k"),
        ("reward", 1_000_000_000, "error", "ValueError", 4, 2, "gsm8k"),
    ]
    assert fetch("r", "SELECT name FROM open_spans") == [("produce",)]
    assert fetch("r", "SELECT name FROM events") == [("checkpoint",)]
    parents = fetch(
        "r", "SELECT DISTINCT parent_id = (SELECT span_id FROM open_spans) FROM spans WHERE name <> 'judge'"
    )
    assert parents == [(True,)]
    with runs.open("r") as store, store.reader() as cursor:
        (hung,) = queries.open_spans(cursor)
        assert (hung.name, hung.until_ns) == ("produce", samples.begin_ns + 9_000_000_000)


@pytest.mark.parametrize("shape", ["object", "array", "lines", "indented", "unfinished", "gzip"])
def test_chrome_traces_of_every_shape(shape, tmp_path, samples, import_path, fetch):
    file = tmp_path / ("trace.json.gz" if shape == "gzip" else "trace.json")
    document = json.dumps({"schemaVersion": 1, "traceEvents": CHROME_EVENTS, "displayTimeUnit": "ms"}).encode()
    content = {
        "object": document,
        "array": json.dumps(CHROME_EVENTS).encode(),
        "lines": samples.lines([CHROME_EVENTS[-1], *CHROME_EVENTS[:-1]]),
        "indented": json.dumps({"traceEvents": CHROME_EVENTS}, indent=2).encode(),
        "unfinished": json.dumps(CHROME_EVENTS).encode()[:-1] + b",",
        "gzip": gzip.compress(document),
    }[shape]
    file.write_bytes(content)
    summary = import_path(file, run_id="r")
    assert (summary.bad, summary.partial) == (0, 0)
    rows = fetch("r", "SELECT name, duration_ns, lane, role FROM spans ORDER BY name")
    assert rows == [
        ("forward", 1_500_500, "main thread", "trainer"),
        ('inner "}]{[', 100_000, "thread 2", "trainer"),
        ("outer", 300_000, "thread 2", "trainer"),
        ("request", 400_000, "thread 4", "trainer"),
    ]
    assert fetch("r", "SELECT parent_id = (SELECT span_id FROM spans WHERE name = 'outer') FROM spans "
                      "WHERE name LIKE 'inner%'") == [(True,)]  # fmt: skip
    assert fetch("r", "SELECT attributes FROM spans WHERE name = 'outer'") == [('{"a":1,"b":2}',)]
    assert fetch("r", "SELECT name FROM events") == [("mark",)]
    assert fetch("r", "SELECT name, value FROM samples ORDER BY value") == [("queue_depth", 1.0), ("queue_depth", 3.0)]
    assert fetch("r", "SELECT count(*) FROM open_spans") == [(0,)]


def test_a_torch_trace_counts_from_its_base_time(tmp_path, import_path, fetch, samples):
    event = {"ph": "X", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 12.5, "dur": 1.0}
    file = tmp_path / "torch.json"
    file.write_text(json.dumps({"traceEvents": [event], "baseTimeNanoseconds": samples.begin_ns}))
    import_path(file, run_id="r")
    assert fetch("r", "SELECT start_ns FROM spans") == [(samples.begin_ns + 12_500,)]


@pytest.mark.parametrize("indented", [False, True])
def test_otlp_json_files(indented, tmp_path, import_path, fetch, samples):
    resource = {"attributes": [{"key": "service.name", "value": {"stringValue": "rollout"}}]}
    span = {
        "traceId": "0" * 31 + "7", "spanId": "0" * 15 + "9", "name": "generate",
        "startTimeUnixNano": str(samples.begin_ns), "endTimeUnixNano": str(samples.begin_ns + 1000),
    }  # fmt: skip
    request = {"resourceSpans": [{"resource": resource, "scopeSpans": [{"spans": [span]}]}]}
    file = tmp_path / "traces.json"
    file.write_text(json.dumps(request, indent=2 if indented else None) + "\n")
    summary = import_path(file, run_id="r")
    assert (summary.records, summary.bad, summary.formats) == (1, 0, {"otlp": 1})
    assert fetch("r", "SELECT name, duration_ns, role, span_id FROM spans") == [
        ("generate", 1000, "rollout", "0000000000000009")
    ]


def test_an_otlp_file_goes_to_the_run_that_its_resource_names(tmp_path, import_path, fetch, samples):
    resource = {"attributes": [{"key": "run.id", "value": {"stringValue": "20260101-120000-7-0a1b2c3d"}}]}
    span = {"traceId": "7" * 32, "spanId": "9" * 16, "name": "judger.run", "startTimeUnixNano": str(samples.begin_ns)}
    file = tmp_path / "traces.jsonl"
    file.write_text(json.dumps({"resourceSpans": [{"resource": resource, "scopeSpans": [{"spans": [span]}]}]}) + "\n")
    summary = import_path(file)
    assert (summary.bad, list(summary.runs)) == (0, ["20260101-120000-7-0a1b2c3d"])
    assert fetch("20260101-120000-7-0a1b2c3d", "SELECT name FROM spans") == [("judger.run",)]


@pytest.mark.parametrize(
    ("head", "kind"),
    [
        (b"RLI1....", "rli"),
        (b'{"type":"span","process_id":"p"}\n', "jsonl"),
        (b'{"session_id":1,"status":"accepted"}\n', "areal-sessions"),
        (b'not json\n{"session_id":1,"status":"accepted"}\n', None),
        (b'{"bad\n{"session_id":1,"status":"accepted"}\n', "areal-sessions"),
        (b'{"name":"a","ph":"X","ts":1}\n', "areal-trace"),
        (b'{"trace_id":"a:b","stage":"x.start","timestamp_s":1.5}\n', "xtuner"),
        (b'{"resourceLogs":[', "otlp"),
        (b'{"resourceMetrics":[]}', "otlp"),
        (b'{"traceEvents":[', "chrome"),
        (b'[{"ph":"X"}', "chrome"),
        (b"", None),
        (b"a,b,c\n", None),
        (b'{"foo": 1}', None),
        (b"\xff\xfe\x00", None),
        (b"[1, 2]", None),
    ],
)
def test_formats_are_detected_from_content(head, kind):
    assert detect(head) == kind


BAD_LINES = [
    b"{",
    b"nonsense",
    b'{"session_id":{}}',
    b'{"session_id":1,"submit_ts":"late"}',
    b"\xff\xfe",
    b"[]",
    b"null",
]


def test_bad_lines_are_counted_and_never_stop_the_rest(tmp_path, samples, import_path, fetch):
    good = [samples.lines([samples.session(number)]) for number in range(len(BAD_LINES) + 1)]
    mixed = good[0] + b"".join(bad + b"\n\n" + line for bad, line in zip(BAD_LINES, good[1:], strict=True))
    file = tmp_path / "x.jsonl"
    file.write_bytes(mixed)
    summary = import_path(file, run_id="r")
    assert (summary.records, summary.bad, summary.partial) == (len(good), len(BAD_LINES), 0)
    assert len(summary.problems) == 5
    assert fetch("r", "SELECT count(*) FROM sessions") == [(len(good),)]
    assert fetch("r", "SELECT kind, reason, count FROM losses") == [("records", "unreadable", len(BAD_LINES))]


def test_half_a_last_line_is_partial_and_comes_when_it_is_whole(tmp_path, samples, import_path, fetch):
    content = samples.lines([samples.session(0), samples.session(1)])
    file = tmp_path / "x.jsonl"
    file.write_bytes(content[:-20])
    first = import_path(file, run_id="r")
    assert (first.records, first.bad, first.partial) == (1, 0, 1)
    file.write_bytes(content)
    second = import_path(file, run_id="r")
    assert (second.records, second.bad, second.partial) == (2, 0, 0)
    assert fetch("r", COUNTS) == [(8, 2, 0)]


def test_a_whole_last_line_without_an_end_is_taken(tmp_path, samples, import_path, fetch):
    content = samples.lines([samples.session(0), samples.session(1)])
    file = tmp_path / "x.jsonl"
    file.write_bytes(content[:-1])
    assert import_path(file, run_id="r").records == 2
    file.write_bytes(content + samples.lines([samples.session(2)]))
    import_path(file, run_id="r")
    assert fetch("r", COUNTS) == [(12, 3, 0)]


def test_a_bad_last_line_without_an_end_does_not_cost_what_follows_it(tmp_path, samples, import_path, fetch):
    def event(name, **fields):
        return {"type": "event", "process_id": "p", "time_ns": samples.begin_ns, "name": name} | fields

    file = tmp_path / "x.jsonl"
    content = samples.lines([event("first"), event("bad", span_id="f" * 20)])
    file.write_bytes(content[:-1])
    first = import_path(file, run_id="r")
    assert (first.records, first.partial) == (1, 1)
    file.write_bytes(content + samples.lines([event("last")]))
    assert import_path(file, run_id="r").bad == 1
    assert fetch("r", "SELECT name FROM events ORDER BY name") == [("first",), ("last",)]


def test_frames_longer_than_the_head_of_a_file_are_followed(tmp_path, samples, follow, fetch, wait_until, runs):
    builder = BatchBuilder()
    builder.add_event(time_ns=samples.begin_ns, name="long", attributes=json.dumps({"text": "x" * 100_000}))
    process = Process(process_id="p", run_id="r", host="h", pid=1)
    (tmp_path / "x.rli").write_bytes(frame(encode(builder.build(process, sequence=1, sent_ns=1))))
    follow(tmp_path / "x.rli", run_id="r")
    wait_until(lambda: runs.file_of("r").exists() and fetch("r", "SELECT name FROM events") == [("long",)])


def test_the_same_file_twice_is_not_doubled(tmp_path, samples, import_path, fetch):
    file = tmp_path / "x.jsonl"
    file.write_bytes(samples.lines(samples.session(number) for number in range(50)))
    first = import_path(file, run_id="r")
    again = import_path(file, run_id="r")
    assert (first.new_batches, again.new_batches, again.duplicate_batches) == (1, 0, 1)
    copied = tmp_path / "elsewhere" / "x.jsonl"
    copied.parent.mkdir()
    copied.write_bytes(file.read_bytes())
    assert import_path(copied, run_id="r").new_batches == 0
    assert fetch("r", COUNTS) == [(200, 50, 0)]


def test_a_file_that_grew_gives_only_what_is_new(tmp_path, samples, import_path, fetch):
    file = tmp_path / "x.jsonl"
    for grown in (3, 10, 11, 40):
        file.write_bytes(samples.lines(samples.session(number) for number in range(grown)))
        import_path(file, run_id="r")
        assert fetch("r", COUNTS) == [(4 * grown, grown, 0)]


def test_large_files_are_read_in_portions(tmp_path, samples, import_path, fetch):
    padding = "x" * 20_000
    count = 2 * PORTION_BYTES // 20_000
    file = tmp_path / "x.jsonl"
    file.write_bytes(samples.lines(samples.session(n) | {"reason": padding} for n in range(count)))
    summary = import_path(file, run_id="r")
    assert (summary.records, summary.bad) == (count, 0)
    assert summary.new_batches > 1
    assert import_path(file, run_id="r").new_batches == 0
    assert fetch("r", "SELECT count(*) FROM sessions") == [(count,)]


def test_a_damaged_gzip_file_gives_what_is_readable(tmp_path, samples, import_path, fetch):
    content = samples.lines(samples.session(number) for number in range(200))
    packed = bytearray(gzip.compress(content))
    packed[-6] ^= 1  # in the checksum
    file = tmp_path / "x.jsonl.gz"
    file.write_bytes(packed)
    summary = import_path(file, run_id="r")
    assert 150 < summary.records <= 200
    assert (summary.bad, summary.partial) == (0, 0)
    assert f"the gzip data of {file} is damaged: reading failed after " in summary.damaged[0]
    assert fetch("r", "SELECT count(*) FROM sessions") == [(summary.records,)]


def packed_lines(samples, suffix, count=4000):
    """Return lines whose compressed form is cut in many places, and that form."""
    content = samples.lines(samples.session(n) | {"reason": f"{hash((n, 7)):x}" * 20} for n in range(count))
    return content, bytes(gzip.compress(content) if suffix == "gz" else cramjam.zstd.compress(content))


@pytest.mark.parametrize("suffix", ["gz", "zst"])
def test_a_truncated_compressed_file_gives_what_is_there_and_the_rest_later(
    suffix, tmp_path, samples, import_path, fetch
):
    _, packed = packed_lines(samples, suffix)
    file = tmp_path / f"x.jsonl.{suffix}"
    known = 0
    for share in (3, 2):
        file.write_bytes(packed[: len(packed) // share])
        summary = import_path(file, run_id="r")
        assert (summary.bad, summary.partial) == (0, 0)
        assert "ends too early" in summary.damaged[0]
        ((now,),) = fetch("r", "SELECT count(*) FROM sessions")
        assert known < now < 4000
        known = now
    file.write_bytes(packed)
    assert import_path(file, run_id="r").damaged == []
    assert fetch("r", COUNTS) == [(16_000, 4000, 0)]


def test_a_truncated_compressed_trace_gives_what_is_there_and_the_rest_later(tmp_path, import_path, fetch):
    events = [CHROME_EVENTS[1] | {"ts": 1_767_225_600_000_000 + n, "args": {"n": hash((n, 7))}} for n in range(12_000)]
    packed = gzip.compress(json.dumps({"traceEvents": events}).encode())
    file = tmp_path / "x.json.gz"
    file.write_bytes(packed[: len(packed) // 2])
    assert "ends too early" in import_path(file, run_id="r").damaged[0]
    ((known,),) = fetch("r", "SELECT count(*) FROM spans")
    assert 0 < known < 12_000
    file.write_bytes(packed)
    assert import_path(file, run_id="r").damaged == []
    assert fetch("r", "SELECT count(*), count(DISTINCT start_ns) FROM spans") == [(12_000, 12_000)]


def test_a_compressed_file_without_any_content_is_reported_as_damaged(tmp_path, samples, import_path):
    _, packed = packed_lines(samples, "zst")
    file = tmp_path / "x.jsonl.zst"
    file.write_bytes(packed[:100])
    with pytest.raises(ExchangeError, match=r"the zstd data of .* ends too early, after 0 bytes"):
        import_path(file, run_id="r")
    summary = import_path(tmp_path, run_id="r")
    assert (len(summary.damaged), summary.skipped) == (1, [])


@pytest.mark.parametrize("suffix", ["gz", "zst"])
def test_a_compressed_file_that_pauses_while_it_is_written_is_followed_to_its_end(
    suffix, tmp_path, samples, follow, fetch, wait_until, runs
):
    _, packed = packed_lines(samples, suffix)
    file = tmp_path / f"x.jsonl.{suffix}"
    file.write_bytes(packed[: len(packed) // 2])
    follow(file, run_id="r")
    wait_until(lambda: runs.file_of("r").exists() and fetch("r", "SELECT count(*) > 0 FROM sessions") == [(True,)])
    with file.open("ab") as stream:
        stream.write(packed[len(packed) // 2 :])
    wait_until(lambda: fetch("r", COUNTS) == [(16_000, 4000, 0)])


def test_a_directory_is_read_whole_and_strange_files_are_named(tmp_path, samples, import_path):
    logs = tmp_path / "logs"
    (logs / "deep").mkdir(parents=True)
    (logs / "deep" / "sessions-r0.jsonl").write_bytes(samples.lines([samples.session(0)]))
    (logs / "trace.json").write_text(json.dumps(CHROME_EVENTS))
    (logs / "config.json").write_text('{"learning_rate": 1e-6}')
    (logs / "empty.jsonl").touch()
    (logs / "weights.bin").write_bytes(b"\x00")
    summary = import_path(logs)
    assert summary.formats == {"areal-sessions": 1, "chrome": 1}
    assert sorted(name.rpartition("/")[2] for name in summary.skipped) == ["config.json", "empty.jsonl"]
    assert summary.runs == ["logs"]


@pytest.mark.parametrize(("name", "content"), [("x.json", b"hello"), ("missing.json", None)])
def test_a_single_file_that_cannot_be_read_is_a_sentence(name, content, tmp_path, import_path):
    file = tmp_path / name
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ExchangeError, match=r"cannot import .*: "):
        import_path(file)


def test_an_unknown_format_is_refused(tmp_path, new_importer):
    with pytest.raises(ExchangeError, match=next(iter(FORMATS))):
        new_importer(file_format="matlab")


@pytest.fixture
def follow(new_importer):
    """Follow a path in a thread; the returned function ends it and returns the summary."""
    ends = []

    def start(path, **options):
        importer = new_importer(**options)
        stop = threading.Event()
        thread = threading.Thread(target=importer.follow, args=(path, stop, 0.01))
        thread.start()

        def end():
            stop.set()
            thread.join(20)
            return importer.summary()

        ends.append(end)
        return end

    yield start
    for end in ends:
        end()


def test_following_a_live_directory(tmp_path, samples, follow, fetch, wait_until, runs):
    logs = tmp_path / "logs"
    logs.mkdir()
    file = logs / "sessions-r0.jsonl"
    end = follow(logs, run_id="r")

    def sessions():
        return fetch("r", "SELECT count(*) FROM sessions")[0][0] if runs.file_of("r").exists() else 0

    with file.open("ab", buffering=0) as stream:
        stream.write(samples.lines([samples.session(0)]))
        wait_until(lambda: sessions() == 1)
        half = samples.lines([samples.session(1)])
        stream.write(half[:30])
        (logs / "sessions-r1.jsonl").write_bytes(samples.lines([samples.session(5, 1)]))
        wait_until(lambda: sessions() == 2)
        stream.write(half[30:] + b"no json\n")
        wait_until(lambda: sessions() == 3)
    file.rename(logs / "sessions-r0.jsonl.1")
    file.write_bytes(samples.lines([samples.session(7)]))
    wait_until(lambda: sessions() == 4)
    file.write_bytes(b"")  # truncated, then written anew
    with file.open("ab", buffering=0) as stream:
        stream.write(samples.lines([samples.session(8)])[:-1])
        stream.write(b"\n")
    wait_until(lambda: sessions() == 5)
    summary = end()
    assert (summary.records, summary.bad, summary.partial) == (5, 1, 0)
    assert fetch("r", "SELECT count(*) FROM spans") == [(20,)]


def test_a_file_rewritten_to_the_same_length_is_read_again(tmp_path, samples, follow, fetch, wait_until, runs):
    file = tmp_path / "sessions-r0.jsonl"
    before, after = (samples.lines([samples.session(number)]) for number in (7, 8))
    assert len(before) == len(after)
    file.write_bytes(before)
    follow(tmp_path, run_id="r")

    def sessions():
        return fetch("r", "SELECT count(*) FROM sessions")[0][0] if runs.file_of("r").exists() else 0

    wait_until(lambda: sessions() == 1)
    with file.open("r+b", buffering=0) as stream:  # never shorter
        stream.write(after)
    wait_until(lambda: sessions() == 2)


def test_following_again_continues_where_it_ended(tmp_path, samples, follow, fetch, wait_until, runs):
    file = tmp_path / "x.jsonl"
    for number in range(3):
        with file.open("ab") as stream:
            stream.write(samples.lines([samples.session(number)]))
        end = follow(file, run_id="r")
        wait_until(
            lambda wanted=number + 1: (
                runs.file_of("r").exists() and fetch("r", "SELECT count(*) FROM sessions") == [(wanted,)]
            )
        )
        end()
    assert fetch("r", COUNTS) == [(12, 3, 0)]


def test_rotated_records_of_one_process_become_one_process(tmp_path, import_path, fetch, samples):
    directory = tmp_path / "sink"
    sink = JsonlSink(directory / "records.jsonl", max_bytes=2_000, max_backups=20)
    process = Process(process_id="host-1-a", run_id="live", host="host", pid=1, role="trainer", rank=3)

    def write(numbers):
        for number in numbers:
            builder = BatchBuilder()
            at = samples.begin_ns + number * 1_000_000_000
            # Each part begins with a span of the same start: what a part holds tells it from others.
            builder.add_span(span_id=number, trace=(1, 1), name=f"s{number}", start_ns=samples.begin_ns, duration_ns=5)
            builder.add_sample(builder.add_series("samples", "counter", "", "{}"), time_ns=at, value=float(number))
            sink.write(builder.build(process, sequence=number, sent_ns=at))

    found = (
        "SELECT (SELECT count(*) FROM processes), (SELECT count(*) FROM spans), (SELECT max(value) FROM samples), "
        "(SELECT count(DISTINCT series_id) FROM series)"
    )
    write(range(1, 31))
    assert len(list(directory.iterdir())) >= 3
    import_path(directory, run_id="r")
    assert fetch("r", found) == [(1, 30, 30.0, 1)]
    write(range(31, 61))  # the parts get new names
    sink.close()
    summary = import_path(directory, run_id="r")
    assert summary.duplicate_batches >= 3
    assert fetch("r", found) == [(1, 60, 60.0, 1)]
    assert fetch("r", "SELECT role, rank FROM processes") == [("trainer", 3)]


@pytest.mark.parametrize("compression", ["", ".gz", ".zst"])
@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.ndjson", "a.jsonl.1", "a.log", "a.trace"])
def test_a_directory_is_read_whichever_way_its_files_are_compressed(name, compression, tmp_path, samples, import_path):
    content = samples.lines([samples.session(0)])
    folder = tmp_path / "logs"
    folder.mkdir()
    compress = {"": bytes, ".gz": gzip.compress, ".zst": lambda data: bytes(cramjam.zstd.compress(data))}[compression]
    (folder / (name + compression)).write_bytes(compress(content))
    assert import_path(folder, run_id="r").records == 1
    (folder / (name + compression)).rename(folder / "moved")
    (folder / name).write_bytes(content)
    assert import_path(folder, run_id="r").new_batches == 0  # it is the same file


def test_the_ends_of_earlier_imports_are_read_once_per_run(tmp_path, samples, import_path, monkeypatch):
    folder = tmp_path / "logs"
    folder.mkdir()
    for number in range(5):
        (folder / f"{number}.jsonl").write_bytes(samples.lines([samples.session(number)]))
    import_path(folder, run_id="r")
    read = []

    class CountedBook(importer.CutBook):
        def __init__(self, data_dir, run_id):
            read.append(run_id)
            super().__init__(data_dir, run_id)

    monkeypatch.setattr(importer, "CutBook", CountedBook)
    assert import_path(folder, run_id="r").duplicate_batches == 5
    assert read == ["r"]
