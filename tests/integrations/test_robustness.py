"""Whatever a framework looks like, and whatever fails in an integration: training continues, with one warning.

Frameworks that cannot be installed here are modules with their signatures; the trackers are the real ones.
"""

import asyncio
import logging
import sys
import types

import pytest

from rl_insight import activation
from rl_insight.integrations import (
    hooks,
    lightning_plugin,
    mirrors,
    nemo_rl,
    openrlhf,
    prime_rl,
    sglang,
    slime,
    verl,
    vllm,
)
from rl_insight.monitor import default_monitor

RECORDING = (
    "metric_count", "metric_gauge", "metric_histogram", "trace_state", "trace_span", "trace_event", "session", "phase",
    "set_step", "step", "flush", "current_session",
)  # fmt: skip


def activate_areal():
    from rl_insight.compat import areal

    areal.install()


MODULES = {
    "verl": (verl.instrument, ["verl.utils.profiler", "verl.utils.tracking", "verl.utils.rollout_trace",
                               "verl.experimental.agent_loop.agent_loop"]),
    "trl": (activation.activate, ["trl.extras.profiling", "trl.trainer.grpo_trainer"]),
    "nemo_rl": (nemo_rl.instrument, ["nemo_rl.utils.logger", "nemo_rl.utils.timer"]),
    "openrlhf": (openrlhf.instrument, ["openrlhf.utils.logging_utils"]),
    "prime_rl": (prime_rl.register, ["prime_rl.monitors"]),
    "slime": (slime.instrument, ["slime.observability.timer", "slime.utils.timer"]),
    "skyrl": (activation.activate, ["skyrl.train.utils.utils"]),
    "transformers": (activation.activate, ["transformers.integrations.integration_utils", "transformers.trainer"]),
    "areal": (activate_areal, ["areal.utils.stats_logger"]),
    "vllm": (vllm.plugin, ["vllm.v1.engine.async_llm", "vllm.v1.engine.llm_engine", "vllm.v1.metrics.loggers"]),
    "sglang": (sglang.plugin, ["sglang.srt.managers.scheduler_components.weight_updater",
                               "sglang.srt.observability.metrics_collector"]),
    "wandb": (mirrors.mirror_trackers, ["wandb.sdk.wandb_run"]),
    "tensorboardX": (mirrors.mirror_trackers, ["tensorboardX.writer"]),
    "torch": (mirrors.mirror_trackers, ["torch.utils.tensorboard.writer"]),
    "mlflow": (mirrors.mirror_trackers, ["mlflow.tracking.client"]),
    "trackio": (mirrors.mirror_trackers, ["trackio.run"]),
}  # fmt: skip
"""How each integration is activated, and the modules that it patches."""


@pytest.fixture
def warnings(caplog):
    hooks._reported.clear()
    caplog.set_level(logging.WARNING)
    return lambda: [record.message for record in caplog.records if record.name == "rl_insight"]


@pytest.mark.parametrize("name", MODULES)
def test_an_unknown_version_gives_a_single_warning(name, insight_capture, module, warnings):
    activate, modules = MODULES[name]
    for one in modules:
        module(one, "VERSION = 99\n")
    for _ in range(2):
        activate()
    assert len(warnings()) == 1
    assert f"the integration with {name} failed" in warnings()[0]


