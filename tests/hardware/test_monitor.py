from __future__ import annotations

import logging
import threading

import pytest

from rl_insight.hardware import HardwareMonitor, HostSource, Reading, Source, monitor_hardware
from rl_insight.hardware import selection as hardware_selection
from tests.waiting import wait_until


class ScriptedSource(Source):
    """Returns prepared readings, then repeats the last."""

    name = "scripted"

    def __init__(self, *answers):
        self.answers = list(answers)
        self.reads = 0
        self.closed = 0
        self.block = threading.Event()
        self.block.set()

    def is_available(self):
        return True

    def read(self, stop):
        self.block.wait(20)
        answer = self.answers[min(self.reads, len(self.answers) - 1)]
        self.reads += 1
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self):
        self.closed += 1


def gpu(util, *, index="0", node="a", stamp=0, **values):
    return Reading(
        node=node,
        host=f"host-{node}",
        kind="gpu",
        index=index,
        uuid=f"GPU-{index}",
        values={"utilization_ratio": util, **values},
        stamp=stamp,
    )


@pytest.fixture
def start(recording):
    started = []

    def make(*sources, interval_s=0.05):
        hardware = HardwareMonitor(interval_s, sources, recording.monitor)
        started.append(hardware)
        return hardware.start()

    yield make
    for hardware in started:
        hardware.stop()


def test_readings_become_metrics_with_labels(start, recording):
    source = ScriptedSource([gpu(0.25, power_watts=350.0)])
    start(source)
    wait_until(lambda: source.reads >= 1 and recording.samples("gpu_power_watts"))
    sample = recording.samples("gpu_utilization_ratio")[0]
    assert sample.value == 0.25
    assert sample.labels == {"source": "scripted", "node": "a", "host": "host-a", "gpu": "0"}
    assert recording.samples("gpu_info")[0].labels["uuid"] == "GPU-0"


def test_recorded_readings_carry_the_training_step(start, recording):
    recording.monitor.set_step(7)
    start(ScriptedSource([gpu(0.25)]))
    wait_until(lambda: recording.samples("gpu_utilization_ratio"))
    assert recording.samples("gpu_utilization_ratio")[0].step == 7


def test_totals_are_counted_as_growth_and_survive_a_reset(start, recording):
    joules = [gpu(0.1, energy_joules=value) for value in (1000.0, 1010.0, 5.0, 8.0)]
    source = ScriptedSource(*[[reading] for reading in joules])
    start(source)
    wait_until(lambda: source.reads >= 6)
    assert recording.samples("gpu_energy_joules")[-1].value == 13.0


def test_steady_quantities_are_recorded_when_they_change(start, recording):
    source = ScriptedSource(*[[gpu(0.1, memory_total_bytes=value)] for value in (5.0, 5.0, 6.0)])
    start(source)
    wait_until(lambda: source.reads >= 6)
    assert [sample.value for sample in recording.samples("gpu_memory_total_bytes")] == [5.0, 6.0]


def test_flush_returns_means_and_starts_over(start):
    source = ScriptedSource([gpu(0.2)], [gpu(0.6)], [])
    hardware = start(source)
    wait_until(lambda: source.reads >= 3)
    means = hardware.flush()
    assert means == {"ray/node.0.gpu.0.util": pytest.approx(40.0), "ray/gpu.util.avg": pytest.approx(40.0)}
    assert hardware.flush(timeout_s=0.0) == {}


def test_step_shorter_than_the_interval_gets_a_reading_of_its_own(start):
    source = ScriptedSource([gpu(0.2)], [gpu(0.6)])
    hardware = start(source, interval_s=3600)
    wait_until(lambda: source.reads == 1)
    assert hardware.flush(20)["ray/gpu.util.avg"] == pytest.approx(20.0)
    assert hardware.flush(20)["ray/gpu.util.avg"] == pytest.approx(60.0)


def test_a_reading_under_way_is_enough_for_a_flush(start):
    source = ScriptedSource([gpu(0.5)])
    source.block.clear()
    hardware = start(source, interval_s=3600)
    flushed = []
    thread = threading.Thread(target=lambda: flushed.append(hardware.flush(20)))
    thread.start()
    wait_until(hardware._run.wake.is_set)
    source.block.set()
    thread.join(20)
    assert flushed[0]
    hardware.stop()
    assert source.reads == 1


def test_flush_gives_up_on_a_source_that_hangs(start):
    source = ScriptedSource([gpu(0.2)])
    source.block.clear()
    hardware = start(source, interval_s=3600)
    assert hardware.flush(timeout_s=0.05) == {}
    source.block.set()


def test_same_measurement_seen_twice_counts_once_in_the_mean(start):
    source = ScriptedSource([gpu(0.2, stamp=1)], [gpu(0.2, stamp=1)], [gpu(0.2, stamp=1)], [gpu(0.8, stamp=2)], [])
    hardware = start(source)
    wait_until(lambda: source.reads >= 6)
    assert hardware.flush()["ray/gpu.util.avg"] == pytest.approx(50.0)


def test_repeated_measurement_is_used_when_a_step_has_no_new_one(start):
    source = ScriptedSource([gpu(0.2, stamp=1)])
    hardware = start(source, interval_s=3600)
    assert hardware.flush(20)["ray/gpu.util.avg"] == pytest.approx(20.0)
    assert hardware.flush(20)["ray/gpu.util.avg"] == pytest.approx(20.0)


