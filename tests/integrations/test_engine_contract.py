"""vLLM and SGLang against modules with the signatures of their public code; `make integrations` tests the real ones.

These are contract tests: they show that the plug-ins match the signatures, not that the engines keep them.
"""

import asyncio
import importlib
import sys
from importlib.metadata import entry_points
from types import SimpleNamespace

import pytest

from rl_insight.integrations import hooks, sglang, vllm

VLLM_LOGGERS = """
class StatLoggerBase:
    pass

class PerEngineStatLoggerAdapter:
    def __init__(self, vllm_config, engine_indexes, per_engine_stat_logger_factory):
        self.made = {index: per_engine_stat_logger_factory(vllm_config, index) for index in engine_indexes}
    def record(self, scheduler_stats, iteration_stats, mm_cache_stats=None, engine_idx=0):
        self.made[engine_idx].record(scheduler_stats, iteration_stats, mm_cache_stats, engine_idx)

class StatLoggerManager:
    def __init__(self, vllm_config, engine_idxs=None, custom_stat_loggers=None, enable_default_loggers=True,
                 aggregate_engine_logging=False, client_count=1):
        self.engine_indexes = engine_idxs or [0]
        self.stat_loggers = []
"""
VLLM_ASYNC = """
def load_stat_logger_plugin_factories():
    from importlib.metadata import entry_points
    return [one.load() for one in entry_points(group="vllm.stat_logger_plugins")]

class AsyncLLM:
    async def sleep(self, level=1, mode="abort"): pass
    async def wake_up(self, tags=None): return True
"""
SGLANG_UPDATER = """
class SchedulerWeightUpdaterManager:
    def update_weights_from_distributed(self, recv_req): return recv_req
    def release_memory_occupation(self, recv_req): pass
    def resume_memory_occupation(self, recv_req): pass
"""
SGLANG_COLLECTOR = """
class SchedulerMetricsCollector:
    def __init__(self, labels): self.labels = labels
    def log_stats(self, stats): pass
"""


@pytest.fixture
def stats_module():
    yield lambda: importlib.import_module("rl_insight.integrations.vllm_stats")
    sys.modules.pop("rl_insight.integrations.vllm_stats", None)


def iteration(**fields):
    finished = SimpleNamespace(finish_reason="stop", e2e_latency=2.0)
    known = {
        "num_prompt_tokens": 30,
        "num_generation_tokens": 12,
        "num_preempted_reqs": 0,
        "time_to_first_tokens_iter": [0.5],
        "inter_token_latencies_iter": [0.02, 0.03],
        "finished_requests": [finished],
    }
    return SimpleNamespace(**known | fields)


def scheduler():
    cache = SimpleNamespace(queries=10, hits=4)
    return SimpleNamespace(num_running_reqs=3, num_waiting_reqs=1, kv_cache_usage=0.25, prefix_cache_stats=cache)


def values(capture):
    capture.flush()
    return {sample.metric: getattr(sample, "value", getattr(sample, "sum", None)) for sample in capture.metrics}


def test_the_entry_points_name_what_the_engines_load():
    found = {(one.group, one.value) for group in GROUPS for one in entry_points(group=group, name="rl_insight")}
    assert found == {
        ("vllm.general_plugins", "rl_insight.integrations.vllm:plugin"),
        ("vllm.stat_logger_plugins", "rl_insight.integrations.vllm_stats:InsightStatLogger"),
        ("sglang.srt.plugins", "rl_insight.integrations.sglang:plugin"),
    }


GROUPS = ("vllm.general_plugins", "vllm.stat_logger_plugins", "sglang.srt.plugins")


