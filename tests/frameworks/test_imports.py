"""Files that real frameworks wrote, imported: torch's profiler, torch's TensorBoard writer, verl's console."""

import pytest

pytest.importorskip("torch", reason="torch is not installed: `make integrations` runs this")
pytest.importorskip("duckdb", reason="the server is not installed: `make integrations` installs it")

import torch
from torch.profiler import ProfilerActivity, profile, schedule

from rl_insight.exchange.importing.destinations import StoreDestination
from rl_insight.exchange.importing.importer import Importer
from rl_insight.store import RunDirectory


@pytest.fixture
def imported(tmp_path):
    """Import a file and return the summary and a function that queries the run."""
    directory = RunDirectory(tmp_path / "data", min_free_bytes=0)

    def run(path):
        importer = Importer(StoreDestination(directory), data_dir=tmp_path / "data", run_id="r")
        importer.add(path)

        def fetch(sql):
            with directory.open("r") as store, store.reader() as cursor:
                return cursor.execute(sql).fetchall()

        return importer.summary(), fetch

    yield run
    directory.close()


@pytest.mark.parametrize("suffix", ["json", "json.gz"])
def test_a_trace_of_torch_s_profiler(tmp_path, imported, suffix):
    file = tmp_path / f"trace.{suffix}"
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=0, warmup=1, active=3),
        on_trace_ready=lambda found: found.export_chrome_trace(str(file)),
    ) as profiler:
        for _ in range(4):
            torch.ones(8, 8) @ torch.ones(8, 8)
            profiler.step()
    summary, fetch = imported(file)
    assert (summary.bad, summary.partial, summary.formats) == (0, 0, {"chrome": 1})
    assert fetch("SELECT step FROM spans WHERE name LIKE 'ProfilerStep#%' ORDER BY step") == [(1,), (2,), (3,)]
    assert fetch("SELECT count(*) FROM spans WHERE name = 'aten::mm'") == [(3,)]
    again, _ = imported(file)
    assert again.new_batches == 0
    (first,) = fetch("SELECT min(start_ns) > 1700000000000000000 FROM spans")
    assert first == (True,)


@pytest.mark.parametrize("new_style", [False, True])
def test_event_files_of_torch(tmp_path, imported, new_style):
    pytest.importorskip("tensorboard", reason="tensorboard is not installed: `make integrations` runs this")
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(tmp_path / "logs")) as writer:
        for step in range(5):
            writer.add_scalar("loss/train", step / 4, step, new_style=new_style)
        writer.add_text("note", "left out")
    summary, fetch = imported(tmp_path / "logs")
    assert (summary.records, summary.bad) == (5, 0)
    assert fetch("SELECT name, step, value FROM samples ORDER BY step") == [
        ("loss_train", step, step / 4) for step in range(5)
    ]


def test_the_console_of_verl(tmp_path, imported, capsys):
    pytest.importorskip("verl", reason="verl is not installed: `make integrations` runs this")
    import numpy as np
    from verl.utils.logger import LocalLogger

    console = LocalLogger()
    for step in range(3):
        console.log({"actor/pg_loss": np.float64(0.5), "timing_s/step": 1.5, "note": "text"}, step)
    file = tmp_path / "verl.log"
    file.write_text(capsys.readouterr().out)
    summary, fetch = imported(file)
    assert (summary.records, summary.bad) == (3, 0)
    assert fetch("SELECT DISTINCT name, value FROM samples ORDER BY name") == [
        ("actor_pg_loss", 0.5),
        ("timing_s_step", 1.5),
    ]