def test_an_unknown_lightning_gives_a_single_warning(insight_capture, warnings, monkeypatch, tmp_path):
    """A future Lightning whose `Callback` is elsewhere: its trainers start without ours."""
    package = tmp_path / "lightning" / "pytorch"
    package.mkdir(parents=True)
    for name in ("../__init__", "__init__", "callbacks", "loggers"):
        (package / f"{name}.py").write_text("VERSION = 99\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "rl_insight.integrations.lightning", raising=False)
    assert [lightning_plugin.callbacks() for _ in range(2)] == [[], []]
    [warning] = warnings()
    assert "the integration with lightning failed" in warning
    assert "'Callback'" in warning


@pytest.fixture
def broken(monkeypatch):
    """Every recorder call raises, as a bug of ours would."""

    def fail(*_args, **_kwargs):
        raise RuntimeError("a defect")

    def start():
        for name in RECORDING:
            monkeypatch.setattr(default_monitor, name, fail)

    return start


VERL = """
from contextlib import contextmanager

@contextmanager
def marked_timer(name, timing_raw, color=None, domain=None, category=None):
    timing_raw[name] = 1.0
    yield "timer"
"""
TRACE = """
from contextlib import contextmanager

@contextmanager
def rollout_trace_attr(sample_index=None, step=None, rollout_n=None, name="x", validate=False, trace=True):
    yield "attributes"

def rollout_trace_op(function):
    return function
"""


def use_verl(module):
    profiler = module("verl.utils.profiler", VERL)
    trace = module("verl.utils.rollout_trace", TRACE)
    verl.instrument()

    class Loop:
        async def generate(self):
            return "tokens"

        def execute(self):
            raise KeyError("the tool's own error")

    async def run():
        generate, execute = trace.rollout_trace_op(Loop.generate), trace.rollout_trace_op(Loop.execute)
        with trace.rollout_trace_attr(3, 7, 0) as value:
            assert value == "attributes"
            with pytest.raises(KeyError):
                execute(Loop())
            return await generate(Loop())

    timing = {}
    with profiler.marked_timer("gen", timing) as value:
        assert value == "timer"
        assert asyncio.run(run()) == "tokens"
    return timing == {"gen": 1.0}


def use_trl(module):
    source = """
class ProfilingContext:
    def __init__(self, name): self.name = name
    def __enter__(self): return self
    def __exit__(self, *outcome): return None
"""
    profiling = module("trl.extras.profiling", source)
    activation.activate()
    with profiling.ProfilingContext("GRPOTrainer.compute_loss") as value:
        return value is not None


def use_nemo_rl(module):
    source = "class Logger:\n    def __init__(self, cfg): self.loggers = []\n"
    timer = "class Timer:\n    def start(self, label): return 1\n    def stop(self, label): return 2\n"
    logger, clock = module("nemo_rl.utils.logger", source), module("nemo_rl.utils.timer", timer)
    nemo_rl.instrument()
    made = logger.Logger({})
    for one in made.loggers:
        one.log_metrics({"loss": 1.0}, 3)
        one.log_hyperparams({"lr": 1.0})
    one = clock.Timer()
    return (one.start("a"), one.stop("a")) == (1, 2)


def use_openrlhf(module):
    method = "".join(f"    def {name}(self, global_step, logs_dict): return 5\n" for name in ("log_train", "log_eval"))
    made = module("openrlhf.utils.logging_utils", f"class WandbLogger:\n{method}class TensorboardLogger:\n{method}")
    openrlhf.instrument()
    return made.WandbLogger().log_train(4, {"reward": 1.0}) == 5


def use_prime_rl(module):
    monitors = module("prime_rl.monitors", "MONITORS = []\nasync def setup(): return 3\n")
    prime_rl.register()

    async def run():
        assert await monitors.setup() == 3
        for one in monitors.MONITORS:
            await one.log({"loss": 1.0}, 2)
            await one.log_episodes([object()], 2, "train", "all")
            await one.finalize()
        return True

    return asyncio.run(run())


def use_slime(_module):
    sample = types.SimpleNamespace(reward=1.0, response_length=4, status="completed")
    return slime.log_rollout(5, None, [sample], None, 1.0) is False and (
        slime.log_eval_rollout(5, None, {"aime": {"rewards": [1]}}, None) is False
    )


def use_areal(module):
    source = "class StatsLogger:\n    def commit(self, epoch, step, global_step, data): return 7\n"
    made = module("areal.utils.stats_logger", source)
    activate_areal()
    return made.StatsLogger().commit(0, 1, 1, {"loss": 1.0}) == 7


def use_vllm(module):
    source = "class LLMEngine:\n    def sleep(self, level=1): return 1\n    def wake_up(self, tags=None): return True\n"
    engine = module("vllm.v1.engine.llm_engine", source).LLMEngine()
    vllm.plugin()
    return (engine.sleep(), engine.wake_up()) == (1, True)


def use_sglang(module):
    source = "class SchedulerMetricsCollector:\n    labels = {}\n    def log_stats(self, stats): return 9\n"
    made = module("sglang.srt.observability.metrics_collector", source).SchedulerMetricsCollector()
    sglang.plugin()
    return made.log_stats(types.SimpleNamespace(token_usage=0.5)) == 9


def use_skyrl(module):
    module("skyrl.train.utils.callbacks", "class TrainingCallback: pass\n")
    from rl_insight.integrations.skyrl import InsightSkyRLCallback

    callback = InsightSkyRLCallback()
    given = types.SimpleNamespace(global_step=1, logs={"loss": 1.0}, ckpt_path="x")
    for name in ("train_start", "step_start", "eval_start", "eval_end", "save", "log", "train_end"):
        getattr(callback, f"on_{name}")(None, given, None)
    return True


def use_skyrl_timer(module):
    source = """
class Timer:
    message = "generate"
    def __enter__(self): return "inside"
    def __exit__(self, *outcome): return None
    async def __aenter__(self): return "inside"
    async def __aexit__(self, *outcome): return None
"""
    timer = module("skyrl.train.utils.utils", source).Timer
    activation.activate()

    async def measure():
        async with timer() as value:
            return value

    with timer() as value:
        return value == asyncio.run(measure()) == "inside"


def use_slime_timer(module):
    source = "class Timer:\n    def start(self, name): return 1\n    def end(self, name): return 2\n"
    clock = module("slime.observability.timer", source).Timer()
    slime.instrument()
    return (clock.start("train"), clock.end("train")) == (1, 2)


def use_transformers(module):
    callback = "class TrainerCallback: pass\n"
    module("transformers.trainer_callback", callback)
    source = """
class Trainer:
    def __init__(self):
        self.callback_handler = type("Handler", (), {"callbacks": []})()
    def add_callback(self, callback): self.callback_handler.callbacks.append(callback)
    def train(self): return 11
    def evaluate(self): return 12
    def _save_checkpoint(self): return 13
"""
    made = module("transformers.trainer", source).Trainer()
    activation.activate()
    return (made.train(), made.evaluate(), made._save_checkpoint()) == (11, 12, 13)


TRACKERS = {
    "wandb.sdk.wandb_run": "class Run:\n    step = 1\n    def log(self, data, step=None, commit=None): return 5\n",
    "mlflow.tracking.client": (
        "class MlflowClient:\n"
        "    def log_metric(self, run_id, key, value, timestamp=None, step=None): return 5\n"
        "    def log_batch(self, run_id, metrics=(), params=(), tags=()): return 5\n"
    ),
    "trackio.run": "class Run:\n    def log(self, metrics, step=None): return 5\n",
}


def use_trackers(module):
    made = {name.partition(".")[0]: module(name, source) for name, source in TRACKERS.items()}
    mirrors.mirror_trackers()
    return [
        made["wandb"].Run().log({"loss": 1.0}, step=3),
        made["mlflow"].MlflowClient().log_metric("r", "loss", 1.0, step=3),
        made["mlflow"].MlflowClient().log_batch("r", [types.SimpleNamespace(key="a", value=1.0, step=3)]),
        made["trackio"].Run().log({"loss": 1.0}, step=3),
    ] == [5] * 4


def use_tensorboard(_module):
    writers = pytest.importorskip("tensorboardX", reason="tensorboardX is not installed")
    mirrors.mirror_trackers()
    writers.SummaryWriter(write_to_disk=False).add_scalar("loss", 1.0, 3)
    return True


USES = {name.removeprefix("use_"): use for name, use in list(globals().items()) if name.startswith("use_")}


@pytest.mark.parametrize("name", USES)
def test_what_fails_inside_never_reaches_the_training(name, insight_capture, module, broken, warnings, monkeypatch):
    for one in ("skyrl", "transformers"):
        monkeypatch.delitem(sys.modules, f"rl_insight.integrations.{one}", raising=False)
    broken()
    assert USES[name](module)
    assert warnings()
    assert len(warnings()) == len(set(warnings()))
