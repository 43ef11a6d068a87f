"""A real Lightning run: with the logger, with the callback, and through Lightning's entry point without any code."""

import pytest

lightning = pytest.importorskip("lightning", reason="Lightning is not installed: `make integrations` runs this")

import torch  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

from rl_insight.integrations.lightning import InsightLightningCallback, InsightLightningLogger  # noqa: E402
from rl_insight.integrations.lightning_plugin import callbacks  # noqa: E402


class Line(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def training_step(self, batch, _index):
        loss = torch.nn.functional.mse_loss(self.layer(batch[0]), batch[1])
        self.log("train/loss", loss)
        return loss

    def validation_step(self, batch, _index):
        self.log("val/loss", torch.nn.functional.mse_loss(self.layer(batch[0]), batch[1]))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


def fit(tmp_path, **options):
    x = torch.arange(8, dtype=torch.float32).unsqueeze(1)
    data = DataLoader(TensorDataset(x, 2 * x), batch_size=2)
    trainer = lightning.Trainer(
        max_epochs=1,
        accelerator="cpu",
        log_every_n_steps=1,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=tmp_path,
        **options,
    )
    trainer.fit(Line(), data, data)
    return trainer


def test_logger_records_metrics_with_steps(insight_capture, tmp_path):
    fit(tmp_path, logger=InsightLightningLogger(), enable_checkpointing=False)
    assert {sample.step for sample in insight_capture.metrics if sample.metric == "train_loss"} == {0, 1, 2, 3}


def test_callback_records_states_metrics_and_checkpoints(insight_capture, tmp_path):
    fit(tmp_path, logger=False, callbacks=[InsightLightningCallback()])
    spans = insight_capture.spans
    assert [span.step for span in spans if span.name == "train_step"] == [0, 1, 2, 3]
    for state in ("forward", "backward", "optimizer_step"):
        assert {span.step for span in spans if span.name == state} == {0, 1, 2, 3}, state
    assert [span.name for span in spans if span.name == "validation"]
    assert {sample.step for sample in insight_capture.metrics if sample.metric == "train_loss"} == {0, 1, 2, 3}
    assert {sample.step for sample in insight_capture.metrics if sample.metric == "val_loss"} == {3}
    assert [event.name for event in insight_capture.events].count("checkpoint_saved") == 1


def test_entry_point_adds_the_callback_only_where_a_server_is_known(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))  # no server of this machine
    for name in ("RL_INSIGHT_SERVER_URL", "RL_INSIGHT_CONFIG", "RL_INSIGHT_INHERIT"):
        monkeypatch.delenv(name, raising=False)
    assert callbacks() == []
    trainer = fit(tmp_path, logger=False, enable_checkpointing=False)
    assert not [one for one in trainer.callbacks if isinstance(one, InsightLightningCallback)]
    monkeypatch.setenv("RL_INSIGHT_SERVER_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("RL_INSIGHT_ENABLED", "false")
    assert callbacks() == []
    monkeypatch.delenv("RL_INSIGHT_ENABLED")
    assert len(callbacks()) == 1


def test_lightning_finds_the_callback_automatically(insight_capture, tmp_path):
    trainer = fit(tmp_path, logger=False, enable_checkpointing=False)
    assert len([one for one in trainer.callbacks if isinstance(one, InsightLightningCallback)]) == 1
    assert [span.step for span in insight_capture.spans if span.name == "train_step"] == [0, 1, 2, 3]


def test_an_exception_passes_and_ends_the_step_with_its_type(insight_capture, tmp_path):
    class Broken(Line):
        def training_step(self, batch, index):
            raise RuntimeError("out of memory")

    x = torch.zeros(4, 1)
    trainer = lightning.Trainer(
        max_epochs=1,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_checkpointing=False,
        callbacks=[InsightLightningCallback()],
        default_root_dir=tmp_path,
        enable_model_summary=False,
    )
    with pytest.raises(RuntimeError, match="out of memory"):
        trainer.fit(Broken(), DataLoader(TensorDataset(x, x)))
    [step] = [span for span in insight_capture.spans if span.name == "train_step"]
    assert (step.status, step.error) == ("error", "RuntimeError")
