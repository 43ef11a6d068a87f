"""Dashboards about machines: accelerators, hosts, and the collector."""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard

from dashboards.parts import NAMESPACE, RUN, choice, graph, metric, new_dashboard, number

NODE = f'{RUN},node=~"$node"'


def hardware() -> dashboard.Dashboard:
    """Return the dashboard of accelerators and hosts."""
    made = new_dashboard(
        "hardware", "Hardware", "Accelerators and hosts: utilization, memory, power, temperature, traffic."
    )
    made.with_variable(choice("node", "Node", f"label_values({metric('node_up', RUN)}, node)"))
    busy = metric("gpu_utilization_ratio", NODE)
    states = metric("state_seconds_total", RUN + ',state=~"generate.*|rollout.*"')
    used, total = metric("gpu_memory_used_bytes", NODE), metric("gpu_memory_total_bytes", NODE)
    gpu = "{{node}} GPU {{gpu}}"
    node_used, node_total = metric("node_memory_used_bytes", NODE), metric("node_memory_total_bytes", NODE)
    disk_used, disk_total = metric("node_disk_used_bytes", NODE), metric("node_disk_total_bytes", NODE)

    def rate(name: str) -> str:
        return f"rate({metric(name, NODE)}[$__rate_interval])"

    for panel in (
        number("GPUs", f"count({busy})", width=6),
        number("GPU utilization now", f"avg({busy})", unit="percentunit", width=6),
        number("GPU memory used now", f"sum({used}) / sum({total})", unit="percentunit", width=6),
        number("Nodes up", f"sum({metric('node_up', NODE)})", width=6),
        graph("GPU utilization", [(busy, gpu)], unit="percentunit", percent=True),
        graph(
            "GPU utilization and generating lanes",
            [
                (f"avg by (run_id) ({busy})", "{{run_id}} GPU utilization"),
                (f"sum by (run_id) (rate({states}[$__rate_interval]))", "{{run_id}} lanes that generate"),
            ],
        ),
        graph("GPU memory", [(used, gpu)], unit="bytes"),
        graph("GPU memory used", [(f"{used} / {total}", gpu)], unit="percentunit", percent=True),
        graph("Power", [(metric("gpu_power_watts", NODE), gpu)], unit="watt"),
        graph("Temperature", [(metric("gpu_temperature_celsius", NODE), gpu)], unit="celsius"),
        graph("CPU", [(metric("node_cpu_utilization_ratio", NODE), "{{node}}")], unit="percentunit", percent=True),
        graph("RAM used", [(f"{node_used} / {node_total}", "{{node}}")], unit="percentunit", percent=True),
        graph("Disk used", [(f"{disk_used} / {disk_total}", "{{node}}")], unit="percentunit", percent=True),
        graph(
            "Network",
            [
                (rate("node_network_received_bytes_total"), "{{node}} received"),
                (rate("node_network_sent_bytes_total"), "{{node}} sent"),
            ],
            unit="Bps",
        ),
    ):
        made.with_panel(panel)
    return made


def collector() -> dashboard.Dashboard:
    """Return the dashboard of RL-Insight's own health."""
    made = new_dashboard("collector", "Collector health", "What the server receives, drops and forwards.")

    def rate(name: str, by: str = "") -> str:
        total = f"rate({NAMESPACE}{name}[$__rate_interval])"
        return f"sum by ({by}) ({total})" if by else f"sum({total})"

    def own(name: str) -> str:
        return f"{NAMESPACE}{name}"

    for panel in (
        number("Live processes", f'{own("collector_processes")}{{state="live"}}'),
        number("Silent processes", f'{own("collector_processes")}{{state="silent"}}', warn=1),
        number("Series", own("collector_series")),
        number("Missing batches", own("collector_missing_batches_total"), warn=1),
        number("Ingest lag", own("server_ingest_lag_seconds"), unit="s", warn=2, alarm=10),
        number("Server memory", own("server_memory_bytes"), unit="bytes"),
        graph("Rows received", [(rate("collector_events_total", "kind"), "{{kind}}")], unit="rowsps"),
        graph("Bytes received", [(rate("collector_bytes_total"), "batches")], unit="Bps"),
        graph(
            "Batches",
            [
                (rate("collector_batches_total"), "received"),
                (rate("collector_duplicate_batches_total"), "duplicate"),
                (f"{rate('collector_refused_batches_total', 'reason')} or vector(0)", "rejected {{reason}}"),
            ],
            unit="ops",
        ),
        graph(
            "Telemetry lost by processes",
            [(f"{rate('telemetry_lost_total', 'kind, reason')} or vector(0)", "{{kind}} {{reason}}")],
            unit="ops",
        ),
        graph("Queued for sinks", [(own("collector_sink_queued"), "{{sink}}")]),
        graph(
            "Sinks",
            [
                (rate("collector_sink_written_total", "sink"), "{{sink}} written"),
                (rate("collector_sink_failed_total", "sink"), "{{sink}} failed"),
                (rate("collector_sink_dropped_total", "sink"), "{{sink}} dropped"),
            ],
            unit="ops",
        ),
        graph("Pending writes", [(own("server_pending_bytes"), "bytes")], unit="bytes"),
        graph("Commit duration", [(own("server_commit_seconds"), "last commit")], unit="s"),
        graph(
            "Requests",
            [
                (rate("server_requests_total", "route"), "{{route}}"),
                (f"{rate('server_refused_total', 'route, reason')} or vector(0)", "{{route}} rejected: {{reason}}"),
            ],
            unit="reqps",
        ),
        graph("Process clock offset", [(own("collector_clock_offset_seconds"), "{{process_id}}")], unit="s"),
        graph(
            "Scrape targets",
            [(own("server_targets"), "{{state}}"), ("sum by (job) (up)", "{{job}} up in Prometheus")],
        ),
    ):
        made.with_panel(panel)
    return made
