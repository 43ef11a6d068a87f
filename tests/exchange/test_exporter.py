"""Exports: they can be imported again, and other tools can read them."""

import csv
import gzip
import json

import pyarrow.parquet as parquet
import pytest

from rl_insight.exchange.errors import ExchangeError
from rl_insight.exchange.exporting.exporter import WRITERS, export_run
from rl_insight.exchange.exporting.rows import Selection
from rl_insight.schema import BatchBuilder, Process
from rl_insight.sessions.model import STATUSES

SPANS = """
    SELECT * EXCLUDE (process_id) FROM (SELECT * FROM spans UNION ALL SELECT * FROM open_spans)
    ORDER BY span_id
"""
EVENTS = "SELECT * EXCLUDE (process_id) FROM events ORDER BY time_ns"
LOGS = "SELECT * EXCLUDE (process_id) FROM logs ORDER BY time_ns"
SAMPLES = "SELECT * EXCLUDE (process_id, value), value::VARCHAR FROM samples ORDER BY name, time_ns"
HISTOGRAMS = "SELECT * EXCLUDE (process_id) FROM histograms"
SESSIONS = "SELECT * EXCLUDE (process_id, snapshot_ns) FROM sessions ORDER BY session_id"
PROCESSES = "SELECT host, pid, project, role, rank, labels FROM processes ORDER BY role"
COLUMNS = "span_id, trace_id, parent_id, name, start_ns, duration_ns, segment, status, step, session_id, lane"
EVERYTHING = (SPANS, EVENTS, LOGS, SAMPLES, HISTOGRAMS, SESSIONS, PROCESSES)


@pytest.mark.parametrize("file_format", ["jsonl", "rli"])
def test_a_round_trip_loses_nothing(file_format, tmp_path, recorded, import_path, fetch):
    file = tmp_path / f"run.{file_format}"
    assert export_run(recorded, file_format, file) > 0
    import_path(file, run_id="again")
    for sql in EVERYTHING:
        rows = fetch("recorded", sql)
        assert rows, sql
        assert fetch("again", sql) == rows, sql
    summary = import_path(file, run_id="again")
    assert (summary.new_batches, summary.bad, summary.partial) == (0, 0, 0)


def test_otlp_comes_in_again(tmp_path, recorded, import_path, fetch):
    file = tmp_path / "run.otlp.json"
    export_run(recorded, "otlp", file)
    summary = import_path(file, run_id="again")
    assert (summary.bad, summary.formats) == (0, {"otlp": 1})
    for table in ("spans", "open_spans"):
        spans = f"SELECT {COLUMNS}, error, role, rank FROM {table} ORDER BY span_id"
        assert fetch("recorded", spans)
        assert fetch("again", spans) == fetch("recorded", spans)
    assert fetch("again", SESSIONS) == fetch("recorded", SESSIONS)
    assert fetch("again", "SELECT name, step, lane FROM events") == [("weights", 1, "slot_0")]
    assert fetch("again", "SELECT message, level FROM logs") == [("bad </script> line", 40)]
    values = "SELECT name, kind, value::VARCHAR FROM samples ORDER BY 1, time_ns"
    assert fetch("again", values) == fetch("recorded", values)
    buckets = "SELECT count, sum, min, max, codes, counts FROM histograms"
    assert fetch("again", buckets) == fetch("recorded", buckets)


def test_otlp_keeps_the_outcome_and_the_fields_of_every_session(tmp_path, runs, samples, import_path, fetch):
    builder = BatchBuilder()
    for number, status in enumerate(STATUSES):
        at = samples.begin_s + number
        record = {"submit_ts": at, "enqueue_ts": at + 0.25, "reason": "because", "reward": 0.5, "tokens": 7, "step": 3}
        record |= {"group_id": "g", "model_version": "v1", "counters": {"turns": 2.0}, "rollout_stats": {"a": [1]}}
        if status != "pending":
            record["finalized_ts"] = at + 4.5
        builder.add_session(
            session_id=f"s{number}", task_id="gsm8k", status=status, time_ns=samples.begin_ns + number * 10**9,
            record=json.dumps(record),
        )  # fmt: skip
        builder.add_span(
            span_id=number + 1, trace=(1, number), name="generate", start_ns=samples.begin_ns + number * 10**9,
            duration_ns=-1 if status == "pending" else 10**9, status="open" if status == "pending" else "ok",
            session_id=f"s{number}", segment="phase",
        )  # fmt: skip
    process = Process(process_id="p", run_id="r", host="h", pid=1, role="rollout", rank=2)
    with runs.open("r", create=True) as store:
        store.commit([builder.build(process, sequence=1, sent_ns=0)])
        export_run(store, "otlp", tmp_path / "run.json")
    import_path(tmp_path / "run.json", run_id="again")
    outcomes = fetch("again", "SELECT status, task_id, reward, reason, queue_wait_s FROM sessions ORDER BY session_id")
    assert outcomes == [(status, "gsm8k", 0.5, "because", 0.25) for status in STATUSES]
    assert fetch("again", SESSIONS) == fetch("r", SESSIONS)
    assert fetch("again", "SELECT count(*) FROM logs") == [(0,)]


