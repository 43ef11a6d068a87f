"""vLLM's and SGLang's own plug-in loading, on the real packages; no model is run, which would need a GPU."""

import logging
from types import SimpleNamespace

import pytest

from rl_insight.integrations import hooks, sglang, vllm


def values(capture):
    capture.flush()
    return {
        (sample.metric, sample.labels.get("engine"), sample.labels.get("finished_reason")): getattr(
            sample, "value", getattr(sample, "sum", None)
        )
        for sample in capture.metrics
    }


@pytest.fixture
def loggers():
    pytest.importorskip("vllm", reason="vLLM is not installed: `make integrations` runs this")
    return pytest.importorskip("vllm.v1.metrics.loggers", reason="vLLM cannot be imported here")


@pytest.fixture
def config():
    return SimpleNamespace(model_config=SimpleNamespace(served_model_name="qwen"))


def iteration():
    from vllm.v1.engine import FinishReason
    from vllm.v1.metrics.stats import FinishedRequestStats, IterationStats

    stats = IterationStats()
    stats.num_generation_tokens = 12
    stats.prompt_token_stats.total = 30
    stats.num_preempted_reqs = 1
    stats.time_to_first_tokens_iter = [0.25]
    stats.finished_requests = [
        FinishedRequestStats(finish_reason=FinishReason.LENGTH, e2e_latency=2.0, queued_time=0.5, num_prompt_tokens=30)
    ]
    return stats


def scheduler(running=3):
    from vllm.v1.metrics.stats import SchedulerStats

    stats = SchedulerStats(num_running_reqs=running, num_waiting_reqs=2, num_skipped_waiting_reqs=1, kv_cache_usage=0.5)
    stats.prefix_cache_stats.queries, stats.prefix_cache_stats.hits = 100, 40
    return stats


def test_vllm_finds_the_plug_in_and_its_adapter_feeds_it(insight_capture, loggers, config):
    (ours,) = [one for one in loggers.load_stat_logger_plugin_factories() if one.__module__.startswith("rl_insight")]
    adapter = loggers.PerEngineStatLoggerAdapter(
        vllm_config=config, engine_indexes=[0, 1], per_engine_stat_logger_factory=ours
    )
    adapter.log_engine_initialized()
    adapter.record(scheduler(), iteration(), mm_cache_stats=None, engine_idx=0)
    adapter.record(scheduler(running=7), None, mm_cache_stats=None, engine_idx=1)
    adapter.log()
    found = values(insight_capture)
    assert found["vllm:num_requests_running", "0", None] == 3
    assert found["vllm:num_requests_running", "1", None] == 7
    assert found["vllm:num_requests_waiting", "0", None] == 3
    assert found["vllm:kv_cache_usage_perc", "0", None] == 0.5
    assert found["vllm:prefix_cache_hits", "0", None] == 40
    assert found["vllm:generation_tokens", "0", None] == 12
    assert found["vllm:prompt_tokens", "0", None] == 30
    assert found["vllm:num_preemptions", "0", None] == 1
    assert found["vllm:request_success", "0", "length"] == 1
    assert found["vllm:e2e_request_latency_seconds", "0", None] == 2.0
    assert found["vllm:time_to_first_token_seconds", "0", None] == 0.25
    assert [event.name for event in insight_capture.events] == ["engine_initialized"] * 2


def test_the_names_are_those_of_vllm_s_own_endpoint(insight_capture, loggers, config):
    from inspect import getsource

    from rl_insight.integrations.vllm_stats import InsightStatLogger

    logger = InsightStatLogger(config)
    logger.record(scheduler(), iteration())
    logger.record_sleep_state(1, 2)
    source = getsource(loggers)
    for metric, *_ in values(insight_capture):
        assert f'"{metric}"' in source, metric


def test_sleep_and_wake_are_a_state_and_a_gauge(insight_capture, loggers, config):
    engines = pytest.importorskip("vllm.v1.engine.llm_engine", reason="vLLM cannot be imported here")
    vllm.plugin()
    vllm.plugin()
    engine = engines.LLMEngine.__new__(engines.LLMEngine)
    engine.renderer = SimpleNamespace(clear_mm_cache=lambda: None)
    engine.engine_core = SimpleNamespace(sleep=lambda level, mode: None, wake_up=lambda tags: True)
    from rl_insight.integrations.vllm_stats import InsightStatLogger

    engine.logger_manager = InsightStatLogger(config)
    engine.sleep(level=2)
    insight_capture.clock.advance(3.0)
    assert engine.wake_up() is True
    span = insight_capture.span("sleep")
    assert (span.lane, span.duration_ns, span.attributes["level"]) == ("engine", 3_000_000_000, 2)
    states = {s.labels["sleep_state"]: s.value for s in insight_capture.metrics if "sleep_state" in s.labels}
    assert states == {"awake": 1, "weights_offloaded": 0, "discard_all": 0}


def test_without_a_server_vllm_gets_no_stat_logger_of_ours(loggers, monkeypatch):
    engines = pytest.importorskip("vllm.v1.engine.async_llm", reason="vLLM cannot be imported here")
    monkeypatch.setenv("RL_INSIGHT_ENABLED", "0")
    vllm.plugin()
    assert not [one for one in engines.load_stat_logger_plugin_factories() if one.__module__.startswith("rl_insight")]


def test_statistics_of_another_shape_give_one_warning(insight_capture, loggers, config, caplog):
    from rl_insight.integrations.vllm_stats import InsightStatLogger

    hooks._reported.clear()
    logger = InsightStatLogger(config)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            logger.record(object(), object(), mm_cache_stats=None, engine_idx=0)
    assert len([record for record in caplog.records if "vLLM" in record.message]) == 1


def test_sglang_loads_the_plug_in(insight_capture, monkeypatch):
    pytest.importorskip("sglang", reason="SGLang is not installed: `make integrations` runs this")
    plugins = pytest.importorskip("sglang.srt.plugins", reason="SGLang cannot be imported here")
    found = plugins.load_plugins_by_group(plugins.GENERAL_PLUGINS_GROUP)
    assert found["rl_insight"][0] is sglang.plugin
    monkeypatch.setattr(plugins, "_plugins_loaded", False)
    plugins.load_plugins()
    assert {"sglang.srt.observability.metrics_collector"} <= hooks._finder.patches.keys()
