from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
import time
import urllib.request
from itertools import pairwise
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from rl_insight.hardware import HardwareMonitor, Reading, Source
from rl_insight.monitor import Monitor
from rl_insight.schema import BatchBuilder, Process
from rl_insight.server import gpu_usage
from rl_insight.server.gpu_usage import GPU_USAGE_NAMES, GpuUsage

SECOND = 10**9
NAMESPACE = "rl_insight_monitor_"
ROOT = Path(__file__).parents[2]
RUN = {"experiment_name": "e", "project": "p", "run_id": "r1"}


@pytest.fixture
def record(services):
    """Store states and GPU samples; times are seconds before a fixed moment shortly ago."""
    now_ns = time.time_ns()
    sequences = {}

    def store(states=(), samples=(), *, role="rollout", host="node", process_id=None):
        builder = BatchBuilder()
        for number, (name, start, end, step) in enumerate(states):
            builder.add_span(
                span_id=hash((name, start, end, role, host, number)) % 2**62 + 1,
                trace=(1, 2),
                name=name,
                start_ns=int(now_ns + start * SECOND),
                duration_ns=int((end - start) * SECOND),
                segment="state_interval",
                step=step,
            )
        for metric, gpu, when, value in samples:
            labels = json.dumps({"gpu": gpu, "host": host, "node": host, "source": "test"})
            series = builder.add_series(metric, "gauge", "", labels)
            builder.add_sample(series, time_ns=int(now_ns + when * SECOND), value=value)
        who = process_id or f"{role}-{host}"
        sequences[who] = sequences.get(who, 0) + 1
        process = Process(
            process_id=who, run_id="r1", host=host, pid=1, role=role, project="p", experiment_name="e", rank=0
        )
        batch = builder.build(process, sequence=sequences[who], sent_ns=time.time_ns())
        assert services.writer.submit(batch, 100).result(20)
        return now_ns

    return store


def gpu(util, power, start, end, *, number="0", every=5):
    rows = []
    for when in range(start, end + 1, every):
        rows += [
            ("gpu_utilization_ratio", number, when, util),
            ("gpu_memory_used_bytes", number, when, 4e9),
            ("gpu_power_watts", number, when, power),
        ]
    return rows


def shown(families):
    """Return the values of our families by name and labels."""
    return {(family.name, *sorted(labels.items())): value for family in families for labels, value in family.values}


def scraped(page, parse=parse_text):
    found = {}
    for family in parse(page):
        for sample in family.samples:
            if sample.name.removeprefix(NAMESPACE) in GPU_USAGE_NAMES:
                labels = {name: value for name, value in sample.labels.items() if name not in RUN}
                assert {name: sample.labels[name] for name in RUN} == RUN
                found[(sample.name.removeprefix(NAMESPACE), *labels.values())] = sample.value
    return found


def test_page_agrees_with_the_query_api(services, client, record):
    record([("gen", -300, -200, 1), ("gen", -120, -20, 2)], role="rollout")
    record([("train", -200, -120, 1)], role='tra"iner')
    record([("idle", -300, -20, None)], role="judge", host="no-gpus")
    record(samples=[*gpu(0.2, 100.0, -300, -20), *gpu(0.9, 300.0, -300, -20, number="1")], role="driver")
    services.gpu_usage.refresh()
    page = scraped(client.get("/metrics").text)
    answer = client.get("/api/v1/hardware/by_state").json()
    assert {state["name"] for state in answer["states"]} == {"gen", "train", "idle"}
    for state in answer["states"]:
        labels = (state["role"], state["name"])
        if state["name"] == "idle":
            assert not any(labels == key[1:3] for key in page)
            continue
        seconds = page[("state_gpu_seconds_total", *labels, "utilization_ratio")]
        assert page[("state_gpu_busy_seconds_total", *labels)] / seconds == pytest.approx(state["utilization_ratio"])
        seconds = page[("state_gpu_seconds_total", *labels, "memory_used_bytes")]
        memory = page[("state_gpu_memory_byte_seconds_total", *labels)] / seconds
        assert memory == pytest.approx(state["memory_used_bytes"])
        assert page[("state_gpu_energy_joules_total", *labels)] == pytest.approx(state["energy_joules"])
    assert page["step_gpu_energy_joules_total",] == pytest.approx(sum(row["energy_joules"] for row in answer["steps"]))
    assert page["last_step_gpu_energy_joules",] == pytest.approx(answer["steps"][0]["energy_joules"])
    assert scraped(client.get("/metrics", headers={"accept": "application/openmetrics-text"}).text, parse_openmetrics)


def test_promtool_finds_nothing_to_complain_about(services, client, record):
    if shutil.which("promtool") is None:
        pytest.skip("the program promtool is not installed")
    record([("gen", -300, -100, 1)])
    record(samples=gpu(0.5, 100.0, -300, -100), role="driver")
    services.gpu_usage.refresh()
    page = client.get("/metrics").content
    ours = b"".join(line for line in page.splitlines(keepends=True) if b"_gpu_" in line and b"telemetry" not in line)
    assert b"state_gpu_busy_seconds_total{" in ours
    result = subprocess.run(["promtool", "check", "metrics"], input=ours, capture_output=True, check=False, timeout=60)
    problems = [line for line in result.stderr.decode().splitlines() if "monitor_gpu_" not in line]
    assert problems == []


