"""Record a run with many ranks and injected faults that the tests know."""

from __future__ import annotations

import json
import sys
import time

from rl_insight.schema import BatchBuilder, Process
from rl_insight.schema.batch import Loss
from tests.web.sending import send_batches

SECOND = 10**9
STEPS = 60
STEP_S = 10.0
ROLLOUTS = 24
SLOW_STEP, SLOW_TOOL_FROM, SLOW_RANK, CHANGED_STEP = 37, 40, 17, 45
RUN, EARLIER_RUN = "many-ranks", "many-ranks-before"
LOSING_RANK, LOST = 3, 1234


class Ranks:
    """The processes of the run, each with its records."""

    def __init__(self, run: str = RUN, ago_s: float = 60) -> None:
        self.run = run
        self.begin = time.time() - STEPS * STEP_S - ago_s
        self._next_id = 1
        self.builders = {("trainer", 0): BatchBuilder()} | {
            ("rollout", rank): BatchBuilder() for rank in range(ROLLOUTS)
        }

    def span(self, who, name, start, duration, **fields):
        span_id, self._next_id = self._next_id, self._next_id + 1
        fields.setdefault("segment", "state_interval")
        fields.setdefault("status", "ok" if duration >= 0 else "open")
        self.builders[who].add_span(
            span_id=span_id,
            trace=(1, 1),
            name=name,
            start_ns=int((self.begin + start) * SECOND),
            duration_ns=int(duration * SECOND) if duration >= 0 else -1,
            **fields,
        )

    def gauge(self, who, name, value, start, step=None, **labels):
        builder = self.builders[who]
        series = builder.add_series(name, "gauge", "", json.dumps(labels))
        builder.add_sample(series, time_ns=int((self.begin + start) * SECOND), value=value, step=step)

    def session(self, who, name, start, length, **fields):
        at = self.begin + start
        record = {"submit_ts": at, "enqueue_ts": at, "finalized_ts": at + length, **fields}
        self.builders[who].add_session(
            session_id=name, status="accepted", time_ns=int((at + length) * SECOND), record=json.dumps(record),
            task_id=f"gsm8k-{fields['step']}-{who[1] // 4}",
        )  # fmt: skip

    def send(self, server):
        batches = []
        for (role, rank), builder in self.builders.items():
            process = Process(
                process_id=f"{role}-{rank}", run_id=self.run, host=f"node-{rank // 4}", pid=rank + 1, project="math",
                experiment_name="ranks", role=role, rank=rank, started_ns=int(self.begin * SECOND), heartbeat_s=3600.0,
            )  # fmt: skip
            is_losing = self.run == RUN and (role, rank) == ("rollout", LOSING_RANK)
            losses = [Loss(kind="spans", reason="buffer_full", count=LOST)] if is_losing else []
            batches.append(builder.build(process, sequence=1, sent_ns=time.time_ns(), losses=losses))
        send_batches(server, *batches)


def record(server: str) -> None:
    """Record the run and send it."""
    ranks = Ranks()
    trainer = ("trainer", 0)
    start = 0.0
    for step in range(STEPS):
        ranks.span(trainer, "wait_for_samples", start, 4, step=step)
        ranks.span(trainer, "update", start + 4, 5, step=step)
        length = STEP_S
        if step == SLOW_STEP:
            ranks.span(trainer, "save_checkpoint", start + 9, 31, step=step)
            length += 31
        if step == CHANGED_STEP:
            at = int((ranks.begin + start) * SECOND)
            ranks.builders[trainer].add_event(time_ns=at, name="config_changed", step=step, attributes='{"lr": 1e-05}')
        ranks.gauge(trainer, "grad_norm", float("nan") if step == CHANGED_STEP else 1.0, start + 9, step)
        ranks.gauge(trainer, "reward_mean", step / STEPS, start + 9, step)
        for gpu in range(8):
            labels = {"source": "nvml", "host": f"node-{gpu // 4}", "node": f"node-{gpu // 4}", "gpu": str(gpu % 4)}
            ranks.gauge(trainer, "gpu_utilization_ratio", 0.1, start + 1, step, **labels)
            ranks.gauge(trainer, "gpu_utilization_ratio", 0.9, start + 6, step, **labels)
        for rank in range(ROLLOUTS):
            who = ("rollout", rank)
            ranks.span(who, "generate", start, 9 if rank == SLOW_RANK else 5, step=step)
            ranks.session(
                who, f"s{step:03d}-{rank}", start, 30 if (step, rank) == (SLOW_STEP, 7) else 6, step=step,
                reward=float(rank % 3 == 0), model_version=str(max(0, step - 2)),
            )  # fmt: skip
            tool = 1.8 if step >= SLOW_TOOL_FROM else 0.3
            bad = step >= SLOW_TOOL_FROM and rank == 3
            ranks.span(
                who, "toolcall", start + 5, tool, step=step, segment="phase", lane=f"rollout_{rank}/slot_0",
                session_id=f"s{step:03d}-{rank}", status="error" if bad else "ok",
                error="ToolTimeout: no answer" if bad else None, attributes=json.dumps({"tool": "search"}),
            )  # fmt: skip
            if bad and step == STEPS - 1:
                moment = int((ranks.begin + start + 6) * SECOND)
                ranks.builders[who].add_log(
                    time_ns=moment, level=40, message="the tool did not answer", lane=f"rollout_{rank}/slot_0",
                    span_id=ranks._next_id - 1,
                )  # fmt: skip
        start += length
    ranks.span(("rollout", 21), "toolcall", start, -1, segment="phase", lane="rollout_21/slot_0", step=STEPS)
    ranks.send(server)


def record_earlier(server: str) -> None:
    """Record a shorter run from the day before, with faster steps."""
    ranks = Ranks(EARLIER_RUN, ago_s=86_400)
    for step in range(STEPS):
        ranks.span(("trainer", 0), "update", step * 8, 7.5, step=step)
        ranks.gauge(("trainer", 0), "reward_mean", step / STEPS, step * 8 + 7, step)
    ranks.send(server)


if __name__ == "__main__":
    record(sys.argv[1])