def test_otlp_names_the_run_as_the_proposal_does(tmp_path, recorded):
    file = tmp_path / "run.json"
    export_run(recorded, "otlp", file)
    for line in file.read_text().splitlines():
        ((resources,),) = json.loads(line).values()
        attributes = {pair["key"]: pair["value"] for pair in resources["resource"]["attributes"]}
        assert attributes["rl.run.id"] == {"stringValue": "recorded"}
        assert attributes["service.instance.id"]["stringValue"] in {"t", "w"}


def _chrome(store, path, **selection):
    export_run(store, "chrome", path, Selection(**selection))
    content = path.read_bytes()
    return json.loads(gzip.decompress(content) if path.suffix == ".gz" else content)["traceEvents"]


def test_a_chrome_trace_names_every_process_and_thread(tmp_path, recorded):
    events = _chrome(recorded, tmp_path / "trace.json")
    processes = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    threads = {(event["pid"], event["tid"]) for event in events if event["name"] == "thread_name"}
    assert sorted(processes.values()) == ["rollout 3 (n1 11)", "trainer 0 (n0 10)"]
    drawn = [event for event in events if event["ph"] in {"X", "i", "s", "f"}]
    assert {(event["pid"], event["tid"]) for event in drawn} <= threads
    assert {event["pid"] for event in events} == set(processes)
    assert sum(event["ph"] == "X" for event in events) == 13


def test_intervals_of_a_thread_lie_inside_one_another(tmp_path, recorded):
    events = [event for event in _chrome(recorded, tmp_path / "trace.json") if event["ph"] == "X"]
    threads = {}
    for event in events:
        threads.setdefault((event["pid"], event["tid"]), []).append((event["ts"], event["ts"] + event["dur"]))
    assert len(threads) == 4  # two overlapping generations need two threads; the open tool call is on the process's own
    for intervals in threads.values():
        for begin, end in intervals:
            for other_begin, other_end in intervals:
                apart = end <= other_begin or other_end <= begin
                nested = (begin <= other_begin and other_end <= end) or (other_begin <= begin and end <= other_end)
                assert apart or nested


def test_open_spans_of_a_process_that_ended_are_drawn_until_its_last_sign_of_life(tmp_path, runs, samples):
    begin_ns, second = samples.begin_ns, 10**9
    last_seen = {"gone": begin_ns + 7 * second, "other": begin_ns + 60 * second}
    with runs.open("r", create=True) as store:
        for number, (name, sent_ns) in enumerate(last_seen.items()):
            builder = BatchBuilder()
            builder.add_span(
                span_id=number + 1, trace=(1, number), name=name, start_ns=begin_ns, duration_ns=-1, status="open"
            )
            builder.add_event(time_ns=sent_ns - second, name="tick")
            batch = builder.build(
                Process(process_id=name, run_id="r", host="h", pid=number), sequence=1, sent_ns=sent_ns, final=True
            )
            store.commit([batch], received_ns=[sent_ns])
        drawn = {one["name"]: one["dur"] for one in _chrome(store, tmp_path / "trace.json") if one["ph"] == "X"}
    assert drawn == {"gone": 7e6, "other": 60e6}


def test_phases_of_concurrent_sessions_are_drawn_in_their_own(tmp_path, samples, import_path, runs):
    at = samples.begin_s
    inside = {"execution": [{"start_ts": at + 2.0, "end_ts": at + 3.0}]}  # a session that begins and ends in others
    records = [samples.session(number) for number in range(30)]
    records.append(samples.session(40) | {"submit_ts": at + 2.0, "wait_return_ts": at + 3.5, "phases": inside})
    late = {"a": [{"start_ts": at + 50, "end_ts": at + 58}], "b": [{"start_ts": at + 51, "end_ts": at + 59}]}
    records.append(samples.session(41) | {"submit_ts": at + 50, "wait_return_ts": at + 60, "phases": late})
    file = tmp_path / "sessions-r0.jsonl"
    file.write_bytes(samples.lines(records))
    import_path(file, run_id="r")
    with runs.open("r") as store:
        events = [event for event in _chrome(store, tmp_path / "trace.json") if event["ph"] == "X"]
    assert len(events) == 30 * 4 + 2 + 3
    encloses = [
        (outer, inner)
        for inner in events
        for outer in events
        if outer is not inner
        and outer["tid"] == inner["tid"]
        and outer["ts"] <= inner["ts"]
        and inner["ts"] + inner["dur"] <= outer["ts"] + outer["dur"]
    ]
    parents = {event["args"]["span_id"]: event["args"].get("parent_id") for event in events}
    for outer, inner in encloses:
        assert parents[inner["args"]["span_id"]] is not None  # no session is drawn in another one
        assert outer["args"]["session_id"] == inner["args"]["session_id"]
    drawn_in = {inner["args"]["span_id"] for _outer, inner in encloses}
    overlapping = {event["args"]["span_id"] for event in events if event["name"] == "b"}
    assert {child for child, parent in parents.items() if parent is not None} - drawn_in == overlapping


