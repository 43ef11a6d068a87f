"""Lists that the page has as well as the server: both have the same items."""

from __future__ import annotations

import json
import re
from pathlib import Path

from rl_insight.schema.names import WAITING_PATTERN
from rl_insight.sessions.model import STATUSES
from rl_insight.store.queries.metrics import PROCESS_LABELS

SOURCES = Path(__file__).parents[2] / "web" / "src"


def words(path, pattern):
    """Return the quoted words after a pattern, up to the end of the statement."""
    [found] = re.findall(pattern + r"([^;]+);", (SOURCES / path).read_text("utf-8"))
    return set(re.findall(r'"(\w+)"', found))


def test_the_page_knows_every_status_of_a_session():
    lists = ("PENDING =", r"BAD_STATUSES: readonly string\[\] =", r"ENDED_STATUSES: readonly string\[\] =")
    assert set.union(*(words("sessionStatus.ts", one) for one in lists)) == set(STATUSES)


def test_the_page_knows_the_names_that_mean_waiting():
    assert json.dumps(WAITING_PATTERN) in (SOURCES / "waiting.ts").read_text("utf-8")


def test_the_page_offers_the_labels_of_processes():
    assert words("views/metrics.tsx", "PROCESS_LABELS =") == set(PROCESS_LABELS)
