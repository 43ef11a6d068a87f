"""From gathered columns to Arrow tables in the shape of the store's tables.

Numbers go from the batches' raw bytes through NumPy without being touched row by row; text stays a dictionary.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from rl_insight.schema import NO_STEP
from rl_insight.schema.tables import Histograms
from rl_insight.store.gathered import Gathered, StoredRows
from rl_insight.store.session_batch import SessionBatch
from rl_insight.store.tables import stored_name
from rl_insight.store.texts import Texts


def texts_of(gathered: Gathered) -> Texts:
    """Return the texts that the columns of gathered batches refer to."""
    first = gathered.batches[0]
    return first.texts if isinstance(first, SessionBatch) else Texts(gathered.strings)


def stored_table(gathered: Gathered, rows: StoredRows, texts: Texts) -> pa.Table:
    """Return rows as DuckDB reads them; those of histograms with their buckets."""
    table = arrow_table(rows, texts)
    return _with_buckets(gathered, table) if rows.table is Histograms else table


def arrow_table(rows: StoredRows, texts: Texts) -> pa.Table:
    """Return rows as DuckDB reads them."""
    found: dict[str, Any] = dict(rows.columns)
    for column_name, column in rows.table.COLUMNS.items():
        name = stored_name(column_name, column)
        match column.kind:
            case "step":
                found[name] = pa.array(found[name], mask=found[name] == NO_STEP)
            case "text":
                found[name] = texts.at(found[name]) if column.optional else texts.required(found[name])
            case "number" if column.code == "d":
                # From a NumPy array, Arrow keeps NaN as a value: it does not become null.
                found[name] = pa.array(found[name], from_pandas=False)
    return pa.table(found)


def _with_buckets(gathered: Gathered, table: pa.Table) -> pa.Table:
    lengths = gathered.rows("histograms")[0]["buckets"]
    buckets, _ = gathered.rows("buckets")
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    for name, of_buckets in (("codes", "code"), ("counts", "count")):
        lists = pa.ListArray.from_arrays(pa.array(offsets), pa.array(buckets[of_buckets]))
        table = table.append_column(name, lists)
    return table