def test_flows_lead_from_far_parents_to_their_children(tmp_path, recorded):
    events = _chrome(recorded, tmp_path / "trace.json")
    starts = {event["id"]: event for event in events if event["ph"] == "s"}
    ends = {event["id"]: event for event in events if event["ph"] == "f"}
    assert len(starts) == 6
    assert starts.keys() == ends.keys()
    for number, start in starts.items():
        assert start["pid"] != ends[number]["pid"]
        assert start["ts"] <= ends[number]["ts"]


def test_counters_are_tracks_without_what_json_lacks(tmp_path, recorded):
    events = _chrome(recorded, tmp_path / "trace.json.gz")
    counters = [(event["name"], event["args"]["value"]) for event in events if event["ph"] == "C"]
    assert ("reward_mean{task=gsm8k}", 0.5) in counters
    assert len(counters) == 4


def test_our_own_chrome_trace_comes_in_again(tmp_path, recorded, import_path, fetch):
    file = tmp_path / "trace.json"
    _chrome(recorded, file)
    summary = import_path(file, run_id="again")
    assert (summary.bad, summary.partial) == (0, 0)
    ended = f"SELECT {COLUMNS} FROM spans WHERE name <> 'toolcall' ORDER BY span_id"
    assert fetch("again", ended) == fetch("recorded", ended)


@pytest.mark.parametrize(
    ("selection", "names"),
    [
        ({"step": 1}, {"train_step", "update", "generate"}),
        ({"session_id": "s2"}, {"generate"}),
        ({"lane": "trainer"}, {"train_step", "update"}),
        ({"lane": "rollout"}, {"toolcall"}),
        ({"start_ns": 1_767_225_620_000_000_000}, {"train_step", "update", "generate", "toolcall"}),
        ({"end_ns": 1_767_225_600_500_000_000}, {"train_step"}),
        ({"step": 99}, set()),
    ],
)
def test_a_part_of_a_run(selection, names, tmp_path, recorded):
    events = _chrome(recorded, tmp_path / "trace.json", **selection)
    assert {event["name"] for event in events if event["ph"] == "X"} == names


def test_tables_as_csv_and_parquet(tmp_path, recorded):
    export_run(recorded, "csv", tmp_path / "tables")
    with (tmp_path / "tables" / "spans.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == 13
    assert {row["role"] for row in rows} == {"trainer", "rollout"}
    export_run(recorded, "parquet", tmp_path / "parquet", Selection(step=1))
    spans = parquet.read_table(tmp_path / "parquet" / "spans.parquet")
    assert spans.column("name").to_pylist() == ["train_step", "generate", "generate", "update"]
    sessions = parquet.read_table(tmp_path / "parquet" / "sessions.parquet")
    assert sessions.column("session_id").to_pylist() == ["s1"]
    (phases,) = sessions.column("phases").to_pylist()
    assert {phase["name"] for phase in json.loads(phases)} == {"generate"}
    with pytest.raises(ExchangeError, match="it exists"):
        export_run(recorded, "csv", tmp_path / "tables")


def test_tables_of_one_lane_hold_its_spans_and_no_session(tmp_path, recorded):
    export_run(recorded, "parquet", tmp_path / "tables", Selection(lane="trainer"))
    names = parquet.read_table(tmp_path / "tables" / "spans.parquet").column("name").to_pylist()
    assert set(names) == {"train_step", "update"}
    assert parquet.read_table(tmp_path / "tables" / "sessions.parquet").num_rows == 0


def test_an_export_that_fails_leaves_nothing(tmp_path, recorded):
    (tmp_path / "file").write_text("kept")
    with pytest.raises(ExchangeError, match="cannot write"):
        export_run(recorded, "jsonl", tmp_path / "file" / "below.jsonl")
    with pytest.raises(ExchangeError, match=", ".join(WRITERS)):
        export_run(recorded, "xml", tmp_path / "x")
    assert [path.name for path in tmp_path.iterdir() if path.name != "data"] == ["file"]


@pytest.mark.parametrize("name", ["</script><b>", "a\u2028b", "naïve\x00", "x" * 5000, '{}[]"\\'])
def test_hostile_names_survive(name, tmp_path, runs, import_path, fetch):
    from rl_insight.schema import BatchBuilder, Process

    builder = BatchBuilder()
    builder.add_span(span_id=1, trace=(1, 1), name=name, start_ns=10**18, duration_ns=5, lane=name, session_id=name)
    with runs.open("hostile", create=True) as store:
        store.commit([builder.build(Process(process_id="p", run_id="hostile", host="h", pid=1), sequence=1, sent_ns=1)])
        for file_format in ("jsonl", "otlp", "chrome"):
            export_run(store, file_format, tmp_path / f"x.{file_format}.json")
    for file_format in ("jsonl", "otlp", "chrome"):
        import_path(tmp_path / f"x.{file_format}.json", run_id=file_format)
        assert fetch(file_format, "SELECT name, lane, session_id FROM spans") == [(name, name, name)]
