"""Dashboards about inference engines and TransferQueue, from the metrics that they expose."""

from __future__ import annotations

from dataclasses import dataclass

from grafana_foundation_sdk.builders import dashboard

from dashboards.parts import RUN, Query, choice, graph, new_dashboard, number, quantiles

SELECTOR = f'{RUN},instance=~"$instance"'
BY_ENGINE = "instance, engine, replica"
ENGINE = "{{instance}} {{engine}} {{replica}}"
"""Data-parallel engines of one server have the label `engine`; verl adds `replica`."""
_VLLM = "(vllm:|ray_vllm_)"
"""vLLM's names; with Ray's statistics loggers they begin with `ray_vllm_`."""


def named(pattern: str, more: str = "") -> str:
    """Return the series whose name matches a pattern, for the selected runs and instances; `more` filters them."""
    return f'{{__name__=~"{pattern}",{SELECTOR}{more}}}'


def rate(pattern: str, by: str = BY_ENGINE) -> str:
    """Return the rate of counters per second."""
    return f"sum by ({by}) (rate({named(pattern)}[$__rate_interval]))"


def fallback(expression: str, old: str) -> str:
    """Return an expression, or what engines show that are too old for it."""
    return f"({expression}) or ({old})"


@dataclass(frozen=True, slots=True)
class Engine:
    """The names of an engine's metrics."""

    name: str
    title: str
    label: str
    """A metric that every instance has; its labels list the instances."""
    running: str
    """Expressions per engine, like the next two."""
    waiting: str
    cache: str
    generated: str
    """Patterns of names, like those below."""
    prompt: str
    first_token: str
    between_tokens: tuple[str, ...]
    """The newer name first; some versions have both."""
    request: str


def vllm_gauge(name: str, by: str = BY_ENGINE, function: str = "sum") -> str:
    """Return a gauge of vLLM by engine."""
    return f"{function} by ({by}) ({named(_VLLM + name)})"


def sglang_gauge(name: str, function: str = "max") -> str:
    """Return a gauge of SGLang by engine: each pipeline stage, and maybe each rank, has the same value."""
    return f"{function} by (instance, engine, dp_rank) ({named('sglang:' + name)})"


def sglang_requests(name: str) -> str:
    """Return the number of SGLang's requests by engine; with priorities, the total is the one without a priority."""
    total = ',priority=""'
    return f"max by (instance, engine, dp_rank) ({named('sglang:' + name, total)})"


VLLM = Engine(
    "vllm",
    "vLLM",
    f"{_VLLM}num_requests_running",
    vllm_gauge("num_requests_running"),
    vllm_gauge("num_requests_waiting"),
    fallback(vllm_gauge("kv_cache_usage_perc", function="max"), vllm_gauge("gpu_cache_usage_perc", function="max")),
    f"{_VLLM}generation_tokens_total",
    f"{_VLLM}prompt_tokens_total",
    f"{_VLLM}time_to_first_token_seconds_bucket",
    (
        f"{_VLLM}inter_token_latency_seconds_bucket",
        f"{_VLLM}time_per_output_token_seconds_bucket",
    ),
    f"{_VLLM}e2e_request_latency_seconds_bucket",
)
SGLANG = Engine(
    "sglang",
    "SGLang",
    "sglang:num_running_reqs",
    sglang_requests("num_running_reqs"),
    sglang_requests("num_queue_reqs"),
    fallback(sglang_gauge("full_token_usage"), sglang_gauge("token_usage")),
    "sglang:generation_tokens_total",
    "sglang:prompt_tokens_total",
    "sglang:time_to_first_token_seconds_bucket",
    ("sglang:inter_token_latency_seconds_bucket", "sglang:time_per_output_token_seconds_bucket"),
    "sglang:e2e_request_latency_seconds_bucket",
)


def engine_dashboard(engine: Engine, legend: str, own: list[tuple[str, list[Query], str]]) -> dashboard.Dashboard:
    """Return the dashboard of an engine: the metrics of all engines, and those of this one."""
    made = new_dashboard(
        engine.name,
        f"{engine.title} engines",
        f"{engine.title} servers registered with update_prometheus_config or `rl-insight server targets`.",
    )
    instances = f'label_values({{__name__=~"{engine.label}",{RUN}}}, instance)'
    made.with_variable(choice("instance", "Instance", instances))
    tokens = f"sum(rate({named(engine.generated)}[$__rate_interval]))"
    for panel in (
        number("Running", f"sum({engine.running})", width=6),
        number("Waiting", f"sum({engine.waiting})", width=6, warn=1),
        number("Cache used now", f"avg({engine.cache})", unit="percentunit", width=6, warn=0.9),
        number("Tokens generated", tokens, unit="tokens/s", width=6),
        graph("Requests", [(engine.running, f"{legend} running"), (engine.waiting, f"{legend} waiting")]),
        graph("Cache used", [(engine.cache, legend)], unit="percentunit", percent=True),
        graph(
            "Tokens",
            [(rate(engine.generated), f"{ENGINE} generated"), (rate(engine.prompt), f"{ENGINE} prompt")],
            unit="tokens/s",
        ),
        graph("Time to first token", quantiles(named(engine.first_token)), unit="s"),
        graph("Time between tokens", quantiles([named(name) for name in engine.between_tokens]), unit="s"),
        graph("Request latency", quantiles(named(engine.request)), unit="s"),
    ):
        made.with_panel(panel)
    for title, queries, unit in own:
        made.with_panel(graph(title, queries, unit=unit))
    return made


