"""Everything in a run's store, as Parquet files for a data warehouse."""

from rl_insight.exchange.warehouse.sink import ParquetSink

__all__ = ["ParquetSink"]
