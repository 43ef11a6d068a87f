"""Dashboards about inference engines, from the metrics that they expose themselves."""

from __future__ import annotations

from dataclasses import dataclass

from grafana_foundation_sdk.builders import dashboard

from dashboards.parts import RUN, Query, choice, graph, new_dashboard, number, quantiles

SELECTOR = f'{RUN},instance=~"$instance"'


@dataclass(frozen=True, slots=True)
class Engine:
    """What one engine calls its metrics; where versions differ, a regular expression that fits them all."""

    name: str
    title: str
    running: str
    waiting: str
    cache: str
    generated: str
    prompt: str
    first_token: str
    between_tokens: tuple[str, ...]
    """The newer name first; some versions show both."""
    request: str


VLLM = Engine(
    "vllm",
    "vLLM",
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:(kv|gpu)_cache_usage_perc",
    "vllm:generation_tokens_total",
    "vllm:prompt_tokens_total",
    "vllm:time_to_first_token_seconds_bucket",
    ("vllm:inter_token_latency_seconds_bucket", "vllm:time_per_output_token_seconds_bucket"),
    "vllm:e2e_request_latency_seconds_bucket",
)
SGLANG = Engine(
    "sglang",
    "SGLang",
    "sglang:num_running_reqs",
    "sglang:num_queue_reqs",
    "sglang:token_usage",
    "sglang:generation_tokens_total",
    "sglang:prompt_tokens_total",
    "sglang:time_to_first_token_seconds_bucket",
    ("sglang:inter_token_latency_seconds_bucket", "sglang:time_per_output_token_seconds_bucket"),
    "sglang:e2e_request_latency_seconds_bucket",
)


def named(pattern: str) -> str:
    """Return the series whose name fits a pattern, of the chosen runs and instances."""
    return f'{{__name__=~"{pattern}",{SELECTOR}}}'


def rate(name: str, by: str = "instance") -> str:
    """Return the growth of a counter for each second."""
    return f"sum by ({by}) (rate({name}{{{SELECTOR}}}[$__rate_interval]))"


def engine_dashboard(engine: Engine, own: list[tuple[str, list[Query], str]]) -> dashboard.Dashboard:
    """Return the dashboard of an engine: what all engines tell, and what this one tells besides."""
    made = new_dashboard(
        engine.name,
        f"{engine.title} engines",
        f"{engine.title} servers that were registered with update_prometheus_config or `rl-insight server targets`.",
    )
    instances = f"label_values({engine.running}{{{RUN}}}, instance)"
    made.with_variable(choice("instance", "Instance", instances))
    tokens = f"sum(rate({engine.generated}{{{SELECTOR}}}[$__rate_interval]))"
    for panel in (
        number("Running", f"sum({named(engine.running)})", width=6),
        number("Waiting", f"sum({named(engine.waiting)})", width=6, warn=1),
        number("Cache used", f"avg({named(engine.cache)})", unit="percentunit", width=6, warn=0.9),
        number("Tokens generated", tokens, unit="tokens/s", width=6),
        graph(
            "Requests",
            [
                (named(engine.running), "{{instance}} running"),
                (named(engine.waiting), "{{instance}} waiting"),
            ],
        ),
        graph("Cache used", [(named(engine.cache), "{{instance}}")], unit="percentunit", percent=True),
        graph(
            "Tokens",
            [(rate(engine.generated), "{{instance}} generated"), (rate(engine.prompt), "{{instance}} prompt")],
            unit="tokens/s",
        ),
        graph("Time to the first token", quantiles(named(engine.first_token)), unit="s"),
        graph("Time between tokens", quantiles([named(name) for name in engine.between_tokens]), unit="s"),
        graph("Time of a request", quantiles(named(engine.request)), unit="s"),
    ):
        made.with_panel(panel)
    for title, queries, unit in own:
        made.with_panel(graph(title, queries, unit=unit))
    return made


def vllm() -> dashboard.Dashboard:
    """Return the dashboard of vLLM."""
    hits = f"{rate('vllm:prefix_cache_hits_total')} / {rate('vllm:prefix_cache_queries_total')}"
    queue = quantiles(named("vllm:request_queue_time_seconds_bucket"))
    finished = rate("vllm:request_success_total", "finished_reason")
    return engine_dashboard(
        VLLM,
        [
            ("Prefix cache hits", [(hits, "{{instance}}")], "percentunit"),
            ("Preemptions", [(rate("vllm:num_preemptions_total"), "{{instance}}")], "ops"),
            ("Time in the queue", queue, "s"),
            ("Requests that ended", [(finished, "{{finished_reason}}")], "ops"),
        ],
    )


def sglang() -> dashboard.Dashboard:
    """Return the dashboard of SGLang."""
    return engine_dashboard(
        SGLANG,
        [
            ("Prefix cache hits", [(named("sglang:cache_hit_rate"), "{{instance}}")], "percentunit"),
            ("Throughput", [(named("sglang:gen_throughput"), "{{instance}}")], "tokens/s"),
            ("Tokens in use", [(named("sglang:num_used_tokens"), "{{instance}}")], "short"),
            ("Requests", [(rate("sglang:num_requests_total"), "{{instance}}")], "reqps"),
        ],
    )
