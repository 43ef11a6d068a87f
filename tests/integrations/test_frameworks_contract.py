"""Frameworks that cannot be installed here, against modules with the signatures of their public code.

These are contract tests: they show that the integrations match the signatures, not that the frameworks keep them.
"""

import asyncio
import importlib
import logging
import sys
import types
from contextlib import contextmanager

import pytest

from rl_insight.compat.areal import installing
from rl_insight.integrations import hooks, mirrors, nemo_rl, openrlhf, prime_rl, slime, trl, verl
from rl_insight.schema.captured_text import CAPTURED_TEXT
from rl_insight.schema.names import CONFIG_EVENT
from rl_insight.testing import capture


def values(capture):
    capture.flush()
    return {(sample.metric, sample.step): sample.value for sample in capture.metrics}


def config(capture):
    capture.flush()
    recorded = [event.attributes for event in capture.events if event.name == CONFIG_EVENT]
    return {key: value for attributes in recorded for key, value in attributes.items()}


def texts(capture, session_id=None):
    """Return the recorded text by attribute, of one session or of all."""
    capture.flush()
    spans = [span for span in capture.spans if session_id in {None, span.session_id}]
    return {key: value for span in spans for key, value in span.attributes.items() if key in CAPTURED_TEXT}


def states(capture):
    capture.flush()
    return [span.name for span in capture.spans if span.segment == "state_interval"]


NEMO_LOGGER = """
class Logger:
    def __init__(self, cfg):
        self.loggers = []
    def log_metrics(self, metrics, step, prefix="", step_metric=None, step_finished=False):
        for logger in self.loggers:
            logger.log_metrics(metrics, step, prefix, step_metric, step_finished)
    def log_hyperparams(self, params):
        for logger in self.loggers:
            logger.log_hyperparams(params)
"""
NEMO_TIMER = """
class Timer:
    def __init__(self):
        self.running = set()
    def start(self, label):
        self.running.add(label)
    def stop(self, label):
        self.running.remove(label)
"""


def test_nemo_rl_logs_and_times(insight_capture, module):
    logger = module("nemo_rl.utils.logger", NEMO_LOGGER)
    timer = module("nemo_rl.utils.timer", NEMO_TIMER).Timer
    nemo_rl.instrument()
    nemo_rl.instrument()
    made = logger.Logger({"wandb_enabled": False})
    made.log_hyperparams({"lr": 1e-6})
    clock = timer()
    clock.start("total_step_time")
    clock.start("idle/refit_bubble")
    clock.stop("idle/refit_bubble")
    clock.start("generation")
    clock.stop("generation")
    clock.stop("total_step_time")
    made.log_metrics({"loss": 0.5, "note": "text"}, 3, prefix="train")
    assert len(made.loggers) == 1
    assert config(insight_capture) == {"lr": 1e-6}
    assert values(insight_capture) == {("train_loss", 3): 0.5}
    assert sorted(states(insight_capture)) == ["generation", "idle/refit_bubble"]
    assert insight_capture.span("total_step_time").duration_ns is not None


def test_a_timer_that_is_stopped_without_start_keeps_its_own_error(insight_capture, module):
    timer = module("nemo_rl.utils.timer", NEMO_TIMER).Timer
    nemo_rl.instrument()
    with pytest.raises(KeyError):
        timer().stop("never")


def test_nemo_rl_s_timers_may_overlap(insight_capture, module):
    import rl_insight as insight

    timer = module("nemo_rl.utils.timer", NEMO_TIMER).Timer
    nemo_rl.instrument()
    clock = timer()
    with insight.trace_span("outside"):
        clock.start("generation")
        clock.start("idle/buffer_starvation")
        clock.stop("generation")
        with insight.trace_span("inside"):
            pass
        clock.stop("idle/buffer_starvation")
        with insight.trace_span("after"):
            pass
    with insight.trace_span("last"):
        pass
    spans = {span.name: span for span in insight_capture.spans}
    assert spans["inside"].parent_id == spans["idle/buffer_starvation"].span_id
    assert spans["after"].parent_id == spans["outside"].span_id
    assert not spans["last"].parent_id


OPENRLHF = """
class WandbLogger:
    def __init__(self, args): pass
    def log_train(self, global_step, logs_dict): pass
    def log_eval(self, global_step, logs_dict): pass
class TensorboardLogger(WandbLogger):
    def log_train(self, global_step, logs_dict): pass
    def log_eval(self, global_step, logs_dict): pass
"""


