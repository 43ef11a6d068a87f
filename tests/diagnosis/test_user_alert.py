"""`insight.alert` becomes a finding of the run."""

from __future__ import annotations

import json

from rl_insight.diagnosis.run import replay
from rl_insight.schema import BatchBuilder
from rl_insight.store.run_store import RunStore
from rl_insight.testing import capture


def test_an_alert_of_training_code_is_a_finding(tmp_path):
    with capture() as insight:
        insight.alert("reward service is down", "no answer for a minute", "critical")
        (event,) = insight.events
        process = insight.process
    builder = BatchBuilder()
    builder.add_span(span_id=1, trace=(1, 1), name="work", start_ns=event.time_ns - 10**9, duration_ns=10**9)
    builder.add_event(time_ns=event.time_ns, name=event.name, attributes=json.dumps(event.attributes))
    with RunStore(tmp_path / "run.duckdb", min_free_bytes=0, create=True) as store:
        store.commit([builder.build(process, sequence=1, sent_ns=0, final=True)])
        with store.reader() as cursor:
            (finding,) = replay(cursor).findings
    assert (finding.rule, finding.severity) == ("alert", "critical")
    assert finding.title == "reward service is down"
    assert finding.explanation == "no answer for a minute"
