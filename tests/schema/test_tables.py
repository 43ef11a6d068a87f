"""Columns are declared once: writers name the columns that they have, and forms of a table have its columns."""

import pytest

from rl_insight.schema import NO_STEP
from rl_insight.schema.records import EventRecord, LogRecord, Record, SpanRecord
from rl_insight.schema.tables import Events, Logs, Sessions, Spans, Table, pack
from rl_insight.store.queries.logs import Event, LogLine
from rl_insight.store.queries.spans import StoredSpan

SPAN = {"span_id": 5, "trace": (1, 2), "name": "generate", "start_ns": 7, "duration_ns": 3}


def columns_of(count, table, **given):
    """Return all required columns of a table, with `count` zeros each, as raw columns."""
    required = {name: column for name, column in table.COLUMNS.items() if not column.optional}
    return {name: pack(column.code, [0] * count) for name, column in required.items()} | given


def test_rows_name_their_columns(builder, process):
    builder.add_span(**SPAN, session_id="s")
    batch = builder.build(process, sequence=1, sent_ns=1)
    (row,) = batch.spans.rows()
    assert (row.span_id, row.trace_high, row.trace_low, row.start_ns, row.duration_ns) == (5, 1, 2, 7, 3)
    assert (batch.text(row.segment), batch.text(row.status), batch.text(row.session_id)) == ("duration", "ok", "s")
    assert (row.parent_id, row.lane, row.error, row.step, row.attributes) == (0, 0, 0, NO_STEP, 0)


@pytest.mark.parametrize("missing", sorted(SPAN.keys() - {"trace"}))
def test_a_row_without_a_required_column_is_refused(builder, missing):
    with pytest.raises(TypeError, match=rf"missing \['{missing}'\]"):
        builder.add_span(**{name: value for name, value in SPAN.items() if name != missing})
    assert len(builder) == 0


def test_a_row_with_an_unknown_column_is_refused(builder):
    with pytest.raises(TypeError, match=r"unknown \['sesion_id'\]"):
        builder.add_span(**SPAN, sesion_id="s")
    with pytest.raises(TypeError, match=r"unknown \['sesion_id'\]"):
        builder.add_spans(span_id=[5], sesion_id=[0])
    assert len(builder) == 0


def test_columns_that_are_not_given_are_absent_in_every_row(builder, process):
    required = [name for name, column in Spans.COLUMNS.items() if not column.optional]
    builder.add_spans(**{name: [1, 1] for name in required})
    added = builder.build(process, sequence=1, sent_ns=1).spans
    built = Spans.from_columns(2, **{name: pack(Spans.TYPES[name], [1, 1]) for name in required})
    assert list(built.rows()) == list(added.rows())
    assert [(row.step, row.lane, row.attributes) for row in built.rows()] == [(NO_STEP, 0, 0)] * 2
    with pytest.raises(TypeError, match=r"missing \['status'\]"):
        Spans.from_columns(2, **{name: b"" for name in required if name != "status"})


@pytest.mark.parametrize("table", [Spans, Events, Logs, Sessions])
def test_a_table_of_columns_has_as_many_values_in_each(table: type[Table]):
    built = table.from_columns(3, **columns_of(3, table))
    assert {len(built.column(name)) for name in table.TYPES} == {3}


def fields(table):
    """Return the fields of a record: both halves of a trace id become one."""
    return ["trace_id" if name == "trace_high" else name for name in table.COLUMNS if name != "trace_low"]


@pytest.mark.parametrize(("record", "table"), [(SpanRecord, Spans), (EventRecord, Events), (LogRecord, Logs)])
def test_a_record_has_the_columns_of_its_table(record, table):
    assert sorted(record.__struct_fields__) == sorted([*Record.__struct_fields__, *fields(table)])


@pytest.mark.parametrize(("answer", "table"), [(StoredSpan, Spans), (Event, Events), (LogLine, Logs)])
def test_an_answer_has_the_columns_of_its_table(answer, table):
    assert set(fields(table)) - set(answer.__struct_fields__) <= {"trace_id"}  # an event or a line leads to its span
