"""A real `transformers.Trainer`, with one argument for RL-Insight."""

import pytest

pytest.importorskip("transformers", reason="transformers is not installed: `make integrations` runs this")

from datasets import Dataset
from transformers import DataCollatorForLanguageModeling, Trainer, TrainingArguments
from transformers import trainer as trainer_module
from transformers.integrations import integration_utils

from rl_insight.integrations.mirrors import mirror_trackers
from rl_insight.integrations.transformers import InsightCallback, record_every_trainer, register
from tests.frameworks import tiny


def make_trainer(tmp_path, **options):
    words = tiny.tokenizer()
    data = Dataset.from_dict(dict(words([f"what is {n} + {n} =" for n in range(9)] * 2)))
    data = data.remove_columns([name for name in data.column_names if name not in ("input_ids", "attention_mask")])
    arguments = {
        "output_dir": str(tmp_path / "tiny"),
        "max_steps": 4,
        "per_device_train_batch_size": 2,
        "logging_steps": 1,
        "save_steps": 2,
        "eval_strategy": "steps",
        "eval_steps": 2,
        "use_cpu": True,
        "disable_tqdm": True,
    } | options
    return Trainer(
        model=tiny.model(),
        args=TrainingArguments(**arguments),
        train_dataset=data,
        eval_dataset=data,
        data_collator=DataCollatorForLanguageModeling(words, mlm=False),
    )


def test_report_to_records_metrics_states_and_checkpoints(insight_capture, tmp_path):
    make_trainer(tmp_path, report_to="rl_insight").train()
    losses = {sample.step: sample.value for sample in insight_capture.metrics if sample.metric == "loss"}
    assert set(losses) == {1, 2, 3, 4}
    spans = insight_capture.spans
    assert [span.step for span in spans if span.name == "train_step"] == [1, 2, 3, 4]
    for state in ("backward", "optimizer_step"):
        assert {span.step for span in spans if span.name == state} == {1, 2, 3, 4}
    assert len([span for span in spans if span.name == "evaluate"]) == 2
    assert len([span for span in spans if span.name == "save_checkpoint"]) == 2
    assert [event.attributes["step"] for event in insight_capture.events if event.name == "checkpoint_saved"] == [2, 4]
    assert {sample.step for sample in insight_capture.metrics if sample.metric == "eval_loss"} == {2, 4}


def test_callback_does_the_same_as_report_to(insight_capture, tmp_path):
    trainer = make_trainer(tmp_path, report_to="none")
    trainer.add_callback(InsightCallback())
    trainer.train()
    assert {sample.step for sample in insight_capture.metrics if sample.metric == "loss"} == {1, 2, 3, 4}


def test_every_trainer_records_under_the_run_command(insight_capture, tmp_path, monkeypatch):
    monkeypatch.setattr(trainer_module.Trainer, "train", trainer_module.Trainer.train)
    record_every_trainer(trainer_module)
    mirror_trackers()
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "logs"))
    make_trainer(tmp_path, report_to="tensorboard").train()
    assert [span.step for span in insight_capture.spans if span.name == "train_step"] == [1, 2, 3, 4]
    losses = [sample.step for sample in insight_capture.metrics if sample.metric == "loss"]
    assert losses == [1, 2, 3, 4]
    assert not [sample for sample in insight_capture.metrics if sample.metric == "train_loss" and sample.step < 4]
    make_trainer(tmp_path, report_to="rl_insight").train()
    assert len([sample for sample in insight_capture.metrics if sample.metric == "loss"]) == 8


def test_an_exception_of_the_training_passes_and_closes_nothing_wrongly(insight_capture, tmp_path):
    trainer = make_trainer(tmp_path, report_to="rl_insight")

    def broken(*_args, **_kwargs):
        raise RuntimeError("out of memory")

    trainer.compute_loss = broken
    with pytest.raises(RuntimeError, match="out of memory"):
        trainer.train()


def test_another_reporting_name_is_still_refused(tmp_path):
    with pytest.raises(ValueError, match="nothing_known is not supported"):
        make_trainer(tmp_path, report_to="nothing_known")
    assert integration_utils.INTEGRATION_TO_CALLBACK["rl_insight"] is InsightCallback


def test_registering_keeps_what_a_user_registered():
    class Module:
        INTEGRATION_TO_CALLBACK = {"rl_insight": dict}

    register(Module)
    assert Module.INTEGRATION_TO_CALLBACK["rl_insight"] is dict
