"""Helpers for the store's tests: batches in one line, stores in a temporary directory."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pytest

from rl_insight.schema import Batch, BatchBuilder, Process
from rl_insight.store import RunStore
from rl_insight.store.tables import UPGRADES

BEGIN_NS = 1_760_000_000_000_000_000


class Maker:
    """Creates the batches of one process, with consecutive sequence numbers."""

    def __init__(self, process_id="p1", run_id="run", **fields: Any) -> None:
        self.process = Process(process_id=process_id, run_id=run_id, host="host", pid=7, **fields)
        self.sequence = 0
        self.builder = BatchBuilder()
        self._next_id = 1

    def span(self, name="work", start=0, duration=10, **fields: Any) -> int:
        span_id = fields.pop("span_id", None) or self._next_id
        self._next_id = max(self._next_id, span_id) + 1
        fields.setdefault("status", "open" if duration < 0 else "ok")
        fields.setdefault("trace", (1, 2))
        self.builder.add_span(
            span_id=span_id,
            name=name,
            start_ns=BEGIN_NS + start,
            duration_ns=duration,
            **fields,
        )
        return span_id

    def sample(self, name, value, at=0, kind="gauge", labels="{}", step=None) -> None:
        series = self.builder.add_series(name, kind, "help", labels)
        self.builder.add_sample(series, time_ns=BEGIN_NS + at, value=value, step=step)

    def build(self, sequence=None, sent_ns=None, **fields: Any) -> Batch:
        self.sequence = sequence or self.sequence + 1
        batch = self.builder.build(
            self.process, sequence=self.sequence, sent_ns=time.time_ns() if sent_ns is None else sent_ns, **fields
        )
        self.builder = BatchBuilder()
        return batch


@pytest.fixture
def make() -> type[Maker]:
    return Maker


@pytest.fixture
def old_file(tmp_path) -> Callable[[int], Path]:
    """Create an empty run file of an earlier version; version 0 has no tables."""

    def make_file(version: int) -> Path:
        path = tmp_path / f"version-{version}.duckdb"
        with duckdb.connect(str(path)) as connection:
            if version:
                connection.execute((Path(__file__).parent / "version_1.sql").read_text())
            for step in UPGRADES[: max(version - 1, 0)]:
                for statement in step:
                    connection.execute(statement)
            if version > 1:
                connection.execute("UPDATE meta SET value = $1 WHERE key = 'schema_version'", [str(version)])
        return path

    return make_file


@pytest.fixture
def begin_ns() -> int:
    return BEGIN_NS


@pytest.fixture
def store(tmp_path):
    with RunStore(tmp_path / "run.duckdb", min_free_bytes=0, create=True) as opened:
        yield opened


@pytest.fixture
def fetch() -> Callable[..., list[tuple[Any, ...]]]:
    def run(store: RunStore, sql: str, parameters=None) -> list[tuple[Any, ...]]:
        with store.reader() as cursor:
            return cursor.execute(sql, parameters or {}).fetchall()

    return run
