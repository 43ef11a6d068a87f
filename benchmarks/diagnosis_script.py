"""Writes synthetic runs to a run file: processes that record spans, sessions and metrics at given times."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rl_insight.schema import Batch, BatchBuilder, Process
from rl_insight.schema.batch import Loss
from rl_insight.store.run_store import RunStore

SECOND = 1_000_000_000
BEGIN_S = 1_760_000_000.0
RUN_ID = "planted"


@dataclass(slots=True)
class Actor:
    """One process of a synthetic run."""

    process: Process
    builder: BatchBuilder = field(default_factory=BatchBuilder)
    sequence: int = 0
    losses: list[Loss] = field(default_factory=list)
    died_s: float | None = None
    """When it fell silent without a clean exit."""
    ended_s: float | None = None
    """When it exited cleanly; None for the end of the run."""


class Script:
    """A synthetic run; times are seconds since its start."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.actors: list[Actor] = []
        self._spans = seed << 32

    def actor(self, role: str, rank: int | None, host: str, *, started_s: float = 0.0, number: str = "") -> Actor:
        """Add a process."""
        process = Process(
            process_id=f"{role}-{rank}{number}",
            run_id=RUN_ID,
            host=host,
            pid=1000 + len(self.actors),
            role=role,
            rank=rank,
            started_ns=_ns(started_s),
            heartbeat_s=5.0,
        )
        self.actors.append(Actor(process))
        return self.actors[-1]

    def span(
        self,
        actor: Actor,
        name: str,
        start_s: float,
        seconds: float | None,
        *,
        step: int | None = None,
        segment: str = "state_interval",
        lane: str | None = None,
        session: str | None = None,
        error: str | None = None,
        attributes: Mapping[str, Any] | None = None,
    ) -> None:
        """Add a span; one without a duration stays open."""
        if actor.died_s is not None and start_s + (seconds or 0.0) > actor.died_s:
            if start_s >= actor.died_s:
                return
            seconds = None
        self._spans += 1
        actor.builder.add_span(
            span_id=self._spans,
            trace=(1, self._spans),
            name=name,
            start_ns=_ns(start_s),
            duration_ns=-1 if seconds is None else max(1, int(seconds * SECOND)),
            segment=segment,
            lane=lane,
            status="open" if seconds is None else "error" if error else "ok",
            error=error,
            step=step,
            session_id=session,
            attributes=json.dumps(attributes) if attributes else None,
        )

    def session(
        self,
        actor: Actor,
        session_id: str,
        start_s: float,
        end_s: float | None,
        *,
        step: int | None = None,
        task: str = "",
        status: str = "accepted",
        **record: Any,
    ) -> None:
        """Add a session; one without an end is pending."""
        fields: dict[str, Any] = {"submit_ts": BEGIN_S + start_s, **record}
        if step is not None:
            fields["step"] = step
        if end_s is not None:
            fields["finalized_ts"] = BEGIN_S + end_s
        actor.builder.add_session(
            session_id=session_id,
            status="pending" if end_s is None else status,
            time_ns=_ns(end_s if end_s is not None else start_s),
            record=json.dumps(fields),
            task_id=task,
        )

    def gauge(
        self, actor: Actor, name: str, time_s: float, value: float, step: int | None = None, **labels: str
    ) -> None:
        """Add a value of a metric."""
        series = actor.builder.add_series(name, "gauge", "", json.dumps(labels))
        actor.builder.add_sample(series, time_ns=_ns(time_s), value=value, step=step)

    def event(self, actor: Actor, name: str, time_s: float, step: int, **attributes: str) -> None:
        """Add an event."""
        encoded = json.dumps(attributes)
        actor.builder.add_event(name=name, time_ns=_ns(time_s), step=step, attributes=encoded)

    def write(self, store: RunStore, end_s: float, *, goodbye: bool) -> None:
        """Write everything; processes live to the end, and exit cleanly there if `goodbye` is true."""
        batches: list[Batch] = []
        times: list[int] = []
        for actor in self.actors:
            last_s = next(time_s for time_s in (actor.died_s, actor.ended_s, end_s) if time_s is not None)
            actor.sequence += 1
            is_final = (goodbye or actor.ended_s is not None) and actor.died_s is None
            batches.append(
                actor.builder.build(
                    actor.process, sequence=actor.sequence, sent_ns=_ns(last_s), losses=actor.losses, final=is_final
                )
            )
            times.append(_ns(last_s))
            actor.builder = BatchBuilder()
        store.commit(batches, received_ns=times)


def _ns(seconds: float) -> int:
    return int((BEGIN_S + seconds) * SECOND)
