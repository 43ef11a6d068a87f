"""The queries of docs/warehouse.md run over exported files."""

from __future__ import annotations

import re
from pathlib import Path

import duckdb
import pytest

from rl_insight.exchange.warehouse.export import export_run
from rl_insight.exchange.warehouse.files import ParquetFolder
from rl_insight.store.run_store import RunStore
from tests.warehouse_run import warehouse_batch

PAGE = (Path(__file__).parents[2] / "docs" / "warehouse.md").read_text("utf-8").split("## ClickHouse")[0]
SQL = [re.sub(r"(?m)^ +", "", block) for block in re.findall(r"```sql\n(.*?)```", PAGE, re.DOTALL)]


@pytest.fixture(scope="module")
def warehouse(tmp_path_factory):
    """A connection with the page's views over an exported run."""
    place = tmp_path_factory.mktemp("warehouse")
    with RunStore(place / "run.duckdb", create=True) as store:
        store.commit([warehouse_batch(rank) for rank in range(2)])
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
