"""docs/events.md must describe every field, with its true type."""

import re

import msgspec
import pytest

from rl_insight.schema import VERSION, BatchBuilder, encode, frame
from rl_insight.schema.batch import Batch, Loss, Process
from rl_insight.schema.records import RECORD_TYPES
from rl_insight.schema.tables import TABLES

COLUMN_TYPES = {"I": {"text", "uint32"}, "i": {"int32"}, "q": {"int64"}, "Q": {"uint64"}, "d": {"float64"}}
NUMBERS_IN_TEXT_WIDTH = {("samples", "series"), ("histograms", "series"), ("histograms", "buckets")}


@pytest.fixture(scope="module")
def document(root):
    return (root / "docs" / "events.md").read_text()


def documented(document, heading):
    """Return {field: type} of the table under a heading."""
    found = re.search(rf"^##+ {re.escape(heading)}\n(.*?)(?=^##|\Z)", document, re.MULTILINE | re.DOTALL)
    assert found, f"docs/events.md has no section {heading!r}"
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \| ([^|]+) \|$", found.group(1), re.MULTILINE)
    assert all(meaning.strip() for _, _, meaning in rows)
    return {name: kind.strip() for name, kind, _ in rows}


def fields(struct):
    return [field.name for field in msgspec.structs.fields(struct)]


@pytest.mark.parametrize("struct", [Batch, Process, Loss], ids=lambda struct: struct.__name__)
def test_every_field_of_the_batch_is_documented(document, struct):
    assert list(documented(document, struct.__name__)) == fields(struct)


@pytest.mark.parametrize("table", TABLES)
def test_every_column_is_documented_with_its_type(document, table):
    found = documented(document, table)
    types = TABLES[table].TYPES
    assert list(found) == list(types) == fields(TABLES[table])
    for column, code in types.items():
        assert found[column] in COLUMN_TYPES[code]
        if code == "I":
            assert (found[column] == "uint32") == ((table, column) in NUMBERS_IN_TEXT_WIDTH)


@pytest.mark.parametrize("record", RECORD_TYPES, ids=lambda record: record.__struct_config__.tag)
def test_every_field_of_a_record_is_documented(document, record):
    assert list(documented(document, f"Record `{record.__struct_config__.tag}`")) == fields(record)


def test_the_documented_version_is_the_current_one(document):
    assert f"this is version {VERSION[0]}.{VERSION[1]}" in document


def test_the_example_prints_the_records_of_a_file(document, process, tmp_path, monkeypatch, capsys):
    builder = BatchBuilder()
    builder.add_event(time_ns=1, name="written")
    (tmp_path / "events.rli").write_bytes(frame(encode(builder.build(process, sequence=1, sent_ns=1))))
    monkeypatch.chdir(tmp_path)
    (example,) = re.findall(r"```python\n(.*?)```", document, re.DOTALL)
    exec(example, {})
    assert '"name":"written"' in capsys.readouterr().out