def test_openrlhf_logs(insight_capture, module):
    made = module("openrlhf.utils.logging_utils", OPENRLHF)
    openrlhf.instrument()
    made.WandbLogger(types.SimpleNamespace(seed=42, actor=types.SimpleNamespace(lr=1e-6))).log_train(
        4, {"reward": 0.25, "timing/generation": 12.0}
    )
    made.TensorboardLogger(types.SimpleNamespace(seed=42)).log_eval(global_step=4, logs_dict={"score": 0.75})
    assert values(insight_capture) == {
        ("train_reward", 4): 0.25,
        ("train_timing_generation", 4): 12.0,
        ("eval_score", 4): 0.75,
    }
    assert config(insight_capture) == {"seed": 42, "actor.lr": 1e-6}


OPENRLHF_WITH_TENSORBOARD = """
from tensorboardX import SummaryWriter

class WandbLogger:
    def log_train(self, global_step, logs_dict):
        for name, value in logs_dict.items():
            SummaryWriter(write_to_disk=False).add_scalar(name, value, global_step)
    def log_eval(self, global_step, logs_dict): pass
class TensorboardLogger(WandbLogger):
    pass
"""


def test_what_a_framework_gives_its_tracker_is_recorded_once(insight_capture, module):
    tensorboard = pytest.importorskip("tensorboardX", reason="tensorboardX is not installed")
    mirrors.mirror_trackers()
    made = module("openrlhf.utils.logging_utils", OPENRLHF_WITH_TENSORBOARD)
    openrlhf.instrument()
    made.WandbLogger().log_train(4, {"reward": 0.25})
    assert values(insight_capture) == {("train_reward", 4): 0.25}
    tensorboard.SummaryWriter(write_to_disk=False).add_scalar("own", 1.0, 5)
    assert values(insight_capture)["own", 5] == 1.0


class Sample:
    def __init__(self, reward, response_length, status):
        self.reward = reward
        self.response_length = response_length
        self.status = status


def test_slime_s_flags(insight_capture, module):
    timer = module(
        "slime.observability.timer",
        "class Timer:\n    def start(self, name): pass\n    def end(self, name): pass\n",
    ).Timer
    samples = [[Sample(1.0, 10, "completed"), Sample(0, 30, "truncated")], Sample({"score": 1}, 20, "completed")]
    assert slime.log_rollout(5, types.SimpleNamespace(), samples, {"rollout/extra": 2.0}, 12.5) is False
    assert slime.log_eval_rollout(5, types.SimpleNamespace(), {"aime": {"rewards": [1, 0]}}, None) is False
    clock = timer()
    clock.start("train")
    clock.end("train")
    assert values(insight_capture) == {
        ("rollout_time", 5): 12.5,
        ("rollout_extra", 5): 2.0,
        ("rollout_samples", 5): 3,
        ("rollout_samples_completed", 5): 2,
        ("rollout_samples_truncated", 5): 1,
        ("rollout_reward_mean", 5): 0.5,
        ("rollout_response_length_mean", 5): 20,
        ("eval_aime", 5): 0.5,
    }
    assert states(insight_capture) == ["train"]
    sessions = sorted(insight_capture.sessions, key=lambda one: one["tokens"])
    assert [(one["status"], one.get("reason"), one["reward"], one["step"]) for one in sessions] == [
        ("accepted", None, 1.0, 5),
        ("accepted", None, 1.0, 5),
        ("accepted", "truncated", 0.0, 5),
    ]
    assert {one["total_s"] for one in sessions} == {12.5}


def test_spans_of_slime_s_trace_are_phases_of_the_sample(insight_capture):
    def span(name, start, end, number, **attributes):
        events = [{"type": "span_start", "name": name, "ts": start, "span_id": str(number), "attrs": {"first": 1}}]
        if end is not None:
            events.append({"type": "span_end", "name": name, "ts": end, "span_id": str(number), "attrs": attributes})
        return events

    begin = 1_767_225_600.0
    sample = Sample(1.0, 12, "completed")
    sample.trace = {
        "version": 1,
        "trace_id": "a",
        "events": [
            *span("generate_and_rm", begin, begin + 4.0, 1),
            *span("sglang_generate", begin + 0.5, begin + 3.0, 2, queue_time=0.25, cached_tokens=7),
            {"type": "event", "name": "attempt_start", "ts": begin + 1.0},
            *span("reward_model", begin + 3.0, begin + 4.0, 3),
            *span("search", begin + 3.5, None, 4),
        ],
    }
    assert slime.log_rollout(5, types.SimpleNamespace(), [sample], None, 60.0) is False
    [session] = insight_capture.sessions
    assert (session["total_s"], session["generate_s"], session["reward_calc_s"]) == (4.0, 2.5, 1.0)
    assert session["submit_ts"] == begin
    [generate] = session["phases"]["generate"]
    assert generate["payload"] == {"first": 1, "queue_time": 0.25, "cached_tokens": 7}
    assert set(session["phases"]) == {"generate", "reward"}


