"""vLLM's and SGLang's own plug-in loading, on the real packages; no model is run, which would need a GPU."""

import inspect
import logging
import re
import sys
from pathlib import Path
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
    return SimpleNamespace(
        model_config=SimpleNamespace(served_model_name="qwen"),
        cache_config=SimpleNamespace(num_gpu_blocks=512, block_size=16, cache_dtype="auto"),
    )


def iteration():
    from vllm.v1.engine import FinishReason
    from vllm.v1.metrics.stats import FinishedRequestStats, IterationStats

    stats = IterationStats()
    stats.num_generation_tokens = 12
    stats.prompt_token_stats.total = 30
    stats.prompt_token_stats.computed = 20
    stats.prompt_token_stats.local_cache_hit = stats.prompt_token_stats.cached_tokens = 10
    stats.prompt_token_stats.external_kv_transfer = 1
    stats.num_preempted_reqs = 1
    stats.num_corrupted_reqs = 1
    stats.time_to_first_tokens_iter = [0.25]
    stats.inter_token_latencies_iter = [0.02, 0.03]
    stats.finished_requests = [
        FinishedRequestStats(
            finish_reason=FinishReason.LENGTH,
            e2e_latency=2.0,
            queued_time=0.5,
            mean_time_per_output_token=0.025,
            num_prompt_tokens=30,
            num_cached_tokens=10,
        )
    ]
    return stats


def scheduler(running=3):
    from vllm.v1.metrics.perf import PerfStats
    from vllm.v1.metrics.stats import KVCacheEvictionEvent, SchedulerStats
    from vllm.v1.spec_decode.metrics import SpecDecodingStats

    stats = SchedulerStats(num_running_reqs=running, num_waiting_reqs=2, num_skipped_waiting_reqs=1, kv_cache_usage=0.5)
    stats.prefix_cache_stats.queries, stats.prefix_cache_stats.hits = 100, 40
    stats.spec_decoding_stats = SpecDecodingStats.new(2)
    stats.spec_decoding_stats.observe_draft(num_draft_tokens=2, num_accepted_tokens=1)
    stats.perf_stats = PerfStats(num_flops_per_gpu=10, num_read_bytes_per_gpu=20, num_write_bytes_per_gpu=30)
    stats.kv_cache_eviction_events = [KVCacheEvictionEvent(4.0, 1.0, (0.5,))]
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
    assert found["vllm:request_time_per_output_token_seconds", "0", None] == 0.025
    assert found["vllm:inter_token_latency_seconds", "0", None] == 0.05
    assert found["vllm:iteration_tokens_total", "0", None] == 32
    assert found["vllm:request_prefill_kv_computed_tokens", "0", None] == 20
    assert found["vllm:kv_block_lifetime_seconds", "0", None] == 4.0
    assert found["vllm:spec_decode_num_accepted_tokens", "0", None] == 1
    assert found["vllm:estimated_flops_per_gpu_total", "0", None] == 10
    by_label = {
        (sample.labels.get("source"), sample.labels.get("reason")): sample.value
        for sample in insight_capture.metrics
        if sample.labels["engine"] == "0" and sample.labels.keys() & {"source", "reason"}
    }
    assert by_label == {
        ("local_compute", None): 20,
        ("local_cache_hit", None): 10,
        ("external_kv_transfer", None): 1,
        (None, "capacity"): 2,
        (None, "deferred"): 1,
    }
    assert [event.name for event in insight_capture.events] == ["engine_initialized"] * 2
    assert insight_capture.events[0].attributes["num_gpu_blocks"] == 512


def test_the_names_are_those_of_vllm_s_own_endpoint(insight_capture, loggers, config):
    from vllm.v1.metrics import perf
    from vllm.v1.spec_decode import metrics as speculation

    from rl_insight.integrations.vllm_stats import InsightStatLogger

    logger = InsightStatLogger(config)
    logger.record(scheduler(), iteration())
    logger.record_sleep_state(1, 2)
    source = "".join(map(inspect.getsource, (loggers, perf, speculation)))
    ours = {metric for metric, *_ in values(insight_capture)}
    assert len(ours) > 30
    assert ours <= set(re.findall(r'"(vllm:[a-z_0-9]+)"', source))


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


