"""Overwritten pages of a run file: each view returns a correct result or a clear error."""

from __future__ import annotations

import random

import pytest

from rl_insight.store import RunDirectory, StoreError, queries
from rl_insight.store.errors import StorePageError

PAGE = 4096
VIEWS = {
    "summary": queries.summary,
    "steps": queries.steps,
    "hotspots": lambda cursor: queries.hotspots(cursor, queries.Scope()),
    "spans": queries.search_spans,
    "flame": lambda cursor: queries.flame(cursor, queries.Scope()),
}


def ask(data_dir):
    """Return the result of each view, or its error."""
    directory = RunDirectory(data_dir)
    answers = {}
    try:
        for name, view in VIEWS.items():
            try:
                with directory.open("r") as store, store.reader() as cursor:
                    answers[name] = view(cursor)
            except StoreError as error:
                answers[name] = error
    finally:
        directory.close()
    return answers


@pytest.fixture
def recorded(tmp_path, make):
    chance = random.Random(1)
    directory = RunDirectory(tmp_path)
    maker = make(run_id="r", role="trainer")
    with directory.open("r", create=True) as store:
        for step in range(1, 11):
            for number in range(2000):
                maker.span(
                    f"work-{number % 7}",
                    start=step * 10**9 + number * 1000,
                    duration=chance.randrange(10**6),
                    step=step,
                    attributes=f'{{"text": "{chance.randbytes(40).hex()}"}}',
                )
            store.commit([maker.build()], received_ns=[1])  # long ago: no view depends on whether the run is live
    directory.close()
    return tmp_path


@pytest.mark.parametrize("holes", [10, pytest.param(40, marks=pytest.mark.slow)])
def test_zeroed_pages_give_a_clear_error_and_never_another_number(recorded, holes):
    path = recorded / "runs" / "r.duckdb"
    whole = path.read_bytes()
    right = ask(recorded)
    failed = []
    for offset in range(4 * PAGE, len(whole) - PAGE, max(PAGE, len(whole) // holes // PAGE * PAGE)):
        path.write_bytes(whole[:offset] + bytes(PAGE) + whole[offset + PAGE :])
        for name, answer in ask(recorded).items():
            if isinstance(answer, StorePageError):
                failed.append(name)
                assert "some pages are damaged" in str(answer)
                assert path.exists(), "one damaged page takes the whole run away"
            elif not isinstance(answer, StoreError):
                assert answer == right[name], f"{name} with a hole at {offset}"
    assert len(failed) >= holes // 8
    assert "spans" in failed
