"""A sink that keeps a warehouse up to date: Parquet files, partitioned by run and hour, with each row once."""

from __future__ import annotations

from typing import Any

from rl_insight.collector import Sink, SinkContext
from rl_insight.errors import ConfigError
from rl_insight.exchange.errors import ExchangeError
from rl_insight.exchange.warehouse.export import export_run
from rl_insight.exchange.warehouse.files import ParquetFolder
from rl_insight.schema import Batch


class ParquetSink(Sink):
    """Exports committed rows; it reads the runs, not the batches, so a batch that it missed is not lost.

    The position in each run is kept in the run's file, see `rl_insight.exchange.warehouse.tables`.

    Args:
        url: a folder, or a URL that fsspec supports, such as ``s3://bucket/rl-insight``.
        interval_s: how often new rows are written; longer means fewer and larger files.
    """

    name = "parquet"
    flushes_at_start = True

    def __init__(self, url: str, interval_s: float = 60.0) -> None:
        if interval_s <= 0:
            raise ConfigError(f"interval_s is {interval_s}: it must be more than 0.")
        self.flush_interval_s = interval_s
        try:
            self._target = ParquetFolder(url)
        except ExchangeError as error:
            raise ConfigError(str(error)) from error
        self._context: SinkContext | None = None
        self._changed: set[str] = set()
        self._is_first = True
        self._rows: dict[str, int] = {}

    def attach(self, context: SinkContext) -> None:
        """Keep the context, which opens runs."""
        self._context = context

    def write(self, batch: Batch) -> None:
        """Record that a run has new rows."""
        self._changed.add(batch.process.run_id)

    def flush(self) -> None:
        """Export the runs that have changed; at the start, all runs, in case an earlier server stopped in between.

        Raises:
            ExchangeError: this collector has no store.
        """
        runs = None if self._context is None else self._context.runs
        if runs is None:
            raise ExchangeError("sinks.parquet needs a server: a hub has no store to export from.")
        changed, self._changed = self._changed, set()
        if self._is_first:
            changed |= {info.run_id for info in runs.list_runs() if not info.problem}
        while changed:
            run_id = changed.pop()
            try:
                with runs.open(run_id) as store:
                    for table, rows in export_run(store, run_id, self._target).items():
                        self._rows[table] = self._rows.get(table, 0) + rows
            except Exception:
                self._changed |= changed | {run_id}  # the next flush retries them
                raise
        self._is_first = False

    def get_status(self) -> dict[str, Any]:
        """Return the rows written since startup, by table."""
        return {"url": self._target.url, "rows": dict(self._rows), "waiting_runs": len(self._changed)}