def p95_of(parts: dict[str, str], prefix: str) -> list[Query]:
    """Return the p95 of several histograms; `parts` maps their names, without `prefix` and `_bucket`, to legends."""
    return [(quantiles(named(f"{prefix}{name}_bucket"))[1][0], f"{legend} p95") for name, legend in parts.items()]


def vllm() -> dashboard.Dashboard:
    """Return the dashboard of vLLM."""
    hits = f"{rate(_VLLM + 'prefix_cache_hits_total')} / {rate(_VLLM + 'prefix_cache_queries_total')}"
    accepted = (
        f"{rate(_VLLM + 'spec_decode_num_accepted_tokens_total')}"
        f" / {rate(_VLLM + 'spec_decode_num_draft_tokens_total')}"
    )
    times = {
        "request_queue_time_seconds": "queue",
        "request_prefill_time_seconds": "prefill",
        "request_decode_time_seconds": "decode",
        "request_inference_time_seconds": "inference",
    }
    lengths = {
        "request_prompt_tokens": "prompt",
        "request_prefill_kv_computed_tokens": "prompt computed",
        "request_generation_tokens": "generated",
    }
    blocks = {
        "kv_block_lifetime_seconds": "lifetime",
        "kv_block_idle_before_evict_seconds": "idle before eviction",
        "kv_block_reuse_gap_seconds": "until reuse",
    }
    flops = rate(f"{_VLLM}estimated_flops_per_gpu_total")
    config = f"max by ({BY_ENGINE}, num_gpu_blocks, block_size) ({named(_VLLM + 'cache_config_info')})"
    per_token = quantiles(named(f"{_VLLM}request_time_per_output_token_seconds_bucket"))
    sleep = f"max by ({BY_ENGINE}, sleep_state) ({named(_VLLM + 'engine_sleep_state')})"
    reasons = f"sum by (reason) ({named(_VLLM + 'num_requests_waiting_by_reason')})"
    return engine_dashboard(
        VLLM,
        ENGINE,
        [
            ("Request time by part (p95)", p95_of(times, _VLLM), "s"),
            ("Time per output token per request", per_token, "s"),
            ("Waiting by reason", [(reasons, "{{reason}}")], "short"),
            ("Prefix cache hits", [(hits, ENGINE)], "percentunit"),
            ("Prompt tokens by source", [(rate(f"{_VLLM}prompt_tokens_by_source_total", "source"), "{{source}}"),
                                         (rate(f"{_VLLM}prompt_tokens_cached_total"), f"{ENGINE} cached")], "tokens/s"),
            ("Preemptions", [(rate(f"{_VLLM}num_preemptions_total"), ENGINE)], "ops"),
            ("Requests that ended", [(rate(f"{_VLLM}request_success_total", "finished_reason"), "{{finished_reason}}")],
             "ops"),
            ("Tokens per request", p95_of(lengths, _VLLM), "short"),
            ("Tokens per iteration", quantiles(named(f"{_VLLM}iteration_tokens_total_bucket")), "short"),
            ("Sleep state", [(sleep, f"{ENGINE} {{{{sleep_state}}}}")], "short"),
            ("Acceptance rate of speculative tokens", [(accepted, ENGINE)], "percentunit"),
            ("Requests with NaN in their logits", [(rate(f"{_VLLM}corrupted_requests_total"), ENGINE)], "ops"),
            ("KV cache blocks", p95_of(blocks, _VLLM), "s"),
            ("Cache configuration", [(config, f"{ENGINE}: {{{{num_gpu_blocks}}}} x {{{{block_size}}}}")], "short"),
            ("Estimated FLOPS per GPU", [(flops, ENGINE)], "flops"),
        ],
    )  # fmt: skip


