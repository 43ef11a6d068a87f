"""The same AReaL program with AReaL's tracer and with ours, and AReaL's own tools on the files of both."""

from __future__ import annotations

import getpass
import json
import re
from collections import Counter
from pathlib import Path

import pytest

from tests.compat.conftest import Programs

PROGRAM = "areal_training.py"


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The results and files of a training run, with the original and with ours."""
    programs = Programs(tmp_path_factory.mktemp("home"))
    found = {}
    for which in ("original", "ours"):
        folder = tmp_path_factory.mktemp(which)
        answers = programs.run(PROGRAM, which, folder, original="areal")
        found[which] = (answers, folder / "logs" / getpass.getuser() / "math" / "trial0")
    return found


@pytest.fixture(scope="module")
def edges(tmp_path_factory):
    """The same for calls that a trainer rarely makes."""
    programs = Programs(tmp_path_factory.mktemp("home"))
    found = {}
    for which in ("original", "ours"):
        folder = tmp_path_factory.mktemp(which)
        answers = programs.run("areal_edges.py", which, folder, original="areal")
        found[which] = (answers, folder / "logs" / getpass.getuser() / "math" / "trial0")
    return found


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_every_call_answers_the_same(runs):
    assert runs["ours"][0] == runs["original"][0]


def test_calls_that_are_rare_answer_the_same(edges):
    assert edges["ours"][0] == edges["original"][0]


def test_calls_that_are_rare_write_the_same(edges):
    def shape(path):
        found = []
        for line in lines(path):
            kept = {key: value for key, value in line.items() if not key.endswith(("ts", "_s", "id", "dur"))}
            kept["phases"] = {name: len(phases) for name, phases in line.get("phases", {}).items()}
            found.append(comparable(kept) if "ph" in kept else json.dumps(kept, sort_keys=True))
        return Counter(found)

    ours, theirs = (
        {str(path.relative_to(folder)): shape(path) for path in folder.rglob("*.jsonl")}
        for folder in (edges["ours"][1], edges["original"][1])
    )
    assert ours == theirs
    assert len(ours) == 4


def test_the_files_have_the_same_names(runs):
    names = {
        which: sorted(str(path.relative_to(folder)) for path in folder.rglob("*.jsonl"))
        for which, (_, folder) in runs.items()
    }
    assert names["ours"] == names["original"]


def comparable(event: dict) -> str:
    """Return an event without times and without process, thread and session numbers."""
    event = {**event, "args": {key: value for key, value in event.get("args", {}).items() if key != "step"}}
    for key in ("ts", "dur", "pid", "tid"):
        event.pop(key, None)
    if event["ph"] == "M":  # ours have rank and role there too, so that the converter keeps the threads' names
        event["args"].pop("rank", None)
        event["args"].pop("role", None)
    return json.dumps(event, sort_keys=True)


def traces(folder: Path) -> list[dict]:
    return lines(folder / "perf_tracer" / "actor" / "traces-r1.jsonl")


def test_the_trace_has_the_same_events(runs):
    ours, theirs = (Counter(map(comparable, traces(runs[which][1]))) for which in ("ours", "original"))
    assert ours == theirs


def test_times_processes_and_threads_are_numbers_of_the_same_kind(runs):
    for which in ("ours", "original"):
        events = traces(runs[which][1])
        assert len({event["pid"] for event in events}) == 1
        measured = [event for event in events if event["ph"] == "X" and event["tid"] > 0]
        assert all(isinstance(event[key], int) and event[key] >= 0 for event in measured for key in ("ts", "dur"))
        assert all(event["dur"] >= 1 for event in measured)
        names = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
        assert sorted(names.values()) == ["MainThread", "[Profiler Stream 3]", "[Profiler Thread 70]", "loader"]
        assert {tid for tid in names if tid < 0} == {-1, -2}
        by_name = {event["name"]: names[event["tid"]] for event in events if event["ph"] in "Xi"}
        assert by_name["from.thread"] == "loader"
        assert by_name["gemm"] == "[Profiler Stream 3]"


def sessions(folder: Path) -> list[dict]:
    found = lines(folder / "session_tracer" / "actor" / "sessions-r1.jsonl")
    return sorted(found, key=lambda record: (record["task_id"], record["session_id"]))


def test_the_session_file_has_the_same_records(runs):
    def shape(record):
        """Return a record with times and phases replaced by placeholders."""
        shaped = {key: value for key, value in record.items() if key not in ("error", "session_id")}
        shaped.update({key: "time" for key in record if key.endswith(("_ts", "_s"))})
        shaped["phases"] = {name: len(phases) for name, phases in record["phases"].items()}
        return shaped

    ours, theirs = (sessions(runs[which][1]) for which in ("ours", "original"))
    closed = [{**shape(record), "generate_s": "time"} for record in theirs]  # ours ends phases with their session
    assert [shape(record) for record in ours] == closed
    for record in (*ours, *theirs):
        assert isinstance(record["session_id"], int)
        if "total_s" in record:
            assert record["total_s"] == pytest.approx(record["finalized_ts"] - record["submit_ts"], abs=1e-5)
        for name, phases in record["phases"].items():
            assert all({"start_ts", "end_ts"} <= set(phase) for phase in phases)
            ended = [phase["end_ts"] - phase["start_ts"] for phase in phases if phase["end_ts"] is not None]
            assert record.get(f"{name}_s", 0.0) == pytest.approx(sum(ended), abs=1e-5)


def test_the_exception_of_a_workflow_has_a_field_beside_the_executors_reason(runs):
    failed = [record for record in sessions(runs["ours"][1]) if record["status"] == "failed"]
    assert [(record["reason"], record["error"]) for record in failed] == [("workflow_exception", "ValueError")] * 2


def test_areals_converter_reads_ours_as_its_own(runs, programs, tmp_path):
    def converted(which):
        output = tmp_path / f"{which}.json"
        source = runs[which][1] / "perf_tracer"
        programs.python(
            Path(__file__).parent / "programs" / "areal_tool.py",
            "perf_trace_converter",
            source,
            output,
            paths=(programs.original("areal"),),
        )
        document = json.loads(output.read_text())
        return document["traceEvents"] if isinstance(document, dict) else document

    ours, theirs = converted("ours"), converted("original")
    pids = [{event["pid"] for event in events if event["name"] == "train.rollout"} for events in (ours, theirs)]
    assert [len(found) for found in pids] == [1, 1]

    def without_threads(events):
        kept = (event for event in events if not event["name"].startswith("thread_"))
        return Counter(re.sub(r"Process \d+", "Process", comparable(event)) for event in kept)

    assert without_threads(ours) == without_threads(theirs)
    threads = [event["args"]["name"] for event in ours if event["name"] == "thread_name" and event["pid"] in pids[0]]
    assert sorted(threads) == ["MainThread", "[Profiler Stream 3]", "[Profiler Thread 70]", "loader"]


def test_areals_converter_keeps_roles_of_one_rank_apart(runs, programs, tmp_path):
    for role in ("actor", "rollout"):
        programs.python(
            "-c",
            "import sys; from rl_insight.compat import areal\n"
            "areal.configure({'enabled': True, 'experiment_name': 'e', 'trial_name': 't', 'fileroot': sys.argv[1]},"
            " rank=0, role=sys.argv[2])\n"
            "with areal.trace_scope('work'): pass\n"
            "areal.save(force=True)",
            tmp_path,
            role,
        )
    output = tmp_path / "trace.json"
    programs.python(
        Path(__file__).parent / "programs" / "areal_tool.py",
        "perf_trace_converter",
        tmp_path / "logs",
        output,
        paths=(programs.original("areal"),),
    )
    events = json.loads(output.read_text())["traceEvents"]
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert sorted(name.rpartition(" ")[0] for name in names.values()) == [
        "[actor] Rank 0, Process",
        "[rollout] Rank 0, Process",
    ]
    assert sorted(names[event["pid"]] for event in events if event["name"] == "work") == sorted(names.values())


def test_areals_plot_tool_draws_ours(runs, programs):
    folder = runs["ours"][1] / "session_tracer" / "actor"
    programs.python(
        Path(__file__).parent / "programs" / "areal_tool.py",
        "plot_session_trace",
        folder,
        "-B",
        "2",
        "-L",
        paths=(programs.original("areal"), programs.original("areal-plots")),
    )
    pages = sorted(path.name for path in (runs["ours"][1] / "session_tracer").rglob("*.html"))
    assert pages == [
        "sessions-distribution-overall.html",
        "sessions-distribution-step.html",
        "sessions-latency.html",
        "sessions-lifecycle-r1.html",
    ]
