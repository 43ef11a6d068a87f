import json
import math

import pytest

from rl_insight.schema import decode, encode, process_record, record_json, records
from rl_insight.schema.records import RECORD_TYPES, json_schema


@pytest.mark.parametrize(
    ("value", "shown"), [(math.nan, "NaN"), (math.inf, "Infinity"), (-math.inf, "-Infinity"), (1.5, 1.5)]
)
def test_numbers_that_json_lacks_are_spelled_out(builder, process, value, shown):
    series = builder.add_series("m", "gauge", "", "{}")
    builder.add_sample(series, time_ns=1, value=value)
    builder.add_histogram(series, time_ns=1, count=1, total=value, minimum=value, maximum=value, buckets={})
    batch = decode(encode(builder.build(process, sequence=1, sent_ns=1)))
    sample, histogram = (json.loads(record_json(record)) for record in records(batch))
    assert sample["value"] == shown
    assert [histogram[name] for name in ("sum", "min", "max")] == [shown] * 3


def test_absent_fields_are_omitted(builder, process):
    builder.add_event(time_ns=1, name="alone")
    batch = builder.build(process, sequence=1, sent_ns=1)
    (record,) = records(batch)
    assert json.loads(record_json(record)) == {"type": "event", "process_id": "p-1", "time_ns": 1, "name": "alone"}
    process_fields = json.loads(record_json(process_record(batch)))
    assert not process_fields.keys() & {"project", "experiment_name", "role", "rank", "labels", "started_ns"}


def test_each_histogram_owns_its_own_buckets(builder, process):
    series = builder.add_series("m", "histogram", "", "{}")
    for buckets in ({3: 1, 1: 2}, {}, {2: 5}):
        builder.add_histogram(
            series, time_ns=1, count=sum(buckets.values()), total=0, minimum=0, maximum=0, buckets=buckets
        )
    batch = decode(encode(builder.build(process, sequence=1, sent_ns=1)))
    assert [record.buckets for record in records(batch)] == [{1: 2, 3: 1}, {}, {2: 5}]


def test_a_record_is_one_line(golden_script):
    for record in records(golden_script.golden_batch()):
        assert b"\n" not in record_json(record)


def test_the_published_schema_is_the_schema_of_the_records(root):
    published = json.loads((root / "docs" / "events.schema.json").read_text())
    assert published == json.loads(json.dumps(json_schema())), "run scripts/make-golden"
    assert len(published["oneOf"]) == len(RECORD_TYPES)


def test_real_records_agree_with_the_published_schema(root, golden_script):
    jsonschema = pytest.importorskip("jsonschema")
    published = json.loads((root / "docs" / "events.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(published)
    validator = jsonschema.Draft202012Validator(published)
    lines = golden_script.golden_lines(golden_script.golden_batch()).splitlines()
    kinds = set()
    for line in lines:
        record = json.loads(line)
        validator.validate(record)
        assert not validator.is_valid({**record, "process_id": 3})
        kinds.add(record["type"])
    assert len(kinds) == len(RECORD_TYPES)
