"""prime-rl's trace files: one episode per line; each of its traces is a session with phases."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from rl_insight.exchange.importing.readers.areal import ArealSessionReader
from rl_insight.exchange.importing.readers.base import FileContext, Reader
from rl_insight.integrations.prime_rl_episodes import samples_of
from rl_insight.integrations.samples import FinishedSample
from rl_insight.schema import Batch


class PrimeRlTraceReader(Reader):
    """Reads episodes by converting each of their traces to an AReaL session record."""

    def __init__(self, context: FileContext) -> None:
        super().__init__(context)
        self._sessions = ArealSessionReader(context)

    def convert_records(self, records: Iterable[Any]) -> Iterator[Batch]:
        """Yield the batches of some episodes; one without any time cannot be imported, and counts as bad."""
        lines: list[bytes] = []
        for episode in records:
            found = [_line(sample, episode) for sample in samples_of(episode, 0.0) if sample.end_s]
            lines.extend(found)
            if not found:
                self.context.counts.note_bad("no time", episode)
        return self._sessions.convert(b"\n".join(lines))


def _line(sample: FinishedSample, episode: dict[str, Any]) -> bytes:
    """Return a sample as a session record."""
    phases: dict[str, list[dict[str, Any]]] = {}
    for phase in sample.phases:
        phases.setdefault(phase.name, []).append({"start_ts": phase.start_s, "end_ts": phase.end_s})
    return msgspec.json.encode(
        {
            "session_id": str(sample.session_id or episode.get("id")),
            "task_id": sample.task_id,
            "group_id": sample.group_id,
            "status": sample.status,
            "reason": sample.reason,
            "step": sample.step,
            "reward": sample.reward,
            "tokens": sample.tokens,
            "submit_ts": sample.start_s,
            "finalized_ts": sample.end_s,
            "phases": phases,
        }
    )