CAPTURING = {"recorder": {"capture_text": True}}


@pytest.mark.parametrize(("settings", "expected"), [
    (CAPTURING, {"prompt": "2 + 2?", "response": "4"}),
    ({}, {}),
])  # fmt: skip
def test_slime_s_texts_are_recorded_where_text_is_captured(settings, expected):
    sample = Sample(1.0, 10, "completed")
    sample.prompt, sample.response = "2 + 2?", "4"
    with capture(settings) as captured:
        for rollout in range(2):
            slime.log_rollout(rollout, arguments := types.SimpleNamespace(lr=1e-6), [sample], {}, 1.0)
        assert texts(captured) == expected
        assert config(captured) == {"lr": 1e-6}
    assert arguments.lr


VERL_TRACE = """
from contextlib import contextmanager

@contextmanager
def rollout_trace_attr(sample_index=None, step=None, rollout_n=None, name="rollout_trace", validate=False, trace=True):
    yield

def rollout_trace_op(func):
    return func
"""


class Words:
    """Decodes like a tokenizer."""

    decoded = 0

    def decode(self, tokens):
        self.decoded += 1
        return " ".join(map(str, tokens))


def agent_loop(trace, tokenizer):
    """Run an agent loop with the signatures of verl 0.9.1: one turn, and a tool call."""

    class ServerManager:
        @trace.rollout_trace_op
        async def generate(self, request_id, *, prompt_ids, sampling_params):
            return types.SimpleNamespace(token_ids=[7, 8])

    class Tool:
        name = "search"

        @trace.rollout_trace_op
        async def execute(self, instance_id, parameters, **kwargs):
            return types.SimpleNamespace(text="three results"), 0.0, {}

    class Loop:
        def __init__(self):
            self.tokenizer = tokenizer

        @trace.rollout_trace_op
        async def run(self, sampling_params, priority=0, **kwargs):
            await ServerManager().generate("1", prompt_ids=[1], sampling_params={})
            await Tool().execute("i", {"query": "rl"})

    async def all_of_them():
        for sample in range(3):
            with trace.rollout_trace_attr(sample_index=sample, step=1, rollout_n=0):
                await Loop().run({}, raw_prompt=[{"role": "user", "content": "What is RL?"}])

    asyncio.run(all_of_them())


def test_verl_s_agent_loops_have_transcripts(module):
    trace = module("verl.utils.rollout_trace", VERL_TRACE)
    verl.instrument()
    tokenizer = Words()
    with capture({"recorder": {"capture_text": True, "transcripts_per_step": 1}}) as captured:
        agent_loop(trace, tokenizer)
        captured.flush()
        first = next(span.session_id for span in captured.spans if span.segment == "session")
        assert texts(captured, first) == {
            "messages": [{"role": "user", "content": "What is RL?"}],
            "response": "7 8",
            "tool_arguments": {"query": "rl"},
            "tool_result": "three results",
        }
    assert tokenizer.decoded == 1


def test_verl_decodes_nothing_where_no_text_is_captured(insight_capture, module):
    trace = module("verl.utils.rollout_trace", VERL_TRACE)
    verl.instrument()
    tokenizer = Words()
    agent_loop(trace, tokenizer)
    assert texts(insight_capture) == {}
    assert tokenizer.decoded == 0


def test_verl_s_configuration_is_recorded(insight_capture, module):
    tracking = module(
        "verl.utils.tracking",
        "class Tracking:\n"
        "    def __init__(self, project_name, experiment_name, default_backend='console', config=None):\n"
        "        self.logger = {}\n"
        "    def log(self, data, step, backend=None): pass\n",
    )
    verl.instrument()
    tracking.Tracking("math", "grpo", config={"actor": {"lr": 1e-6}})
    tracking.Tracking("math", "grpo")
    assert config(insight_capture) == {"actor.lr": 1e-6}


