"""Dashboards about a run: its progress, where its time goes, and its sessions."""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard

from dashboards.parts import (
    NAMESPACE,
    PROCESS,
    RUN,
    TRACE,
    any_metric,
    choice,
    durations_over_time,
    graph,
    lanes,
    listing,
    metric,
    new_dashboard,
    number,
    quantiles,
    spans_table,
)

STATE_RATE = f"rate({metric('state_seconds_total', PROCESS)}[$__rate_interval])"
BUSY = PROCESS + ',state!~"idle.*|wait.*"'
BUSY_RATE = f"rate({metric('state_seconds_total', BUSY)}[$__rate_interval])"
STATES = '{span.state_name!="" && span.state_lane_id=~"$lane" && ' + TRACE + "}"
PHASES = '{span.monitor.trace_segment="phase" && span.state_lane_id=~"$lane" && ' + TRACE + "}"
SESSION_SPANS = "session|agent_session|rollout.*"


def overview() -> dashboard.Dashboard:
    """Return the overview of a run."""
    made = new_dashboard("overview", "Overview", "Progress of the run: steps, reward, throughput, states, open work.")
    step_time = any_metric("step_time_s|step_time_seconds|timing_s_step|timing_seconds_step|perf_time_per_step")
    throughput = any_metric(
        "throughput_tokens_per_s|throughput_tokens_per_second|perf_throughput|tokens_per_second_per_gpu"
    )
    share = f"sum by (role, state) ({STATE_RATE}) / on (role) group_left () sum by (role) ({STATE_RATE})"
    last_step = f"time() - max({metric('last_step_timestamp_seconds', PROCESS)})"
    findings = f'{NAMESPACE}open_findings{{run_id=~"$run"}}'
    lost = f"sum(increase({NAMESPACE}telemetry_lost_total[$__range])) or vector(0)"
    for panel in (
        number("Current step", f"max({metric('current_step', PROCESS)})"),
        number("Time since last step", last_step, unit="s", warn=300, alarm=900),
        number("Processes", f"count({metric('process_last_seen_timestamp_seconds', PROCESS)})"),
        number("Open spans", f"sum({metric('open_spans', PROCESS)}) or vector(0)"),
        number("Oldest open span", f"max({metric('open_span_oldest_seconds', PROCESS)}) or vector(0)", unit="s"),
        number("Telemetry lost", lost, warn=1, description="Recorded, but dropped by a process."),
        graph(
            "Open findings",
            [(f"sum by (run_id, rule, severity) ({findings})", "{{run_id}} {{rule}} ({{severity}})")],
            stacked=True,
            description="Findings of the diagnosis, without those explained by others. See the page for details.",
        ),
        graph("Reward", [(any_metric("reward_mean|critic_rewards_mean|critic_score_mean"), "{{run_id}} {{__name__}}")]),
        graph("Step time", [(step_time, "{{run_id}} {{__name__}}")], unit="s"),
        graph("Throughput", [(throughput, "{{run_id}} {{__name__}}")], unit="tokens/s"),
        graph("Step", [(f"max by (run_id, role) ({metric('current_step', PROCESS)})", "{{run_id}} {{role}}")]),
        graph("Share of time by state", [(share, "{{role}} {{state}}")], unit="percentunit", stacked=True),
        graph(
            "GPU utilization",
            [(f"avg by (run_id, node) ({metric('gpu_utilization_ratio')})", "{{run_id}} {{node}}")],
            unit="percentunit",
            percent=True,
        ),
        graph(
            "Sample staleness",
            [(any_metric("staleness_mean|staleness_max|async_staleness_(mean|max)"), "{{run_id}} {{__name__}}")],
        ),
        graph("Queued for the trainer", [(any_metric("queue_depth|rollout_queue_depth"), "{{run_id}} {{__name__}}")]),
    ):
        made.with_panel(panel)
    return made


def timeline() -> dashboard.Dashboard:
    """Return the dashboard of the states of each lane."""
    made = new_dashboard(
        "timeline", "State timeline", "What each lane is doing, from the spans in Tempo.", refresh="10s"
    )
    made.with_variable(dashboard.TextBoxVariable("lane").label("Lane (regex)").default_value(".*"))
    made.with_panel(
        lanes(
            "States by lane",
            STATES + " | select(span.state_lane_id, span.state_name)",
            lane="state_lane_id",
            state=["state_name"],
            description="The newest 2000 traces, once their spans have ended. A nested state hides the one around it.",
        )
    )
    made.with_panel(
        lanes(
            "Session phases by lane",
            PHASES + " | select(span.state_lane_id, name)",
            lane="state_lane_id",
            state=["Name", "name"],
            description="The newest 2000 traces, once their spans have ended.",
        )
    )
    made.with_panel(
        graph(
            "Time in states (lanes)",
            [(f"sum by (role, state) ({STATE_RATE})", "{{role}} {{state}}")],
            stacked=True,
            description="Number of lanes in each state.",
        )
    )
    made.with_panel(
        graph(
            "Busy lanes by rank",
            [(f"sum by (role, rank) ({BUSY_RATE})", "{{role}} {{rank}}")],
            description="Without idle and wait: a rank far below the others is waiting, one far above is slow.",
        )
    )
    made.with_panel(
        spans_table("States as spans", STATES + " | select(span.state_lane_id, span.state_name, span.step)")
    )
    return made


