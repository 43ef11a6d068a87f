"""Helpers for session tests: the session records of a captured monitor."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rl_insight.sessions.records import SessionRecord


@pytest.fixture
def records() -> Callable[..., dict[str, SessionRecord]]:
    """Return the records of all sessions of a capture, by their ids."""

    def read(capture) -> dict[str, SessionRecord]:
        return {str(record["session_id"]): record for record in capture.sessions}

    return read


@pytest.fixture
def only_record(records) -> Callable[..., SessionRecord]:
    def read(capture) -> SessionRecord:
        (record,) = records(capture).values()
        return record

    return read
