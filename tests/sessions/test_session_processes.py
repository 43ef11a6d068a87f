"""Sessions whose phases run in other processes, through files, into the store."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor

import rl_insight as insight
from rl_insight.schema.sessions import SessionBook
from rl_insight.store import RunStore, queries
from rl_insight.transport.file import read_batches

SESSIONS = 200
CONFIG = {"server": {"backend": "file"}}


def run_phases(carrier: dict[str, str], plan: str) -> None:
    """Run in a worker: it joins the run of its parent by itself."""
    with insight.attach(carrier):
        with insight.phase("generate", plan=plan):
            pass
        try:
            with insight.phase("toolcall"):
                if plan == "fail":
                    raise OSError
        finally:
            insight.flush()


def plan_of(number: int) -> str:
    return ("good", "fail", "reject")[number % 3]


def run_sessions() -> None:
    """Run in a parent of its own: 200 sessions, all open at once, whose phases run in a pool of two workers."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, mp_context=context) as pool:
        running = []
        for number in range(SESSIONS):
            session = insight.session(task_id=number, session_id=f"s{number}").submit()
            with session.use():
                running.append((session, pool.submit(run_phases, dict(insight.inject()), plan_of(number))))
        for number, (session, future) in enumerate(running):
            if future.exception() is not None:
                session.finalize("failed", type(future.exception()).__name__)
            else:
                session.finalize("rejected" if plan_of(number) == "reject" else "accepted")


def check(records: dict[str, dict]) -> None:
    assert records.keys() == {f"s{number}" for number in range(SESSIONS)}
    for number in range(SESSIONS):
        record = records[f"s{number}"]
        plan = plan_of(number)
        assert record["status"] == {"good": "accepted", "fail": "failed", "reject": "rejected"}[plan]
        assert record["role"] == "executor"
        assert [phase["payload"] for phase in record["phases"]["generate"]] == [{"plan": plan}]
        assert [phase["outcome"] for phase in record["phases"]["toolcall"]] == ["error" if plan == "fail" else "ok"]


def test_phases_of_other_processes_reach_the_records(tmp_path):
    insight.init("math", "sessions", {**CONFIG, "file": {"directory": str(tmp_path)}}, role="executor")
    try:
        run_sessions()
    finally:
        insight.finish()
    batches = list(read_batches(tmp_path))
    assert len({batch.process.process_id for batch in batches}) >= 2
    book = SessionBook()
    for batch in reversed(batches):
        book.add(batch)
    check({record["session_id"]: record for record in book.records()})
    with RunStore(tmp_path / "run.duckdb", min_free_bytes=0) as store:
        for batch in batches:
            assert store.commit([batch], live=False) == [True]
            assert store.commit([batch], live=False) == [False]
        with store.reader() as cursor:
            check({number: queries.session_record(cursor, number) for number in book.ids()})
            assert queries.sessions_in_flight(cursor, 2**62) == []