def test_repeated_measurement_gives_way_to_a_new_one_of_the_step(start):
    source = ScriptedSource([gpu(0.2, stamp=1)], [gpu(0.2, stamp=1)], [gpu(0.8, stamp=2)])
    hardware = start(source, interval_s=3600)
    hardware.flush(20)
    hardware._run.wake.set()
    wait_until(lambda: source.reads == 2)
    hardware._run.wake.set()
    wait_until(lambda: hardware.get_status()["samples"] == 3)
    assert hardware.flush(20)["ray/gpu.util.avg"] == pytest.approx(80.0)


def test_repeated_measurement_is_recorded_once(start, recording):
    source = ScriptedSource([gpu(0.2, stamp=1)])
    start(source)
    wait_until(lambda: source.reads >= 5)
    assert len(recording.samples("gpu_utilization_ratio")) == 1


def test_concurrent_flushes_drain_once(start):
    source = ScriptedSource([gpu(0.2)], [])
    hardware = start(source)
    wait_until(lambda: source.reads >= 3)
    results = []
    threads = [threading.Thread(target=lambda: results.append(hardware.flush(0.0))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert sorted(map(len, results)) == [0] * 7 + [2]


def test_average_is_the_plain_mean_of_the_devices_means(start):
    source = ScriptedSource([gpu(0.1), gpu(0.8, index="1")], [gpu(0.3)], [])
    hardware = start(source)
    wait_until(lambda: source.reads >= 3)
    means = hardware.flush()
    assert means["ray/node.0.gpu.0.util"] == pytest.approx(20.0)
    assert means["ray/gpu.util.avg"] == pytest.approx(50.0)


def test_average_without_inputs_is_omitted_and_unknown_is_absent(start):
    nodes = [Reading(node="a", host="a", kind="node", values={"up": 0.0})]
    source = ScriptedSource([*nodes, gpu(float("nan"))])
    hardware = start(source)
    wait_until(lambda: source.reads >= 2)
    assert hardware.flush() == {}


def test_nodes_keep_their_index_when_others_leave_and_join(start):
    source = ScriptedSource(
        [gpu(0.1, node="a"), gpu(0.2, node="b")], [gpu(0.2, node="b")], [gpu(0.2, node="b"), gpu(0.3, node="c")]
    )
    hardware = start(source, interval_s=3600)
    assert {"ray/node.0.gpu.0.util", "ray/node.1.gpu.0.util"} <= hardware.flush(20).keys()
    assert hardware.flush(20).keys() == {"ray/node.1.gpu.0.util", "ray/gpu.util.avg"}
    assert {"ray/node.1.gpu.0.util", "ray/node.2.gpu.0.util"} <= hardware.flush(20).keys()


def test_source_that_raises_does_not_stop_the_others(start, caplog):
    bad, good = ScriptedSource(OSError("no such device")), ScriptedSource([gpu(0.2)])
    hardware = start(bad, good)
    wait_until(lambda: good.reads >= 3)
    assert hardware.flush()["ray/gpu.util.avg"] == pytest.approx(20.0)
    assert hardware.get_status()["failed_reads"] >= 2
    assert sum("no such device" in record.getMessage() for record in caplog.records) == 1


def test_stop_does_not_wait_for_the_interval(start):
    source = ScriptedSource([gpu(0.2)])
    hardware = start(source, interval_s=3600)
    wait_until(lambda: source.reads == 1)
    hardware.stop()
    wait_until(lambda: source.closed == 1, 5)
    assert not hardware.is_running


def test_stop_does_not_wait_for_a_source_that_hangs(start):
    source = ScriptedSource([gpu(0.2)])
    source.block.clear()
    hardware = start(source, interval_s=3600)
    stopper = threading.Thread(target=hardware.stop)
    stopper.start()
    stopper.join(10)
    assert not stopper.is_alive()
    assert source.reads == 0
    source.block.set()


def test_start_and_stop_can_be_repeated(start):
    source = ScriptedSource([gpu(0.2)])
    hardware = start(source)
    assert hardware.start() is hardware
    threads = [thread for thread in threading.enumerate() if thread.name == "rl-insight-hardware"]
    assert len(threads) == 1
    hardware.stop()
    hardware.stop()
    before = source.reads
    hardware.start()
    wait_until(lambda: source.reads > before)


def test_nothing_to_watch_is_a_clear_warning(monkeypatch, caplog):
    monkeypatch.setattr(hardware_selection, "_automatic", list)
    with caplog.at_level(logging.WARNING):
        hardware = monitor_hardware()
    assert "hardware is not monitored" in caplog.text
    assert not hardware.is_running
    assert hardware.flush() == {}
    hardware.stop()


def test_ranks_that_share_a_machine_watch_only_themselves(monkeypatch, recording):
    monkeypatch.setenv("LOCAL_RANK", "3")
    with HardwareMonitor(0.05, "auto", recording.monitor):
        wait_until(lambda: recording.samples("process_resident_memory_bytes"))
        assert recording.samples("node_memory_used_bytes") == []


def test_works_without_an_initialized_monitor():
    with HardwareMonitor(3600, [HostSource()]) as hardware:
        assert hardware.flush(20)["ray/cpu_ram_used_gb.avg"] > 0


@pytest.mark.parametrize("interval", [0, -1, float("nan")])
def test_bad_interval_is_refused(interval):
    with pytest.raises(ValueError, match="interval_s"):
        HardwareMonitor(interval)


def test_unknown_source_is_refused_with_the_known_names():
    with pytest.raises(ValueError, match="ray, nvml, host"):
        monitor_hardware(sources=["tpu"])
