"""The queries of docs/warehouse.md run over exported files."""

from __future__ import annotations

import re
from pathlib import Path

import duckdb
import pytest

from rl_insight.exchange.warehouse.export import export_run
from rl_insight.exchange.warehouse.files import ParquetFolder
from rl_insight.schema import BatchBuilder, Process
from rl_insight.store.run_store import RunStore

PAGE = (Path(__file__).parents[2] / "docs" / "warehouse.md").read_text("utf-8").split("## ClickHouse")[0]
SQL = [re.sub(r"(?m)^ +", "", block) for block in re.findall(r"```sql\n(.*?)```", PAGE, re.DOTALL)]
HOUR = 3_600_000_000_000


def _batch(rank):
    builder = BatchBuilder()
    for step in range(3):
        now = HOUR + step * 1_000_000_000
        for number, status in ((0, "ok"), (1, "error")):
            builder.add_span(
                span_id=step * 10 + number + 1, trace=(rank, step), name="generate", start_ns=now, step=step,
                duration_ns=(rank + 1) * 1000, segment="state_interval", status=status,
                error="ValueError" if number else None,
            )  # fmt: skip
        series = builder.add_series("reward", "gauge", "", "{}")
        builder.add_sample(series, time_ns=now, value=step / 2, step=step)
    builder.add_log(time_ns=HOUR, level=40, message="boom")
    record = f'{{"session_id":"s{rank}","reward":1.0,"submit_ts":3600.5,"enqueue_ts":3601.0,"wait_return_ts":3602.5}}'
    builder.add_session(session_id=f"s{rank}", status="accepted", time_ns=HOUR, record=record)
    process = Process(process_id=f"p{rank}", run_id="r", host=f"h{rank}", pid=1, role="actor", rank=rank)
    return builder.build(process, sequence=1, sent_ns=HOUR)


@pytest.fixture(scope="module")
def warehouse(tmp_path_factory):
    """A connection with the page's views over an exported run."""
    place = tmp_path_factory.mktemp("warehouse")
    with RunStore(place / "run.duckdb", create=True) as store:
        store.commit([_batch(rank) for rank in range(2)])
        export_run(store, "r", ParquetFolder(str(place / "out")))
    connection = duckdb.connect()
    connection.execute(SQL[0].replace("/data/warehouse", str(place / "out")))
    yield connection
    connection.close()


def test_the_page_has_ten_queries():
    assert len(SQL) == 11


@pytest.mark.parametrize("sql", SQL[1:], ids=[str(number) for number in range(1, len(SQL))])
def test_a_query_of_the_page_runs_and_finds_something(warehouse, sql):
    rows = warehouse.execute(sql).fetchall()
    assert rows
    assert all(value is not None for value in rows[0])


def test_the_slow_rank_is_found(warehouse):
    assert warehouse.execute(SQL[3]).fetchall()[0] == ("r", "generate", 1, pytest.approx(4 / 3))
