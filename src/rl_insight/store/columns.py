"""From gathered columns to frames in the shape of the store's tables.

Numbers go from the batches' raw bytes through NumPy without being touched row by row; text stays a dictionary.
"""

from __future__ import annotations

from typing import Any

from rl_insight.schema import NO_STEP
from rl_insight.schema.tables import Histograms
from rl_insight.store.frame import Column, Frame, ListColumn, NumberColumn, Texts, frame_of
from rl_insight.store.gathered import Gathered, StoredRows
from rl_insight.store.session_batch import SessionBatch
from rl_insight.store.tables import stored_name


def texts_of(gathered: Gathered) -> Texts:
    """Return the texts that the columns of gathered batches refer to."""
    first = gathered.batches[0]
    return first.texts if isinstance(first, SessionBatch) else Texts(gathered.strings)


def stored_frame(gathered: Gathered, rows: StoredRows, texts: Texts) -> Frame:
    """Return rows as DuckDB reads them; those of histograms with their buckets."""
    frame = row_frame(rows, texts)
    return Frame(frame.columns | _buckets(gathered)) if rows.table is Histograms else frame


def row_frame(rows: StoredRows, texts: Texts) -> Frame:
    """Return rows as DuckDB reads them."""
    found: dict[str, Any] = dict(rows.columns)
    for column_name, column in rows.table.COLUMNS.items():
        name = stored_name(column_name, column)
        match column.kind:
            case "step":
                found[name] = NumberColumn(found[name], found[name] == NO_STEP)
            case "text":
                found[name] = texts.at(found[name]) if column.optional else texts.required(found[name])
    return frame_of(found)


def _buckets(gathered: Gathered) -> dict[str, Column]:
    lengths = gathered.rows("histograms")[0]["buckets"]
    buckets, _ = gathered.rows("buckets")
    return {
        name: ListColumn.of(lengths, NumberColumn(buckets[of_buckets]))
        for name, of_buckets in (("codes", "code"), ("counts", "count"))
    }
