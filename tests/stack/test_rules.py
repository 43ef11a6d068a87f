"""The alert rules: valid, silent on a healthy run, and firing when something is wrong."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from rl_insight.stack.render import package_files

RULES = package_files("rules") / "rl-insight.yml"
RUN = 'project="p",experiment_name="e",run_id="r"'


@pytest.fixture
def promtool():
    path = shutil.which("promtool")
    if path is None:
        pytest.skip("the program promtool is not installed")
    return lambda *words, **fields: subprocess.run(
        [path, *words], capture_output=True, text=True, check=False, **fields
    )


def test_rules_are_valid(promtool):
    done = promtool("check", "rules", str(RULES))
    assert done.returncode == 0, done.stdout + done.stderr


HEALTHY = [
    (f'rl_insight_monitor_last_step_timestamp_seconds{{{RUN},role="trainer"}}', "0+60x60"),
    (f'rl_insight_monitor_open_span_oldest_seconds{{{RUN},role="rollout",span_name="generate"}}', "30x60"),
    (f'rl_insight_monitor_span_duration_seconds_sum{{{RUN},role="rollout",span_name="generate"}}', "0+200x60"),
    (f'rl_insight_monitor_span_duration_seconds_count{{{RUN},role="rollout",span_name="generate"}}', "0+10x60"),
    ('rl_insight_monitor_telemetry_lost_total{kind="spans",reason="full"}', "7x60"),
    ('rl_insight_monitor_collector_sink_dropped_total{sink="tempo"}', "0x60"),
    ('rl_insight_monitor_collector_processes{state="silent"}', "0x60"),
    (f'rl_insight_monitor_gpu_utilization_ratio{{{RUN},node="0",gpu="0"}}', "0.9x60"),
    (f'rl_insight_monitor_state_seconds_total{{{RUN},role="rollout",state="generate"}}', "0+120x60"),
    ('rl_insight_monitor_open_findings{run_id="r",rule="non_finite",severity="critical"}', "0x60"),
    ('rl_insight_monitor_open_findings{run_id="r",rule="straggler",severity="warning"}', "0x60"),
    ('rl_insight_monitor_open_findings{run_id="r",rule="tip",severity="info"}', "1x60"),
]


def changed(name, values):
    """The healthy series, with one of them changed."""
    found = [series for series, _ in HEALTHY if name in series]
    assert len(found) == 1
    return [(series, values if series == found[0] else healthy) for series, healthy in HEALTHY]


def check(promtool, tmp_path: Path, series, expected):
    """Simulate an hour; `expected` maps alerts to how many of them fire at its end."""
    names = re.findall(r"alert: (\w+)", RULES.read_text())
    tests = {
        "rule_files": [str(RULES)],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [{"series": name, "values": values} for name, values in series],
                "promql_expr_test": [
                    {
                        "expr": f'count(ALERTS{{alertname="{name}",alertstate="firing"}}) or vector(0)',
                        "eval_time": "50m",
                        "exp_samples": [{"labels": "{}", "value": expected.get(name, 0)}],
                    }
                    for name in names
                ],
            }
        ],
    }
    path = tmp_path / "tests.yml"
    path.write_text(json.dumps(tests))
    done = promtool("test", "rules", str(path))
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_healthy_run_is_silent(promtool, tmp_path):
    check(promtool, tmp_path, HEALTHY, {})


@pytest.mark.parametrize(
    ("alert", "name", "values"),
    [
        ("StepStalled", "last_step_timestamp", "0+60x20 1200x40"),
        ("WorkHangs", "open_span_oldest", "0+60x60"),
        ("TelemetryLost", "telemetry_lost", "0+5x60"),
        ("TelemetryBatchesDropped", "sink_dropped", "0+1x60"),
        ("ProcessSilent", "collector_processes", "0x30 2x30"),
        ("GpuIdleInRollout", "gpu_utilization", "0.9x10 0.05x50"),
        ("CriticalFinding", "non_finite", "0x48 1x12"),
        ("WarningFinding", "straggler", "0x30 1x30"),
    ],
)
def test_an_alert_fires_when_something_is_wrong(alert, name, values, promtool, tmp_path):
    check(promtool, tmp_path, changed(name, values), {alert: 1})


def test_idle_gpus_outside_of_rollout_are_nobodys_concern(promtool, tmp_path):
    series = [
        (name, "0x60" if "state_seconds" in name else "0.05x60" if "gpu_utilization" in name else values)
        for name, values in HEALTHY
    ]
    check(promtool, tmp_path, series, {})


def test_long_running_work_without_a_usual_duration_is_not_a_hang(promtool, tmp_path):
    series = [
        (
            name.replace("generate", "main") if "open_span" in name else name,
            "0+60x60" if "open_span" in name else values,
        )
        for name, values in HEALTHY
    ]
    check(promtool, tmp_path, series, {})
