"""Client lifecycles in one process, with rl-insight 0.3.0 or ours: states open across `finish`, and a last `finish`."""

from __future__ import annotations

import json
import sys
import warnings

import rl_insight as insight

which = sys.argv[1]
spans = []


def start():
    if which == "ours":
        insight.init("math", "grpo", config={"server": {"backend": "memory"}})
    else:
        insight.init("math", "grpo", config={"server": {"backend": "keeping", "url": "http://127.0.0.1:1"}})


def end():
    """Finish, and store the recorded states."""
    if which == "ours":
        from rl_insight.monitor import default_monitor
        from rl_insight.schema.records import SpanRecord, records

        transport = default_monitor._pipeline.transport
        insight.finish()
        for batch in transport.batches:
            spans.extend(
                [one.name, one.lane] for one in records(batch) if isinstance(one, SpanRecord) and one.duration_ns
            )
    else:
        insight.finish()


if which == "original":
    from rl_insight.client.base import MonitorClient, register_monitor_client

    class Keeping(MonitorClient):
        def apply_event(self, event):
            spans.append([event["name"], event["attributes"]["state_lane_id"]])

    register_monitor_client("keeping", lambda _conf: Keeping())


class Logger:
    """Like verl's: finishes when it is destroyed, possibly at interpreter exit."""

    def __del__(self):
        insight.finish()


start()
with insight.trace_state("first", state_lane_id="rank_0"):
    pass
forgotten = insight.trace_state("forgotten", state_lane_id="rank_0")
forgotten.__enter__()
end()
answers = {"after_finish": [insight.metric_count("nothing"), insight.finish()]}
start()
with insight.trace_state("second", state_lane_id="rank_0"):
    pass
answers["left_late"] = bool(forgotten.__exit__(None, None, None))
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    start()
answers["warned"] = [warning.category.__name__ for warning in caught]
end()
answers["spans"] = [span for span in spans if span[0] != "forgotten"]
start()
logger = Logger()
print(json.dumps(answers), flush=True)