@pytest.fixture
def sglang_modules(monkeypatch):
    """SGLang's own modules, which import torchvision; operators missing from its compiled part are declared."""
    torch = pytest.importorskip("torch", reason="torch is not installed: `make integrations` runs this")
    pytest.importorskip("sglang", reason="SGLang is not installed: `make integrations` runs this")
    monkeypatch.syspath_prepend(str(Path(sys.prefix).parent / "torchvision"))
    if not hasattr(torch.ops.torchvision, "qnms"):
        for name in ("nms", "qnms"):
            torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    sglang.plugin()

    def load(name):
        return pytest.importorskip(f"sglang.srt.{name}", reason="SGLang cannot be imported here")

    return load


def test_sglang_loads_the_plug_in(insight_capture, monkeypatch):
    pytest.importorskip("sglang", reason="SGLang is not installed: `make integrations` runs this")
    plugins = pytest.importorskip("sglang.srt.plugins", reason="SGLang cannot be imported here")
    found = plugins.load_plugins_by_group(plugins.GENERAL_PLUGINS_GROUP)
    assert found["rl_insight"][0] is sglang.plugin
    monkeypatch.setattr(plugins, "_plugins_loaded", False)
    plugins.load_plugins()
    assert {"sglang.srt.observability.metrics_collector"} <= hooks._finder.patches.keys()


def test_statistics_of_sglang_s_scheduler_go_by_its_own_names(insight_capture, sglang_modules):
    collectors = sglang_modules("observability.metrics_collector")
    stats = collectors.SchedulerStats(token_usage=0.75, gen_throughput=100.0, fwd_occupancy=0.5, is_cuda_graph=1)
    stats.num_running_reqs = collectors.QueueCount(total=5, by_priority={1: 2, 2: 3})
    collector = object.__new__(collectors.SchedulerMetricsCollector)
    collector.labels = {"model_name": "qwen", "tp_rank": "0", "engine_type": "unified"}
    monitored = collectors.SchedulerMetricsCollector.log_stats
    assert hasattr(monitored, "_rl_insight")
    with pytest.raises(AttributeError):  # without its Prometheus gauges; ours has seen the call by then
        collector.log_stats(stats)
    found = {metric: value for (metric, *_), value in values(insight_capture).items()}
    assert found["sglang:num_running_reqs"] == 5
    assert (found["sglang:token_usage"], found["sglang:gen_throughput"]) == (0.75, 100.0)
    assert (found["sglang:fwd_occupancy"], found["sglang:is_cuda_graph"]) == (0.5, 1)
    names = set(re.findall(r'"(sglang:[a-z_0-9]+)"', inspect.getsource(collectors)))
    assert found.keys() <= names
    assert {f"sglang:{name}" for name in sglang.GAUGES} <= names


def test_sglang_s_weight_updates_and_memory_are_states(insight_capture, sglang_modules):
    updaters = sglang_modules("managers.scheduler_components.weight_updater")
    messages = sglang_modules("managers.io_struct")
    manager = object.__new__(updaters.SchedulerWeightUpdaterManager)
    for name, value in {
        "scheduler": None,
        "is_fully_idle": lambda **_: True,
        "offload_tags": set(),
        "memory_saver_adapter": SimpleNamespace(pause=lambda _tag: None, resume=lambda _tag: None),
        "flush_cache": lambda: True,
        "_session": None,
    }.items():
        setattr(manager, name, value)
    tags = ["kv_cache"]
    manager.release_memory_occupation(messages.ReleaseMemoryOccupationReqInput(tags=tags))
    insight_capture.clock.advance(2.0)
    manager.resume_memory_occupation(messages.ResumeMemoryOccupationReqInput(tags=tags))
    assert insight_capture.span("sleep").duration_ns == 2_000_000_000
    refused = manager.update_weights_from_distributed(None)  # outside of begin and end
    assert refused.success is False
    assert insight_capture.span("update_weights").lane == "engine"
    for name in sglang.UPDATES:
        assert hasattr(getattr(updaters.SchedulerWeightUpdaterManager, name), "_rl_insight"), name
