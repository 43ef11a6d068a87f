"""The trackers with their real libraries, offline; skipped if a library is not installed."""

from __future__ import annotations

import json
import struct
import time

import pytest

from rl_insight.integrations.trackers import (
    MlflowTracker,
    SwanLabTracker,
    TensorBoardTracker,
    TrackerFeed,
    TrackioTracker,
    WandbTracker,
)

pytestmark = pytest.mark.filterwarnings("default")  # the libraries' own warnings are not ours to fix

STEPS = [(5, 31.0), (3, 32.0), (5, 33.0), (9, 34.0)]
KEY = "ray/gpu.util.avg"


def write_steps(tracker):
    for step, value in STEPS:
        tracker.log({KEY: value}, step)
    tracker.log({"without_step": 1.0}, None)
    tracker.close()
    tracker.close()


def test_tensorboard_keeps_steps_in_any_order(tmp_path, read_event_file):
    pytest.importorskip("tensorboardX", reason="tensorboardX is not installed")
    write_steps(TensorBoardTracker(str(tmp_path)))
    events = [(step, value) for tag, step, value in read_event_file(tmp_path) if tag == KEY]
    assert events == STEPS


def test_tensorboard_writer_of_the_user_stays_open(tmp_path, read_event_file):
    tensorboard = pytest.importorskip("tensorboardX", reason="tensorboardX is not installed")
    writer = tensorboard.SummaryWriter(str(tmp_path))
    write_steps(TensorBoardTracker(writer=writer))
    writer.add_scalar("own", 1.0, 10)
    writer.close()
    assert ("own", 10, 1.0) in read_event_file(tmp_path)


def wandb_records(data):
    """Yield the records of an offline run's file: 7 bytes in front, then LevelDB's log format in blocks of 32 KiB."""
    place, parts = 7, []
    while place + 7 <= len(data):
        left = 32_768 - place % 32_768
        if left < 7:
            place += left
            continue
        _checksum, length, kind = struct.unpack_from("<IHB", data, place)
        parts.append(data[place + 7 : place + 7 + length])
        place += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield b"".join(parts)
            parts = []


def read_wandb(folder):
    """Return the history rows of the offline runs in a folder: one dictionary per row."""
    from wandb.proto import wandb_internal_pb2

    (path,) = folder.glob("wandb/offline-run-*/*.wandb")
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:  # the file is written by another process
        found = [wandb_internal_pb2.Record.FromString(data) for data in wandb_records(path.read_bytes())]
        if any(record.WhichOneof("record_type") == "exit" for record in found):
            histories = [record.history.item for record in found if record.WhichOneof("record_type") == "history"]
            return [{"/".join(item.nested_key): json.loads(item.value_json) for item in row} for row in histories]
        time.sleep(0.05)
    raise AssertionError("the run's file has no end")


@pytest.fixture
def wandb(monkeypatch, tmp_path):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    return pytest.importorskip("wandb", reason="wandb is not installed")


def test_wandb_run_of_ours_keeps_every_value_with_its_step(wandb, tmp_path):
    write_steps(WandbTracker(project="p", dir=str(tmp_path)))
    rows = [(row["rl_insight/step"], row[KEY]) for row in read_wandb(tmp_path) if KEY in row]
    assert rows == STEPS


def test_wandb_run_of_the_user_loses_nothing_of_its_own(wandb, tmp_path):
    run = wandb.init(project="p", dir=str(tmp_path))
    tracker = WandbTracker(run)
    run.log({"loss": 1.0}, step=7)
    tracker.log({KEY: 31.0}, 5)
    tracker.log({KEY: 32.0}, 7)
    run.log({"loss": 2.0}, step=8)
    tracker.log({KEY: 33.0}, 9)
    run.log({"loss": 3.0}, step=9)
    run.log({"loss": 4.0}, step=10)
    tracker.close()
    run.finish()
    rows = read_wandb(tmp_path)
    assert [row["loss"] for row in rows if "loss" in row] == [1.0, 2.0, 3.0, 4.0]
    assert [(row["_step"], row[KEY]) for row in rows if KEY in row] == [(7, 32.0), (9, 33.0)]


@pytest.fixture
def mlflow(monkeypatch, tmp_path):
    module = pytest.importorskip("mlflow", reason="mlflow is not installed")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # mlflow-skinny has no other store
    module.set_tracking_uri(f"file://{tmp_path}/mlruns")
    return module


def test_mlflow_keeps_steps_in_any_order(mlflow):
    with mlflow.start_run() as run:
        tracker = MlflowTracker()
        feed = TrackerFeed([tracker])  # another thread than the one whose run is active
        for step, value in STEPS:
            feed.log({KEY: value, "gpu#1": 1.0}, step)
        assert feed.flush(60)
        assert feed.get_status()["mlflow"]["failed"] == 0
        feed.close()
        assert mlflow.active_run() is not None
    history = mlflow.MlflowClient().get_metric_history(run.info.run_id, KEY)
    assert sorted((metric.step, metric.value) for metric in history) == sorted(STEPS)
    assert mlflow.MlflowClient().get_metric_history(run.info.run_id, "gpu_1")


def test_mlflow_run_of_ours_is_ended(mlflow, tmp_path):
    tracker = MlflowTracker(tracking_uri=f"file://{tmp_path}/mlruns", experiment_name="grpo")
    write_steps(tracker)
    assert mlflow.MlflowClient().get_run(tracker._run_id).info.status == "FINISHED"


def test_trackio_keeps_steps_in_any_order(monkeypatch, tmp_path):
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path))
    trackio = pytest.importorskip("trackio", reason="trackio is not installed")
    monkeypatch.setattr(trackio.utils, "TRACKIO_DIR", tmp_path)
    storage = pytest.importorskip("trackio.sqlite_storage")
    monkeypatch.setattr(storage, "TRACKIO_DIR", tmp_path, raising=False)
    tracker = TrackioTracker(project="p", name="run-1", embed=False, auto_log_gpu=False)
    write_steps(tracker)
    rows = storage.SQLiteStorage.get_logs("p", "run-1")
    assert sorted((row["step"], row[KEY]) for row in rows if KEY in row) == sorted(STEPS)


def test_swanlab_takes_steps_in_any_order(monkeypatch, tmp_path):
    swanlab = pytest.importorskip("swanlab", reason="swanlab is not installed")
    monkeypatch.setenv("SWANLAB_LOG_DIR", str(tmp_path))
    assert swanlab is not None
    write_steps(SwanLabTracker(project="p", mode="offline"))
    (path,) = tmp_path.glob("run-*/*.swanlab")
    assert KEY.encode() in path.read_bytes()
