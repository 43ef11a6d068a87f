"""Long strings, as recorded by `capture_text` (a few to 64 kilobytes per span), must not delay commits."""

from __future__ import annotations

import random
import time

import duckdb
import pytest

from rl_insight.store import RunStore
from rl_insight.store.tables import UPGRADES

WORDS = 400_000


@pytest.fixture(scope="module")
def prose() -> str:
    source = random.Random(1)
    words = ["".join(source.choices("abcdefghijklmnopqrstuvwxyz", k=source.randint(3, 9))) for _ in range(20_000)]
    return " ".join(source.choices(words, k=WORDS))


def _write(store, maker, prose, *, spans, characters) -> None:
    """Commit spans with a long string each."""
    source = random.Random(spans)
    for number in range(spans):
        at = source.randrange(len(prose) - characters)
        maker.span(start=number, attributes=f'{{"text":"{prose[at : at + characters]}"}}')
    store.commit([maker.build()])


def _checkpoint(store) -> float:
    """Write a checkpoint; returns its CPU seconds."""
    began = time.process_time()
    store._connection.execute("CHECKPOINT")
    return time.process_time() - began


def test_texts_of_8_kilobytes_cost_no_more_than_the_same_amount_in_longer_ones(tmp_path, make, prose):
    seconds = {}
    for characters in (64_000, 8_000):
        with RunStore(tmp_path / f"{characters}.duckdb", checkpoint_bytes=2**40, create=True) as store:
            _write(store, make(), prose, spans=16_000_000 // characters, characters=characters)
            seconds[characters] = _checkpoint(store)
    assert seconds[8_000] < 3 * seconds[64_000]


@pytest.mark.slow
def test_checkpoints_do_not_take_longer_as_the_texts_of_a_run_grow(tmp_path, make, prose):
    maker = make()
    took = []
    with RunStore(tmp_path / "run.duckdb", checkpoint_bytes=2**40, create=True) as store:
        for _ in range(40):
            _write(store, maker, prose, spans=50, characters=64_000)
            took.append(_checkpoint(store))
    assert sum(took[20:]) < sum(took[:20])


def test_short_rows_are_still_merged(tmp_path, make):
    maker = make()
    path = tmp_path / "run.duckdb"
    with RunStore(path, create=True) as store:
        for number in range(30):
            maker.span(start=number)
            store.commit([maker.build()])
            store._connection.execute("CHECKPOINT")
        groups = store._connection.execute(
            "SELECT count(DISTINCT row_group_id) FROM pragma_storage_info('span_data')"
        ).fetchall()
    assert groups[0][0] < 5


@pytest.mark.parametrize("memory_limit", ["256MB", pytest.param("512MB", marks=pytest.mark.slow)])
def test_no_text_that_may_be_sent_is_refused_for_lack_of_memory(tmp_path, make, prose, memory_limit):
    maker = make()
    with RunStore(tmp_path / "run.duckdb", memory_limit=memory_limit, create=True) as store:
        for _ in range(8):
            _write(store, maker, prose, spans=40, characters=1_000_000)
        ((spans, characters),) = store._connection.execute(
            "SELECT count(*), sum(strlen(attributes)) FROM spans"
        ).fetchall()
    assert (spans, characters) == (320, 320 * 1_000_011)


@pytest.mark.parametrize("version", range(len(UPGRADES) + 1))
def test_files_of_earlier_versions_get_the_compression_too(make, prose, old_file, version):
    path = old_file(version)
    with RunStore(path, create=True) as store:
        _write(store, make(), prose, spans=200, characters=8_000)
    with duckdb.connect(str(path)) as connection:
        found = connection.execute(
            "SELECT DISTINCT compression FROM pragma_storage_info('span_data') "
            "WHERE column_name = 'attributes' AND segment_type = 'VARCHAR'"
        ).fetchall()
    assert found == [("ZSTD",)]
