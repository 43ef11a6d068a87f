"""Everything that a run's store knows, as Parquet files that a warehouse reads."""

from rl_insight.exchange.warehouse.sink import ParquetSink

__all__ = ["ParquetSink"]