def test_areal_s_configuration_is_recorded_once(insight_capture, module):
    stats = module(
        "areal.utils.stats_logger",
        "class StatsLogger:\n"
        "    def __init__(self, config, ft_spec):\n"
        "        self.exp_config = config\n"
        "    def commit(self, epoch, step, global_step, data): pass\n",
    )
    installing._patch_stats_logger(stats)
    logger = stats.StatsLogger({"actor": {"lr": 1e-6}}, None)
    for step in range(2):
        logger.commit(0, step, step, {"loss": 1.0})
    assert config(insight_capture) == {"actor.lr": 1e-6}
    assert len([event for event in insight_capture.events if event.name == CONFIG_EVENT]) == 1


GRPO = """
class GRPOTrainer:
    model = None
    def evaluate(self): pass
    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
        return self.rewards
    def _generate_and_score_completions(self, inputs):
        prompts = [sample["prompt"] for sample in inputs]
        self._calculate_rewards(inputs, prompts, self.completions, [[1]] * len(inputs))
"""


@pytest.mark.parametrize("completions", [["4", "5"], [[{"role": "assistant", "content": one}] for one in "45"]])
def test_trl_s_completions_are_recorded_where_text_is_captured(module, monkeypatch, completions):
    trainer = module("trl.trainer.grpo_trainer", GRPO).GRPOTrainer()
    trl.instrument()
    trainer.state = types.SimpleNamespace(global_step=0)
    trainer.rewards, trainer.completions = None, completions
    monkeypatch.setattr(trl, "_note_rewards", lambda *_: None)
    with capture(CAPTURING) as captured:
        trainer._generate_and_score_completions([{"prompt": "2 + 2?"}, {"prompt": "2 + 3?"}])
        captured.flush()
        found = [span.attributes for span in captured.spans if span.segment == "session"]
    assert [(one["prompt"], one["response"]) for one in found] == list(
        zip(["2 + 2?", "2 + 3?"], completions, strict=True)
    )


def test_samples_of_another_shape_never_stop_slime(insight_capture, caplog):
    hooks._reported.clear()
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert slime.log_rollout(5, None, [object()], None, 1.0) is False
    assert len([record for record in caplog.records if "slime" in record.message]) == 1


PRIME_RL = """
from tensorboardX import SummaryWriter

MONITORS = []

class WandbMonitor:
    def __init__(self): self.logged = 0
    async def log(self, data, step=None, kind="train", subset="effective"):
        self.logged += 1
        SummaryWriter(write_to_disk=False).add_scalar("mirrored", 1.0, 99)
    async def log_annotations(self, updates): pass
    async def finalize(self): pass

async def setup(**settings):
    assert not MONITORS, "Monitors already set up"
    MONITORS.append(WandbMonitor())

async def log(data, step, kind="train", subset="effective"):
    for monitor in MONITORS:
        await monitor.log(data, step, kind, subset)

async def finalize():
    for monitor in MONITORS:
        await monitor.finalize()
"""
EARLIER_PRIME_RL = """
_monitors = []

def setup(*, output_dir=None):
    assert not _monitors, "Monitors already set up"

def log(metrics, step):
    for monitor in _monitors:
        monitor.log(metrics, step=step)
"""


def episode(number, reward=1.0):
    def part(start, end):
        return types.SimpleNamespace(start=1_767_225_600.0 + start, end=1_767_225_600.0 + end)

    timing = types.SimpleNamespace(setup=part(0, 1), agent=part(1, 4), scoring=part(4, 4.5), finalize=None)
    scores = {"correct": types.SimpleNamespace(score=reward, weight=2.0), "format": {"score": 0.5, "weight": None}}
    trace = types.SimpleNamespace(id=f"t{number}", timing=timing, rewards=scores, stop_condition=None)
    return types.SimpleNamespace(
        id=f"e{number}", traces=[trace], errors=[], ok=True, num_output_tokens=64, group={"id": "g1"}
    )