def sglang() -> dashboard.Dashboard:
    """Return the dashboard of SGLang."""
    rank = "{{instance}} {{engine}} {{dp_rank}}"
    server, by_server = "{{instance}} {{engine}}", "instance, engine"
    stages = f"histogram_quantile(0.95, {rate('sglang:per_stage_req_latency_seconds_bucket', 'le, stage')})"
    weights = f"max by ({by_server}, source) ({named('sglang:weight_load_duration_seconds')})"
    lost = [
        (rate("sglang:num_retracted_requests_total", by_server), f"{server} retracted"),
        (rate("sglang:num_aborted_requests_total", by_server), f"{server} aborted"),
    ]
    cached = [
        (rate("sglang:cached_tokens_total", by_server), f"{server} cached"),
        (rate("sglang:evicted_tokens_total", by_server), f"{server} evicted"),
    ]
    speculation = [
        (sglang_gauge("spec_accept_length"), f"{rank} length"),
        (sglang_gauge("spec_accept_rate"), f"{rank} rate"),
    ]
    return engine_dashboard(
        SGLANG,
        rank,
        [
            ("Queue time", quantiles(named("sglang:queue_time_seconds_bucket")), "s"),
            ("Time by stage (p95)", [(stages, "{{stage}}")], "s"),
            ("Prefix cache hits", [(sglang_gauge("cache_hit_rate"), rank)], "percentunit"),
            ("Throughput", [(sglang_gauge("gen_throughput"), rank)], "tokens/s"),
            ("Tokens in use", [(sglang_gauge("num_used_tokens"), rank)], "short"),
            ("Requests that arrive", [(rate("sglang:num_requests_total", by_server), server)], "reqps"),
            ("Requests retracted and aborted", lost, "ops"),
            ("Paused requests", [(sglang_gauge("num_paused_reqs"), rank)], "short"),
            ("Utilization", [(sglang_gauge("utilization"), rank)], "percentunit"),
            ("Occupancy of forward passes", [(sglang_gauge("fwd_occupancy"), rank)], "percent"),
            ("CUDA graphs in use", [(sglang_gauge("is_cuda_graph"), rank)], "short"),
            ("Time in forward passes", [(rate("sglang:forward_execution_seconds_total", f"{by_server}, category"),
                                         f"{server} {{{{category}}}}")], "s"),
            ("Tokens by mode", [(rate("sglang:realtime_tokens_total", f"{by_server}, mode"), f"{server} {{{{mode}}}}")],
             "tokens/s"),
            ("LoRA slots in use", [(sglang_gauge("lora_pool_utilization"), rank)], "percentunit"),
            ("Time per output token per request",
             quantiles(named("sglang:request_time_per_output_token_seconds_bucket")), "s"),
            ("Weight updates", [(weights, f"{server} {{{{source}}}}")], "s"),
            ("Tokens cached and evicted", cached, "tokens/s"),
            ("Speculative decoding", speculation, "short"),
        ],
    )  # fmt: skip


def transfer_queue() -> dashboard.Dashboard:
    """Return the dashboard of TransferQueue."""
    made = new_dashboard(
        "transferqueue",
        "TransferQueue",
        "Progress of producers and consumers, load and storage of a TransferQueue registered as a target.",
    )
    made.with_variable(choice("instance", "Instance", f"label_values(tq_controller_uptime_seconds{{{RUN}}}, instance)"))
    task = "{{partition_id}} {{task_name}}"
    consumed = named("tq_partition_consumption_progress")
    stuck = f"count(({consumed} < 1) and (changes({consumed}[5m]) == 0)) or vector(0)"
    duration = quantiles(named("tq_controller_request_duration_seconds_bucket"))
    for panel in (
        number("Stalled consumers", stuck, width=6, warn=1,
               description="Partitions and tasks that are not fully consumed and have made no progress for 5 minutes."),
        number("Storage used", f"max({named('tq_storage_utilization_ratio')})", unit="percentunit", width=6, warn=0.9),
        number("Partitions", f"sum({named('tq_partitions_total')})", width=6),
        number("Controller uptime", f"min({named('tq_controller_uptime_seconds')})", unit="s", width=6),
        graph("Production", [(named("tq_partition_production_progress"), task)], unit="percentunit", percent=True),
        graph("Consumption", [(consumed, task)], unit="percentunit", percent=True),
        graph("Controller request latency", duration, unit="s"),
        graph("Controller requests", [(rate("tq_controller_request_total", "op_type"), "{{op_type}}")], unit="reqps"),
        graph(
            "Storage request latency",
            [
                (named("tq_storage_request_latency_p50"), "{{instance}} {{storage_unit_id}} {{op_type}} p50"),
                (named("tq_storage_request_latency_p99"), "{{instance}} {{storage_unit_id}} {{op_type}} p99"),
            ],
            unit="s",
        ),
        graph(
            "Storage requests",
            [(rate("tq_storage_request_ops(_total)?", "op_type"), "{{op_type}}")],
            unit="reqps",
        ),
        graph("Samples by partition", [(named("tq_partition_samples_total"), "{{partition_id}}")]),
        graph(
            "Memory",
            [
                (named("tq_controller_memory_rss_bytes"), "{{instance}} controller"),
                (named("tq_storage_memory_rss_bytes"), "{{instance}} {{storage_unit_id}} storage"),
            ],
            unit="bytes",
        ),
    ):  # fmt: skip
        made.with_panel(panel)
    return made
