"""Frameworks that cannot be installed here, against modules with the signatures that their public code has.

These are contract tests: they show that the integrations fit the signatures, not that the frameworks keep them.
"""

import asyncio
import importlib
import logging
import sys
import types
from contextlib import contextmanager

import pytest

from rl_insight.integrations import hooks, nemo_rl, openrlhf, prime_rl, slime


def values(capture):
    capture.flush()
    return {(sample.metric, sample.step): sample.value for sample in capture.metrics}


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
    assert values(insight_capture) == {("train_loss", 3): 0.5}
    assert sorted(states(insight_capture)) == ["generation", "idle/refit_bubble"]
    assert insight_capture.span("total_step_time").duration_ns is not None


def test_a_timer_that_is_stopped_without_start_keeps_its_own_error(insight_capture, module):
    timer = module("nemo_rl.utils.timer", NEMO_TIMER).Timer
    nemo_rl.instrument()
    with pytest.raises(KeyError):
        timer().stop("never")


OPENRLHF = """
class WandbLogger:
    def log_train(self, global_step, logs_dict): pass
    def log_eval(self, global_step, logs_dict): pass
class TensorboardLogger(WandbLogger):
    def log_train(self, global_step, logs_dict): pass
    def log_eval(self, global_step, logs_dict): pass
"""


def test_openrlhf_logs(insight_capture, module):
    made = module("openrlhf.utils.logging_utils", OPENRLHF)
    openrlhf.instrument()
    made.WandbLogger().log_train(4, {"reward": 0.25, "timing/generation": 12.0})
    made.TensorboardLogger().log_eval(global_step=4, logs_dict={"score": 0.75})
    assert values(insight_capture) == {
        ("train_reward", 4): 0.25,
        ("train_timing_generation", 4): 12.0,
        ("eval_score", 4): 0.75,
    }


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


def test_samples_of_another_shape_never_stop_slime(insight_capture, caplog):
    hooks._reported.clear()
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert slime.log_rollout(5, None, [object()], None, 1.0) is False
    assert len([record for record in caplog.records if "slime" in record.message]) == 1


def test_prime_rl_s_monitor(insight_capture, module):
    monitors = module("prime_rl.monitors", "MONITORS = []")
    prime_rl.register()
    prime_rl.register()
    [made] = monitors.MONITORS
    one = made()
    asyncio.run(one.init(config={}))
    one.log_metrics({"time/step": 4.0}, 2)
    one.log_metrics(None, 2)
    one.log_episodes([object(), object()], 2, "train", None)
    one.finalize()
    found = values(insight_capture)
    assert found["time_step", 2] == 4.0
    assert found["episodes", 2] == 2


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
    monitors = module("prime_rl.monitors", "MONITORS = []")
    made = module("openrlhf.utils.logging_utils", OPENRLHF)
    with without_a_server(monkeypatch, tmp_path):
        nemo_rl.instrument()
        prime_rl.register()
        openrlhf.instrument()
    assert logger.Logger({}).loggers == []
    assert monitors.MONITORS == []
    assert not hasattr(made.WandbLogger.log_train, "_rl_insight_manager")


def test_a_changed_framework_gives_one_warning(insight_capture, module, caplog):
    hooks._reported.clear()
    module("nemo_rl.utils.timer", "class Timer:\n    def begin(self, label): pass\n")
    with caplog.at_level(logging.WARNING):
        nemo_rl.instrument()
        nemo_rl.instrument()
    assert len([record for record in caplog.records if "nemo_rl.utils.timer" in record.message]) == 1