def test_prime_rl_s_monitor(insight_capture, module):
    pytest.importorskip("tensorboardX", reason="tensorboardX is not installed")
    mirrors.mirror_trackers()
    monitors = module("prime_rl.monitors", PRIME_RL)
    prime_rl.register()
    prime_rl.register()

    async def train():
        await monitors.setup(output_dir="x")
        await monitors.log({"time/step": 4.0}, 2)
        await monitors.log({"inference/running": 3.0}, None)
        await monitors.log([episode(0), episode(1, reward=0.0)], 2, "train", "all")
        await monitors.log([episode(0)], 2, "train", "effective")
        await monitors.MONITORS[0].log_annotations([{"id": 1}])
        await monitors.finalize()

    asyncio.run(train())
    [tracker, ours] = monitors.MONITORS
    assert isinstance(ours, prime_rl.InsightMonitor)
    assert tracker.logged == 4
    found = values(insight_capture)
    assert ("mirrored", 99) not in found
    assert (found["time_step", 2], found["inference_running", 3]) == (4.0, 3.0)
    sessions = {session["session_id"]: session for session in insight_capture.sessions}
    assert {name: session["reward"] for name, session in sessions.items()} == {"t0": 2.5, "t1": 0.5}
    one = sessions["t0"]
    assert (one["step"], one["group_id"], one["tokens"], one["status"]) == (2, "g1", 64, "accepted")
    assert (one["total_s"], one["generate_s"], one["reward_calc_s"]) == (4.5, 3.0, 0.5)


def test_the_monitor_of_an_earlier_prime_rl(insight_capture, module, monkeypatch):
    monitors = module("prime_rl.monitors", EARLIER_PRIME_RL)
    prime_rl.register()
    monitors.setup(output_dir="x")
    monitors.log({"loss": 0.5}, 3)
    assert values(insight_capture) == {("loss", 3): 0.5}
    monitors._monitors.clear()
    monkeypatch.setenv("RANK", "1")
    monitors.setup(output_dir="x")
    assert monitors._monitors == []


AREAL = """
class StatsLogger:
    def __init__(self, config=None, ft_spec=None): pass
    def commit(self, epoch, step, global_step, data): pass
"""


def test_areal_s_tracer_and_stats(insight_capture, module, monkeypatch):
    from rl_insight.compat import areal

    module("areal.utils", "")
    made = module("areal.utils.stats_logger", AREAL)
    monkeypatch.delitem(sys.modules, "areal.utils.perf_tracer", raising=False)
    try:
        areal.install()
        from areal.utils import perf_tracer

        assert perf_tracer is areal
        assert importlib.import_module("areal.utils.perf_tracer") is areal
    finally:
        sys.modules.pop("areal.utils.perf_tracer", None)
    made.StatsLogger().commit(0, 3, 7, [{"ppo/loss": 0.5}])
    made.StatsLogger().commit(0, 4, 8, {"ppo/loss": 0.25})
    assert values(insight_capture) == {("ppo_loss", 7): 0.5, ("ppo_loss", 8): 0.25}


@contextmanager
def without_a_server(monkeypatch, tmp_path):
    monkeypatch.setenv("RL_INSIGHT_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("RL_INSIGHT_ENABLED", "0")
    yield


def test_all_are_inert_when_switched_off(module, monkeypatch, tmp_path):
    logger = module("nemo_rl.utils.logger", NEMO_LOGGER)
    monitors = module("prime_rl.monitors", EARLIER_PRIME_RL)
    made = module("openrlhf.utils.logging_utils", OPENRLHF)
    with without_a_server(monkeypatch, tmp_path):
        nemo_rl.instrument()
        prime_rl.register()
        openrlhf.instrument()
    assert logger.Logger({}).loggers == []
    monitors.setup()
    assert monitors._monitors == []
    assert not hasattr(made.WandbLogger.log_train, "_rl_insight")


def test_a_changed_framework_gives_one_warning(insight_capture, module, caplog):
    hooks._reported.clear()
    module("nemo_rl.utils.timer", "class Timer:\n    def begin(self, label): pass\n")
    with caplog.at_level(logging.WARNING):
        nemo_rl.instrument()
        nemo_rl.instrument()
    assert len([record for record in caplog.records if "nemo_rl.utils.timer" in record.message]) == 1


WANDB = """
class Run:
    step = 3
    def log(self, data, step=None, commit=None): pass
    def alert(self, title, text, level=None, wait_duration=None): return "sent"
"""


def test_alerts_of_wandb_are_alerts_of_the_run(insight_capture, module):
    run = module("wandb.sdk.wandb_run", WANDB).Run()
    mirrors.mirror_trackers()
    assert run.alert("reward fell", "by half", level="ERROR") == "sent"
    run.alert(title="note", text="")
    alerts = [event.attributes for event in insight_capture.events if event.name == "alert"]
    assert [(one["title"], one["level"]) for one in alerts] == [("reward fell", "critical"), ("note", "info")]
