"""Real trainers whose integration fails at every call: they train to the end, and the failure is reported once."""

import logging
import sys

import pytest

pytest.importorskip("trl", reason="TRL is not installed: `make integrations` runs this")
pytest.importorskip("lightning", reason="Lightning is not installed: `make integrations` runs this")

from rl_insight.integrations import hooks
from rl_insight.integrations.lightning import InsightLightningCallback, InsightLightningLogger
from rl_insight.monitor import default_monitor
from tests.frameworks.test_lightning import fit
from tests.frameworks.test_transformers import make_trainer as make_transformers_trainer
from tests.frameworks.test_trl import make_trainer as make_trl_trainer
from tests.integrations.test_robustness import RECORDING


@pytest.fixture
def warnings(caplog):
    hooks._reported.clear()
    caplog.set_level(logging.WARNING)
    return lambda: [record.message for record in caplog.records if record.name == "rl_insight"]


@pytest.fixture
def broken(monkeypatch, warnings):
    def fail(*_args, **_kwargs):
        raise RuntimeError("a defect")

    for name in RECORDING:
        monkeypatch.setattr(default_monitor, name, fail)
    return warnings


def train_lightning(tmp_path):
    fit(tmp_path, logger=InsightLightningLogger(), callbacks=[InsightLightningCallback()])
    return 4


def train_transformers(tmp_path):
    trainer = make_transformers_trainer(tmp_path, report_to="rl_insight")
    trainer.train()
    return trainer.state.global_step


def train_trl(tmp_path):
    trainer = make_trl_trainer(tmp_path)
    trainer.train()
    return trainer.state.global_step + 1


@pytest.mark.parametrize("train", [train_lightning, train_transformers, train_trl])
def test_a_training_survives_an_integration_that_fails(train, insight_capture, broken, tmp_path):
    assert train(tmp_path) == 4
    assert broken()
    assert len(broken()) == len(set(broken()))


def test_a_trainer_of_an_unknown_lightning_starts_with_a_single_warning(
    insight_capture, warnings, monkeypatch, tmp_path
):
    monkeypatch.delitem(sys.modules, "rl_insight.integrations.lightning")
    monkeypatch.delattr("lightning.pytorch.callbacks.Callback")
    for _ in range(2):
        assert fit(tmp_path, logger=False, enable_checkpointing=False).global_step == 4
    [warning] = warnings()
    assert "the integration with lightning failed" in warning
