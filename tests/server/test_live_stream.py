"""The live stream of changes, while the store's writer adds more."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace

from rl_insight.server.live import LiveNotes
from rl_insight.server.routes import live


class BusyNotes(LiveNotes):
    """Changes of which another one arrives right after each reading, as from the writer's thread."""

    def since(self, version, run_id=None):
        found = super().since(version, run_id)
        if self.version < 3:
            self.note_findings("run", 1)
        return found


def test_a_change_that_arrives_while_the_stream_reads_is_sent_with_the_next_ones(monkeypatch):
    monkeypatch.setattr(live, "_POLL_S", 0.0)
    notes = BusyNotes()
    notes.note_findings("run", 1)
    rounds = iter([False] * 5 + [True])

    async def is_disconnected():
        return next(rounds)

    async def read():
        request, services = SimpleNamespace(is_disconnected=is_disconnected), SimpleNamespace(is_ready=True)
        return [chunk.decode() async for chunk in live._stream(request, notes, services, 0, None)]

    changes = [chunk for chunk in asyncio.run(read()) if "event: change" in chunk]
    data = [json.loads(chunk.split("data: ")[1]) for chunk in changes]
    assert [(change["version"], change["findings"]) for change in data] == [(1, 1), (2, 1), (3, 1)]
