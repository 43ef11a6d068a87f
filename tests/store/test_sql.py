"""User SQL: its results, what it refuses, and the limits that apply to any query."""

from __future__ import annotations

import threading
import time

import msgspec
import psutil
import pytest

from rl_insight.store import QueryError, QueryTimeoutError, queries
from rl_insight.store.errors import StoreBusyError
from rl_insight.store.queries import SqlLimits, SqlResult

MEBIBYTE = 1024**2


def ask(store, sql, **limits):
    return msgspec.json.decode(queries.run_sql(store, sql, SqlLimits(**limits)), type=SqlResult)


def test_sql_answers_with_columns_and_rows(store, make):
    maker = make()
    for name in ("generate", "sync", "generate"):
        maker.span(name)
    store.commit([maker.build()])
    result = ask(store, "SELECT name, count(*) AS n, [1, NULL] AS l FROM spans GROUP BY name ORDER BY name")
    assert result.columns == ["name", "n", "l"]
    assert result.rows == [["generate", 2, [1, None]], ["sync", 1, [1, None]]]
    assert not result.truncated


def test_values_that_json_lacks_are_answered(store):
    result = ask(store, "SELECT 'NaN'::DOUBLE, 2::HUGEINT ** 1, 170141183460469231731687303715884105727, x'00ff'::BLOB")
    assert result.rows[0][0] is None
    assert result.rows[0][2] == "170141183460469231731687303715884105727"


def test_rows_past_the_limit_are_left_out_and_the_answer_says_so(store):
    assert ask(store, "FROM range(100)", max_rows=7).truncated
    whole = ask(store, "FROM range(100)", max_rows=100)
    assert (len(whole.rows), whole.truncated) == (100, False)


def test_a_query_sees_what_was_committed_before_it(store, make):
    """The copy includes the write-ahead log: no commit waits for a checkpoint."""
    maker = make()
    for number in range(1, 4):
        maker.span("work")
        store.commit([maker.build()])
        assert ask(store, "SELECT count(*) FROM spans").rows == [[number]]
    assert [path.name for path in store.path.parent.iterdir() if "sql" in path.name] == []


FORBIDDEN = [
    "DELETE FROM span_data",
    "INSERT INTO names VALUES (1, 'x')",
    "WITH x AS (DELETE FROM names RETURNING 1) SELECT * FROM x",
    "UPDATE names SET name = 'x'",
    "DROP TABLE names",
    "CREATE TABLE evil (a INTEGER)",
    "CREATE TEMP TABLE evil (a INTEGER)",
    "ATTACH '{directory}/evil.duckdb'",
    "COPY (SELECT 1) TO '{directory}/evil.csv'",
    "EXPORT DATABASE '{directory}/evil'",
    "SELECT * FROM read_text('{directory}/secret.txt')",
    "SELECT * FROM read_csv('{directory}/secret.txt')",
    "SELECT * FROM '{directory}/secret.csv'",
    "SELECT * FROM glob('{directory}/*')",
    "SELECT * FROM query('SELECT * FROM read_text(''{directory}/secret.txt'')')",
    "SELECT * FROM secret_in_python",
    "SET threads = 1",
    "SET enable_external_access = true",
    "RESET lock_configuration",
    "PRAGMA database_list",
    "INSTALL httpfs",
    "LOAD httpfs",
    "CALL checkpoint()",
    "CHECKPOINT",
    "SELECT * FROM force_checkpoint()",
    "SELECT getenv('HOME')",
    "SELECT 1; SELECT 2",
    "SELECT 1; DROP TABLE names",
    "COMMIT",
    "",
    "   -- nothing",
    "SELEC 1",
    "SELECT nonsense FROM spans",
    "SELECT 1" + " " * 200_000,
]


@pytest.mark.parametrize("sql", FORBIDDEN, ids=[sql[:50] for sql in FORBIDDEN])
def test_sql_cannot_write_reach_files_or_change_settings(tmp_path, store, make, fetch, sql):
    secret_in_python = {"secret": [1]}
    (tmp_path / "secret.txt").write_text("secret")
    (tmp_path / "secret.csv").write_text("a\nsecret\n")
    maker = make()
    maker.span("kept")
    store.commit([maker.build()])
    before = sorted(path.name for path in tmp_path.iterdir())
    with pytest.raises(QueryError) as refused:
        queries.run_sql(store, sql.format(directory=tmp_path))
    assert "secret\n" not in str(refused.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    assert fetch(store, "SELECT name FROM spans") == [("kept",)]
    assert secret_in_python


HEAVY = {
    "a product": "SELECT count(*) FROM range(10000000) a, range(10000000) b",
    "one call": "SELECT repeat('x', 2000000000)",
    "endless recursion": "WITH RECURSIVE t AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM t) SELECT * FROM t",
    "growing recursion": (
        "WITH RECURSIVE t AS (SELECT 'x' AS s UNION ALL SELECT s || s FROM t) SELECT max(length(s)) FROM t"
    ),
    "wide rows": "SELECT repeat('x', 100000) FROM range(20000)",
    "one wide row": "SELECT list(repeat('x', 100000)) FROM range(20000)",
    "another connection": (
        "SELECT * FROM destroy_external_resource('query', 'SELECT sum(sqrt(range)) FROM range(3000000000)')"
    ),
}


@pytest.mark.parametrize("name", HEAVY)
def test_no_query_takes_more_than_its_time_memory_and_bytes(store, make, name):
    process = psutil.Process()
    before, largest, ended = process.memory_info().rss, 0, threading.Event()
    others = {child.pid for child in process.children()}  # tests that ran before may have left services

    def watch():
        nonlocal largest
        while not ended.wait(0.02):
            largest = max(largest, process.memory_info().rss)

    watcher = threading.Thread(target=watch)
    watcher.start()
    begun = time.monotonic()
    try:
        answer = queries.run_sql(store, HEAVY[name], SqlLimits(timeout_s=3.0, max_answer_bytes=MEBIBYTE))
        assert len(answer) < 1.01 * MEBIBYTE
        assert msgspec.json.decode(answer, type=SqlResult).truncated
    except QueryError as error:
        assert "longer than 3 s" in str(error) or "memory limit" in str(error)  # noqa: PT017 -- either is fine
    finally:
        took = time.monotonic() - begun
        ended.set()
        watcher.join()
    assert took < 20  # far less than the query would take
    assert largest - before < 64 * MEBIBYTE
    assert not {child.pid for child in process.children()} - others
    assert store.commit([make().build()]) == [True]


def test_a_slow_query_ends_in_time_and_the_error_says_so(store):
    with pytest.raises(QueryTimeoutError, match=r"longer than 1 s"):
        queries.run_sql(store, HEAVY["a product"], SqlLimits(timeout_s=1.0))


def test_a_second_query_is_asked_to_wait(store):
    errors = []

    def slow():
        try:
            queries.run_sql(store, HEAVY["a product"], SqlLimits(timeout_s=3.0))
        except QueryTimeoutError as error:
            errors.append(error)

    first = threading.Thread(target=slow)
    first.start()
    try:
        time.sleep(0.5)
        with pytest.raises(StoreBusyError, match="another SQL query is running"):
            queries.run_sql(store, "SELECT 1")
    finally:
        first.join()
    assert ask(store, "SELECT 1").rows == [[1]]


def test_a_run_that_is_too_long_to_copy_is_refused(store):
    with pytest.raises(QueryError, match="Export the run"):
        queries.run_sql(store, "SELECT 1", SqlLimits(max_run_bytes=1024))
