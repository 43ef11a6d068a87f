"""Sessions whose phases run in other processes, through files, into the store."""

from __future__ import annotations

import asyncio
import multiprocessing
from concurrent.futures import ProcessPoolExecutor

import rl_insight as insight
from rl_insight.sessions.records import SessionBook
from rl_insight.store import RunStore, queries
from rl_insight.transport.file import read_batches

SESSIONS = 200
CONFIG = {"server": {"backend": "file"}}


def run_phases(carrier: dict[str, str], plan: str) -> None:
    """Run in a worker, which joins its parent's run automatically."""
    with insight.attach(carrier):
        try:
            with insight.phase("generate", plan=plan):
                pass
            asyncio.run(call_tools(plan))
        finally:
            insight.flush(60)


async def call_tools(plan: str) -> None:
    """Run two phases of one name that overlap; the second of them may fail or be cancelled."""

    async def call(number: int) -> None:
        async with insight.phase("toolcall", number=number):
            await asyncio.sleep(0)  # until the other has begun
            if number == 1 and plan == "fail":
                raise OSError
            if number == 1 and plan == "cancel":
                await asyncio.Event().wait()

    calls = [asyncio.create_task(call(number)) for number in range(2)]
    await calls[0]
    if plan == "cancel":
        calls[1].cancel()
    await calls[1]


PLANS = {"good": "accepted", "fail": "failed", "reject": "rejected", "cancel": "cancelled"}
OUTCOMES = {"fail": "error", "cancel": "cancelled"}


def plan_of(number: int) -> str:
    return list(PLANS)[number % len(PLANS)]


async def run_session(number: int, pool: ProcessPoolExecutor) -> None:
    """Run a session whose phases run in a worker; it has the same outcome as they do."""
    loop = asyncio.get_running_loop()
    async with insight.session(session_id=f"s{number}") as session, insight.phase("execution"):
        await loop.run_in_executor(pool, run_phases, dict(insight.inject()), plan_of(number))
        if plan_of(number) == "reject":
            session.finalize("rejected")


async def run_sessions() -> None:
    """Run 200 sessions, all open at once, each with a separate task, with a pool of two workers."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, mp_context=context) as pool:
        running = []
        for number in range(SESSIONS):
            with insight.task(f"t{number}"):
                running.append(asyncio.create_task(run_session(number, pool)))
        await asyncio.gather(*running, return_exceptions=True)


def check(records: dict[str, dict]) -> None:
    assert records.keys() == {f"s{number}" for number in range(SESSIONS)}
    for number in range(SESSIONS):
        record = records[f"s{number}"]
        plan = plan_of(number)
        assert (record["status"], record["task_id"], record["role"]) == (PLANS[plan], f"t{number}", "executor")
        assert [phase["payload"] for phase in record["phases"]["generate"]] == [{"plan": plan}]
        tools = {phase["payload"]["number"]: phase["outcome"] for phase in record["phases"]["toolcall"]}
        assert tools == {0: "ok", 1: OUTCOMES.get(plan, "ok")}
        assert [phase["outcome"] for phase in record["phases"]["execution"]] == [OUTCOMES.get(plan, "ok")]


def test_phases_of_other_processes_reach_the_records(tmp_path):
    insight.init("math", "sessions", {**CONFIG, "file": {"directory": str(tmp_path)}}, role="executor")
    try:
        asyncio.run(run_sessions())
    finally:
        insight.finish()
    batches = list(read_batches(tmp_path))
    assert len({batch.process.process_id for batch in batches}) >= 2
    book = SessionBook()
    for batch in reversed(batches):
        book.add(batch)
    check({record["session_id"]: record for record in book.records()})
    with RunStore(tmp_path / "run.duckdb", min_free_bytes=0, create=True) as store:
        for batch in batches:
            assert store.commit([batch]) == [True]
            assert store.commit([batch]) == [False]
        with store.reader() as cursor:
            check({number: queries.session_record(cursor, number) for number in book})
            assert queries.sessions_in_flight(cursor, 2**62) == []