def sessions() -> dashboard.Dashboard:
    """Return the dashboard of rollouts and agent sessions."""
    made = new_dashboard("sessions", "Rollouts and sessions", "Sessions, their outcome and duration, tools, tokens.")
    outcome = f"sum by (status) (rate({metric('sessions_total', PROCESS)}[$__rate_interval]))"
    samples = f"sum by (rank) (rate({metric('samples_total')}[$__rate_interval]))"
    in_flight = any_metric("running_samples|num_running_requests")
    tool_errors = f"sum by (tool, type) (rate({metric('tool_errors_total')}[$__rate_interval]))"
    lengths = metric("response_length_bucket")
    latency = [metric(f"sample_latency_{unit}_bucket") for unit in ("s", "seconds")]
    tools = [metric(f"tool_latency_{unit}_bucket") for unit in ("s", "seconds")]
    for panel in (
        number("Open sessions", f"sum({metric('open_sessions', PROCESS)}) or vector(0)", width=6),
        number("Sessions ended", f"sum(increase({metric('sessions_total', PROCESS)}[$__range]))", width=6),
        number("Samples in flight now", f"sum({in_flight})", width=6),
        number("Agent-loop sessions", f"count({metric('agent_loop_session_info')})", width=6),
        graph("Sessions by outcome", [(outcome, "{{status}}")], unit="ops", stacked=True),
        graph("Session duration", quantiles(metric("session_duration_seconds_bucket")), unit="s", exemplars=True),
        durations_over_time("Sessions by duration", metric("session_duration_seconds_bucket")),
        graph("Sample latency", quantiles(latency, "rank"), unit="s"),
        graph("Samples", [(samples, "{{rank}}")], unit="ops"),
        graph("Tokens per response", quantiles(lengths)),
        graph("Tool latency", quantiles(tools, "tool"), unit="s"),
        graph("Tool errors", [(tool_errors, "{{tool}} {{type}}")], unit="ops", stacked=True),
        graph("Samples in flight", [(in_flight, "{{role}} {{rank}}")], stacked=True),
        graph(
            "Oldest open work",
            [(f"max by (role, span_name) ({metric('open_span_oldest_seconds', PROCESS)})", "{{role}} {{span_name}}")],
            unit="s",
        ),
        spans_table(
            "Sessions as traces",
            f'{{name=~"{SESSION_SPANS}" && {TRACE}}} | select(span.reward, span.tokens, span.step)',
        ),
    ):
        made.with_panel(panel)
    return made


def hotspots() -> dashboard.Dashboard:
    """Return the dashboard of hotspots."""
    made = new_dashboard("hotspots", "Hotspots", "Where the time goes, by span.")
    names = f"label_values({metric('span_duration_seconds_count', RUN)}, span_name)"
    made.with_variable(choice("span", "Span", names))
    spans = PROCESS + ',span_name=~"$span"'
    buckets = metric("span_duration_seconds_bucket", RUN + ',role=~"$role",span_name=~"$span"')
    seconds = f"sum by (role, span_name) (increase({metric('span_seconds_total', spans)}[$__range]))"
    count = f"sum by (role, span_name) (increase({metric('spans_total', spans)}[$__range]))"
    failed = metric("spans_total", spans + ',status!="ok"')
    by = "sum by (le, role, span_name)"
    made.with_panel(
        listing(
            "Spans",
            [
                ("Total", seconds, "s"),
                ("Count", count, "short"),
                ("Average", f"{seconds} / {count}", "s"),
                ("p50", f"histogram_quantile(0.5, {by} (increase({buckets}[$__range])))", "s"),
                ("p95", f"histogram_quantile(0.95, {by} (increase({buckets}[$__range])))", "s"),
                ("p99", f"histogram_quantile(0.99, {by} (increase({buckets}[$__range])))", "s"),
                ("Not ok", f"sum by (role, span_name) (increase({failed}[$__range]))", "short"),
                ("Open", f"sum by (role, span_name) ({metric('open_spans', spans)})", "short"),
            ],
            description=(
                "The total adds up concurrent spans, so it may exceed the elapsed time. "
                "Count and total do not include spans before the first scrape of a series."
            ),
        )
    )
    rate = f"rate({metric('span_seconds_total', spans)}[$__rate_interval])"
    for panel in (
        graph("Time in spans", [(f"sum by (role, span_name) ({rate})", "{{role}} {{span_name}}")], stacked=True),
        graph("p95 by span", quantiles(buckets, "span_name")[1:2], unit="s", exemplars=True),
        durations_over_time("Durations of the selected spans", buckets),
        graph(
            "Time by rank",
            [(f"sum by (role, rank) ({rate})", "{{role}} {{rank}}")],
            description="For the selected spans: a straggler stands out.",
        ),
        graph(
            "Not ok",
            [(f"sum by (span_name, status) (rate({failed}[$__rate_interval]))", "{{span_name}} {{status}}")],
            unit="ops",
        ),
        graph(
            "Open",
            [(f"sum by (role, span_name) ({metric('open_spans', spans)})", "{{role}} {{span_name}}")],
        ),
    ):
        made.with_panel(panel)
    return made
