"""The live stream of changes, while the store's writer adds more."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace

from rl_insight.server import live as live_notes
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


def changes_of(notes, version, run=None):
    return [(change.run_id, change.findings, change.resync) for change in notes.since(version, run)]


def test_a_client_of_a_run_whose_changes_were_evicted_is_told_to_reload(monkeypatch):
    monkeypatch.setattr(live_notes, "_KEPT_RUNS", 2)
    notes = LiveNotes()
    notes.note_findings("watched", 1)
    before = notes.version
    notes.note_findings("watched", 1)
    missed = notes.version
    for run in ("other", "another"):
        notes.note_findings(run, 1)
    assert changes_of(notes, before, "watched") == [("watched", 0, True)]
    assert changes_of(notes, missed, "watched") == []
    assert changes_of(notes, before) == [("", 0, True), ("other", 1, False), ("another", 1, False)]
    assert changes_of(notes, missed) == [("other", 1, False), ("another", 1, False)]
    notes.note_findings("watched", 1)  # the change before this one is still missing
    assert changes_of(notes, before, "watched") == [("watched", 1, True)]
    assert changes_of(notes, notes.version - 1, "watched") == [("watched", 1, False)]


def test_a_client_that_missed_more_changes_than_are_kept_is_told_to_reload(monkeypatch):
    monkeypatch.setattr(live_notes, "_KEPT_NOTES", 2)
    notes = LiveNotes()
    for _ in range(4):
        notes.note_findings("run", 1)
    assert [changes_of(notes, version) for version in (0, 1, 2)] == [
        [("run", 2, True)],
        [("run", 2, True)],
        [("run", 2, False)],
    ]
