"""prime-rl's trace files: one episode per line, each of its traces a session with its phases."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from rl_insight.exchange.importing.readers.areal import ArealSessionReader
from rl_insight.exchange.importing.readers.base import FileContext, Reader, decoded_lines
from rl_insight.integrations.prime_rl_episodes import samples_of
from rl_insight.integrations.samples import FinishedSample
from rl_insight.schema import Batch

_decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(dict[str, Any])


class PrimeRlTraceReader(Reader):
    """Reads episodes; what they are as sessions is read as a line of AReaL's is."""

    def __init__(self, context: FileContext) -> None:
        super().__init__(context)
        self._sessions = ArealSessionReader(context)

    def convert(self, data: bytes) -> Iterator[Batch]:
        """Yield the batches of some episodes; one without any time cannot be placed, and is counted as bad."""
        counts = self.context.counts
        lines: list[bytes] = []
        for episode in decoded_lines(data, _decoder, counts):
            counts.records -= 1  # its sessions are counted instead
            found = [_line(sample, episode) for sample in samples_of(episode, 0.0) if sample.end_s]
            lines.extend(found)
            if not found:
                counts.note_bad("there is no time in an episode")
        yield from self._sessions.convert(b"\n".join(lines))


def _line(sample: FinishedSample, episode: dict[str, Any]) -> bytes:
    """Return a sample as a record of a session."""
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