def test_totals_grow_as_time_passes_and_end_where_the_api_is(services, record):
    moment = record([("gen", -100, -50, 1), ("train", -50, 0, 1), ("gen", 0, 80, 2)])
    record(samples=gpu(0.5, 200.0, -100, 100), role="driver")
    clock = [moment]
    usage = GpuUsage(services.runs, clock=lambda: clock[0])
    seen = []
    for seconds in range(0, 240, 15):
        clock[0] = moment + seconds * SECOND
        if seconds <= 90:  # the run is being written
            usage.note("r1", [services_batch()])
        usage.refresh()
        seen.append(shown(usage.families()))
    for before, after in pairwise(seen):
        counters = [key for key in before if not key[0].startswith("last_")]
        assert all(after[key] >= before[key] - 1e-9 for key in counters)
    labels = sorted({**RUN, "role": "rollout", "state": "gen"}.items())
    assert seen[0][("state_gpu_busy_seconds", *labels)] == pytest.approx(25.0)
    assert seen[-1][("state_gpu_busy_seconds", *labels)] == pytest.approx(65.0)
    assert seen[-1][("state_gpu_energy_joules", *labels)] == pytest.approx(130 * 200.0)
    last = [found.get(("last_step_gpu_energy_joules", *sorted(RUN.items()))) for found in seen]
    assert last[0] is None
    steps = dict.fromkeys(round(value) for value in last if value is not None)
    assert list(steps) == [100 * 200, 80 * 200]


def services_batch(run_id="r1"):
    process = Process(process_id="any", run_id=run_id, host="node", pid=1, project="p", experiment_name="e")
    return BatchBuilder().build(process, sequence=1, sent_ns=time.time_ns())


def test_sample_that_comes_late_is_counted_and_no_total_falls(services, record):
    moment = record([("gen", -40, -10, None)])
    record(samples=[("gpu_utilization_ratio", "0", -40, 1.0), ("gpu_utilization_ratio", "0", -10, 1.0)], role="driver")
    usage = GpuUsage(services.runs, clock=lambda: moment)
    usage.note("r1", [services_batch()])
    usage.refresh()
    before = shown(usage.families())
    record(samples=[("gpu_utilization_ratio", "0", -25, 0.0)], role="driver")
    usage.refresh()
    assert shown(usage.families()) == before
    record(samples=[("gpu_utilization_ratio", "1", when, 1.0) for when in (-40, -10)], role="driver")
    usage.refresh()
    key = (
        "state_gpu_seconds",
        *sorted({**RUN, "role": "rollout", "state": "gen", "quantity": "utilization_ratio"}.items()),
    )
    assert shown(usage.families())[key] == pytest.approx(2 * before[key])


def test_number_of_series_is_bounded(services, record, monkeypatch):
    monkeypatch.setattr(gpu_usage, "_MAX_STATES", 5)
    moment = record([(f"state-{number}", -100, -50, number) for number in range(20)])
    record(samples=gpu(0.5, 100.0, -100, -50), role="driver")
    usage = GpuUsage(services.runs, clock=lambda: moment)
    usage.note("r1", [services_batch()])
    usage.refresh()
    busy = next(family for family in usage.families() if family.name == "state_gpu_busy_seconds")
    assert len(busy.values) == 6
    assert sum(value for _labels, value in busy.values) == pytest.approx(20 * 25.0)
    assert "__overflow__" in {labels["state"] for labels, _value in busy.values}


def test_run_without_gpus_shows_nothing_and_a_deleted_run_is_forgotten(services, record):
    moment = record([("gen", -100, -50, 1)])
    usage = GpuUsage(services.runs, clock=lambda: moment)
    usage.note("r1", [services_batch()])
    usage.note("never-stored", [services_batch("never-stored")])
    usage.refresh()
    assert usage.families() == []
    record(samples=gpu(0.5, 100.0, -100, -50), role="driver")
    usage.refresh()
    assert usage.families()
    services.runs.delete("r1")
    usage.note("r1", [services_batch()])
    usage.refresh()
    assert usage.families() == []


def test_silent_run_leaves_the_page(services, record):
    moment = record([("gen", -100, -50, 1)])
    record(samples=gpu(0.5, 100.0, -100, -50), role="driver")
    clock = [moment]
    usage = GpuUsage(services.runs, clock=lambda: clock[0])
    usage.note("r1", [services_batch()])
    usage.refresh()
    assert usage.families()
    clock[0] += 2 * 3600 * SECOND
    usage.refresh()
    assert usage.families() == []


def test_every_name_is_documented():
    rows = set(re.findall(r"^\| `(\w+)` \|", (ROOT / "docs" / "hardware.md").read_text(), re.MULTILINE))
    assert rows >= GPU_USAGE_NAMES


class SteadyGpu(Source):
    name = "steady"

    def is_available(self):
        return True

    def read(self, stop):
        values = {"utilization_ratio": 0.25, "memory_used_bytes": 1e9, "power_watts": 400.0}
        return [Reading(node="n", host=self.host, kind="gpu", index="0", values=values)]


def test_what_a_process_records_is_scraped_from_a_server(start_server, wait_until):
    server = start_server()
    monitor = Monitor()
    monitor.init("p", "e", {"server": {"url": server.url}}, run_id="r1", role="trainer")
    source = SteadyGpu()
    source.host = monitor._pipeline.flusher.process.host
    page = {}

    def is_shown():
        with urllib.request.urlopen(f"{server.url}/metrics", timeout=20) as answer:
            page.update(scraped(answer.read().decode()))
        return page

    try:
        with HardwareMonitor(0.2, [source], monitor), monitor.trace_state("update"):
            wait_until(is_shown, 60)
    finally:
        monitor.finish()
    labels = ("trainer", "update")
    seconds = page[("state_gpu_seconds_total", *labels, "utilization_ratio")]
    assert seconds > 0
    assert page[("state_gpu_busy_seconds_total", *labels)] / seconds == pytest.approx(0.25)
    assert math.isclose(page[("state_gpu_energy_joules_total", *labels)], 400.0 * seconds, rel_tol=0.2)
