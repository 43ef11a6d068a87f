"""A real TRL GRPO run, on a random model of a few kilobytes, with one argument for RL-Insight."""

import pytest

pytest.importorskip("trl", reason="TRL is not installed: `make integrations` runs this")

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

import rl_insight.integrations.transformers  # noqa: F401  # registers `report_to`
from rl_insight.testing import capture
from tests.frameworks import tiny

STEPS = 3
GENERATIONS = 4
PROMPTS = 2


def short_is_better(completions, **_columns):
    return [1.0 / (1 + len(completion)) for completion in completions]


def make_trainer(tmp_path):
    arguments = GRPOConfig(
        output_dir=str(tmp_path / "grpo-tiny"),
        report_to="rl_insight",
        max_steps=STEPS,
        per_device_train_batch_size=GENERATIONS * PROMPTS,
        num_generations=GENERATIONS,
        max_completion_length=6,
        logging_steps=1,
        save_strategy="no",
        use_cpu=True,
        bf16=False,
        disable_tqdm=True,
    )
    return GRPOTrainer(
        model=tiny.model(),
        processing_class=tiny.tokenizer(),
        reward_funcs=short_is_better,
        args=arguments,
        train_dataset=Dataset.from_dict({"prompt": [f"what is {n} + {n} =" for n in range(8)]}),
    )


@pytest.fixture
def trained(insight_capture, tmp_path):
    make_trainer(tmp_path).train()
    return insight_capture


def test_metrics_and_states_share_their_steps(trained):
    assert {sample.step for sample in trained.metrics if sample.metric == "reward"} == {1, 2, 3}
    for state in ("generate", "reward", "backward", "optimizer_step", "compute_loss"):
        assert {span.step for span in trained.spans if span.name == state} == {1, 2, 3}, state


def test_every_completion_is_a_session_with_its_reward(trained):
    assert len(trained.sessions) >= STEPS * GENERATIONS * PROMPTS
    finished = [session for session in trained.sessions if session["status"] == "accepted"]
    assert len(finished) == STEPS * GENERATIONS * PROMPTS
    for step in range(1, STEPS + 1):
        of_step = [session for session in finished if session["step"] == step]
        assert len(of_step) == GENERATIONS * PROMPTS
        groups = [session["task_id"] for session in of_step]
        assert sorted(groups.count(group) for group in set(groups)) == [GENERATIONS] * PROMPTS
        logged = next(s.value for s in trained.metrics if s.metric == "reward" and s.step == step)
        assert sum(session["reward"] for session in of_step) / len(of_step) == pytest.approx(logged, rel=1e-4)
        assert all(1 <= session["tokens"] <= 6 for session in of_step)


def test_arguments_are_the_configuration_of_the_run(trained):
    recorded = [event.attributes for event in trained.events if event.name == "rl_insight.config"]
    config = {key: value for attributes in recorded for key, value in attributes.items()}
    assert (config["num_generations"], config["max_steps"]) == (GENERATIONS, STEPS)


def test_prompts_and_completions_are_recorded_where_text_is_captured(tmp_path):
    with capture({"recorder": {"capture_text": True}}) as captured:
        make_trainer(tmp_path).train()
        captured.flush()
        samples = [span.attributes for span in captured.spans if span.segment == "session"]
    assert len(samples) == STEPS * GENERATIONS * PROMPTS
    assert all(sample["prompt"].startswith("what is") for sample in samples)
    assert all(isinstance(sample["response"], str) for sample in samples)


def test_samples_have_their_phases(trained):
    phases = [span for span in trained.spans if span.segment == "phase"]
    for name in ("generate", "reward"):
        assert len({span.session_id for span in phases if span.name == name}) == STEPS * GENERATIONS * PROMPTS


def test_reward_functions_are_spans_inside_the_reward(trained):
    [reward, *_] = [span for span in trained.spans if span.name == "reward" and span.segment == "state_interval"]
    functions = [span for span in trained.spans if span.name == "short_is_better"]
    assert len(functions) == STEPS
    assert reward.span_id in {span.parent_id for span in functions}
