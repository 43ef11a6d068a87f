"""Exact figures that programs and scripts of the other systems rely on."""

from __future__ import annotations

from rl_insight.compat.areal.config import AReaLConfig
from rl_insight.compat.skyrl import RayGpuMonitor
from rl_insight.compat.xtuner import otlp_file, producer, runtime
from rl_insight.config import load_config
from rl_insight.hub import ray_hub
from rl_insight.schema.names import TRAINER_JOB
from rl_insight.server.config import load_settings


def test_a_trainer_has_the_defaults_of_0_3_0():
    config = load_config(None, environ={})
    assert (config.server.namespace, config.prometheus.metrics_report_port) == ("rl_insight_monitor", 9092)


def test_a_server_has_the_ports_of_0_3_0():
    settings = load_settings(None)
    assert (settings.port, settings.otlp_http_port) == (18080, 4318)
    stack = settings.stack
    assert (stack.prometheus.port, stack.tempo.port, stack.grafana.port) == (9090, 3200, 3000)


def test_a_hub_has_the_names_of_0_3_0():
    assert (ray_hub.NAME_PREFIX, ray_hub.NAMESPACE) == ("RLInsightMonitorHub_", "rl-insight-monitor")
    assert TRAINER_JOB == "trainer_metrics"


def test_areals_tracer_has_its_defaults():
    config = AReaLConfig()
    assert (config.enabled, config.save_interval, config.sessions_enabled, config.flush_threshold) == (
        False, 1, False, 256
    )  # fmt: skip


def test_xtuners_files_have_their_sizes_and_its_calls_their_times():
    assert (producer._SHARD_BYTES, otlp_file._MAX_BYTES) == (256 * 1024**2, 64_000_000)
    assert (runtime._FLUSH_TIMEOUT_S, runtime._CLOSE_TIMEOUT_S) == (0.2, 2.0)


def test_skyrls_monitor_has_its_defaults():
    assert RayGpuMonitor().collection_interval == 5.0