def test_an_engine_without_plug_ins_is_recorded_too(insight_capture, module, stats_module):
    loggers = module("vllm.v1.metrics.loggers", VLLM_LOGGERS)
    ours = stats_module().InsightStatLogger
    vllm.plugin()
    vllm.plugin()
    config = SimpleNamespace(model_config=SimpleNamespace(served_model_name="qwen"))
    (adapter,) = loggers.StatLoggerManager(config, [0, 1]).stat_loggers
    adapter.record(scheduler(), iteration(), None, 1)
    assert values(insight_capture) == {
        "vllm:num_requests_running": 3,
        "vllm:num_requests_waiting": 1,
        "vllm:num_requests_waiting_by_reason": 0,
        "vllm:kv_cache_usage_perc": 0.25,
        "vllm:prefix_cache_queries": 10,
        "vllm:prefix_cache_hits": 4,
        "vllm:prompt_tokens": 30,
        "vllm:generation_tokens": 12,
        "vllm:time_to_first_token_seconds": 0.5,
        "vllm:inter_token_latency_seconds": 0.05,
        "vllm:request_success": 1,
        "vllm:e2e_request_latency_seconds": 2.0,
    }
    assert {tuple(sample.labels.items()) for sample in insight_capture.metrics} >= {
        (("engine", "1"), ("model_name", "qwen"))
    }
    assert loggers.StatLoggerManager(config, [0], custom_stat_loggers=[ours]).stat_loggers == []


def test_an_asynchronous_engine_sleeps(insight_capture, module):
    engine = module("vllm.v1.engine.async_llm", VLLM_ASYNC).AsyncLLM
    vllm.plugin()

    async def use(one):
        await one.sleep(level=2)
        insight_capture.clock.advance(5.0)
        await one.wake_up()

    asyncio.run(use(engine()))
    span = insight_capture.span("sleep")
    assert (span.lane, span.duration_ns, span.attributes) == ("engine", 5_000_000_000, {"level": 2})


def test_without_a_server_vllm_collects_no_statistics_because_of_us(module, stats_module, monkeypatch, tmp_path):
    module("vllm.v1.metrics.loggers", VLLM_LOGGERS)
    engine = module("vllm.v1.engine.async_llm", VLLM_ASYNC)
    assert [one.__name__ for one in engine.load_stat_logger_plugin_factories()] == ["InsightStatLogger"]
    monkeypatch.setenv("RL_INSIGHT_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("RL_INSIGHT_ENABLED", "0")
    vllm.plugin()
    assert engine.load_stat_logger_plugin_factories() == []


def test_sglang_s_schedulers(insight_capture, module):
    updater = module("sglang.srt.managers.scheduler_components.weight_updater", SGLANG_UPDATER)
    collector = module("sglang.srt.observability.metrics_collector", SGLANG_COLLECTOR)
    sglang.plugin()
    sglang.plugin()
    manager = updater.SchedulerWeightUpdaterManager()
    assert manager.update_weights_from_distributed("request") == "request"
    manager.release_memory_occupation("request")
    insight_capture.clock.advance(2.0)
    manager.resume_memory_occupation("request")
    one = collector.SchedulerMetricsCollector({"model_name": "qwen", "tp_rank": "0"})
    one.log_stats(
        SimpleNamespace(
            num_running_reqs=SimpleNamespace(total=5), token_usage=0.5, fwd_occupancy=float("nan"), unknown=1
        )
    )
    assert values(insight_capture) == {"sglang:num_running_reqs": 5, "sglang:token_usage": 0.5}
    assert insight_capture.span("update_weights").lane == "engine"
    assert insight_capture.span("sleep").duration_ns == 2_000_000_000


@pytest.mark.parametrize("switch", ["variable", "file"])
def test_sglang_is_left_alone_when_recording_is_switched_off(module, monkeypatch, tmp_path, switch):
    made = module("sglang.srt.observability.metrics_collector", SGLANG_COLLECTOR)
    if switch == "variable":
        monkeypatch.setenv("RL_INSIGHT_ENABLED", "No")
    else:
        (tmp_path / "insight.yaml").write_text("enabled: false\nserver: {url: http://127.0.0.1:9}\n")
        monkeypatch.setenv("RL_INSIGHT_CONFIG", str(tmp_path / "insight.yaml"))
    sglang.plugin()
    assert not hasattr(made.SchedulerMetricsCollector.log_stats, "_rl_insight")
    assert "sglang.srt.observability.metrics_collector" not in hooks._finder.patches
