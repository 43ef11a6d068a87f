"""An imported run has the same findings as the original, with the same ids."""

from __future__ import annotations

import pytest

from benchmarks.diagnosis_runs import SHAPES
from benchmarks.diagnosis_script import Script
from benchmarks.diagnosis_variations import VARIATIONS
from rl_insight.diagnosis.run import replay
from rl_insight.exchange.exporting.exporter import export_run
from rl_insight.exchange.importing.destinations import StoreDestination
from rl_insight.exchange.importing.importer import Importer
from rl_insight.store.run_store import RunStore
from rl_insight.store.runs import RunDirectory


def _visible(findings):
    return {(one.finding_id, one.rule, one.severity, one.status, one.first_step, one.last_step) for one in findings}


@pytest.mark.parametrize("file_format", ["jsonl", "rli"])
@pytest.mark.parametrize(
    ("shape", "fault"),
    [
        ("driven", "hung_replica"),
        ("sft", "straggler"),
        ("verl", "kl_blowup"),
        pytest.param("driven", "lost_replica", marks=pytest.mark.slow),
        pytest.param("quick", "stall", marks=pytest.mark.slow),
        pytest.param("engines", "engine_down", marks=pytest.mark.slow),
    ],
)
def test_import_is_diagnosed_like_the_run_itself(tmp_path, shape, fault, file_format):
    with RunStore(tmp_path / "run.duckdb", min_free_bytes=0, create=True) as store:
        (SHAPES | VARIATIONS)[shape](Script(5), store, fault)
        with store.reader() as cursor:
            original = replay(cursor).findings
        export_run(store, file_format, tmp_path / f"run.{file_format}")
    runs = RunDirectory(tmp_path / "data")
    try:
        Importer(StoreDestination(runs), data_dir=tmp_path / "data").add(tmp_path / f"run.{file_format}")
        (info,) = runs.list_runs()
        with runs.open(info.run_id) as store, store.reader() as cursor:
            imported = replay(cursor).findings
    finally:
        runs.close()
    assert original
    assert _visible(imported) == _visible(original)
