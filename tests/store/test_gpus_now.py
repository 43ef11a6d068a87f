"""GPUs now: figures computed by hand, for runs with several hosts, sources, units and dead GPUs."""

from __future__ import annotations

import json

import pytest

from rl_insight.store.queries.gpus_now import GpuValue, gpus_now

SECOND = 1_000_000_000


def read(maker, metric, value, at, **labels):
    maker.sample(metric, value, at=int(at * SECOND), labels=json.dumps(labels))


def busy(maker, value, at, host, gpu, **labels):
    read(maker, "gpu_utilization_ratio", value, at, host=host, gpu=gpu, source="nvml", **labels)


def asked(store, *makers, **conditions):
    for maker in makers:
        store.commit([maker.build()])
    with store.reader() as cursor:
        return gpus_now(cursor, **conditions)


def quantity(found, name="utilization_ratio"):
    return next((one for one in found.quantities if one.quantity == name), None)


def of_devices(found):
    return {(one.host, one.gpu): (one.utilization_ratio, one.age_s, one.is_stale) for one in found.devices}


def test_every_gpu_of_every_host_counts_once_with_its_last_reading(store, make, begin_ns):
    maker = make("m", role="driver")
    for at in range(0, 100, 5):
        busy(maker, 0.1, at, "a", "0")  # twenty readings, and one for each of the others
    busy(maker, 0.4, 100, "a", "0")
    busy(maker, 0.8, 98, "a", "1")
    busy(maker, 0.9, 96, "b", "0")
    found = asked(store, maker)
    assert (found.time_ns, found.gpus, found.stale, found.max_age_s) == (begin_ns + 100 * SECOND, 3, 0, 30.0)
    assert of_devices(found) == {("a", "0"): (0.4, 0, False), ("a", "1"): (0.8, 2, False), ("b", "0"): (0.9, 4, False)}
    use = quantity(found)
    assert (use.gpus, use.mean) == (3, pytest.approx(0.7))
    assert (use.lowest, use.highest) == (GpuValue("a", "0", 0.4), GpuValue("b", "0", 0.9))
    assert (found.metric, found.factor) == ("gpu_utilization_ratio", 1.0)


def test_a_gpu_that_is_silent_is_listed_but_not_part_of_the_mean(store, make):
    maker = make("m")
    busy(maker, 0.0, 0, "a", "0")
    busy(maker, 1.0, 69.9, "a", "1")
    busy(maker, 0.5, 70, "a", "2")
    busy(maker, 0.9, 100, "a", "3")
    found = asked(store, maker)
    assert of_devices(found) == {
        ("a", "0"): (0.0, 100.0, True),
        ("a", "1"): (1.0, pytest.approx(30.1), True),
        ("a", "2"): (0.5, 30.0, False),
        ("a", "3"): (0.9, 0.0, False),
    }
    assert (found.gpus, found.stale) == (4, 2)
    assert (quantity(found).gpus, quantity(found).mean) == (2, pytest.approx(0.7))


def test_now_is_the_latest_record_of_the_run_not_of_the_gpus(store, make, begin_ns):
    maker = make("m")
    busy(maker, 0.9, 0, "a", "0")
    maker.span("update", start=0, duration=60 * SECOND)
    found = asked(store, maker)
    assert (found.time_ns, found.gpus, found.stale) == (begin_ns + 60 * SECOND, 1, 1)
    assert found.quantities == []
    assert found.metric == "gpu_utilization_ratio"


def test_percent_and_ratio_are_one_scale(store, make):
    maker, exporter = make("m"), make("scrape-dcgm")
    busy(maker, 0.25, 10, "a", "0")
    read(exporter, "DCGM_FI_DEV_GPU_UTIL", 75.0, 10, Hostname="b", gpu="3", UUID="GPU-b3", instance="b:9400")
    read(exporter, "gpu_gfx_activity", 50.0, 10, hostname="c", gpu_id="1")
    read(exporter, "npu_chip_info_utilization", 10.0, 10, id="7", instance="10.0.0.7:8082")
    read(exporter, "ray_node_gpus_utilization", 40.0, 10, GpuIndex="2", instance="10.0.0.8:8080")
    found = asked(store, maker, exporter)
    assert {place: use for place, (use, *_) in of_devices(found).items()} == {
        ("a", "0"): 0.25,
        ("b", "3"): 0.75,
        ("c", "1"): 0.5,
        ("10.0.0.7", "7"): pytest.approx(0.1),
        ("10.0.0.8", "2"): pytest.approx(0.4),
    }
    assert quantity(found).mean == pytest.approx(0.4)


def test_a_run_with_scraped_exporters_only_names_their_metric_and_its_scale(store, make):
    exporter = make("scrape-dcgm")
    read(exporter, "DCGM_FI_DEV_GPU_UTIL", 75.0, 10, Hostname="b", gpu="0")
    found = asked(store, exporter)
    assert (found.metric, found.factor, quantity(found).mean) == ("DCGM_FI_DEV_GPU_UTIL", 0.01, 0.75)


def test_a_gpu_of_two_sources_counts_once(store, make):
    maker, exporter = make("m"), make("scrape-dcgm")
    for gpu, use in (("0", 0.2), ("1", 0.6)):
        busy(maker, use, 10, "a", gpu)
        read(exporter, "DCGM_FI_DEV_GPU_UTIL", 100.0, 12, Hostname="a", gpu=gpu)
    found = asked(store, maker, exporter)
    assert {place: use for place, (use, *_) in of_devices(found).items()} == {("a", "0"): 0.2, ("a", "1"): 0.6}
    assert (quantity(found).gpus, quantity(found).mean) == (2, pytest.approx(0.4))
    read(exporter, "DCGM_FI_DEV_GPU_UTIL", 80.0, 41, Hostname="a", gpu="0")
    found = asked(store, exporter)
    assert of_devices(found)["a", "0"] == (0.8, 0.0, False), "the other source continues where the first has stopped"
    assert of_devices(found)["a", "1"] == (1.0, 29.0, False)


def test_sources_that_name_a_gpu_differently_are_joined_by_its_uuid(store, make):
    maker, exporter = make("m"), make("scrape-dcgm")
    busy(maker, 0.2, 10, "pod-7", "0")
    read(maker, "gpu_info", 1.0, 10, host="pod-7", gpu="0", uuid="GPU-x", model="H200")
    read(exporter, "DCGM_FI_DEV_GPU_UTIL", 22.0, 10, Hostname="node-1", gpu="5", UUID="GPU-x")
    read(exporter, "DCGM_FI_DEV_GPU_UTIL", 90.0, 10, Hostname="node-1", gpu="6", UUID="GPU-y")
    found = asked(store, maker, exporter)
    assert {place: use for place, (use, *_) in of_devices(found).items()} == {
        ("node-1", "6"): pytest.approx(0.9),
        ("pod-7", "0"): 0.2,
    }


def test_series_of_a_restarted_process_are_the_same_gpu(store, make):
    before, after = make("before"), make("after")
    busy(before, 0.9, 100, "a", "0")
    busy(after, 0.3, 105, "a", "0")
    found = asked(store, before, after)
    assert of_devices(found) == {("a", "0"): (0.3, 0.0, False)}


def test_other_quantities_have_means_too_and_steady_ones_last_a_minute_longer(store, make):
    maker = make("m")
    for gpu, used, watts in (("0", 20.0, 300.0), ("1", 60.0, 500.0)):
        labels = {"host": "a", "gpu": gpu}
        read(maker, "gpu_temperature_celsius", 50.0, 20, **labels)
        read(maker, "gpu_memory_total_bytes", 80.0, 20, **labels)
        read(maker, "gpu_sm_clock_hertz", 1e9, 20, **labels)
        read(maker, "gpu_memory_used_bytes", used, 100, **labels)
        read(maker, "gpu_power_watts", watts, 100, **labels)
    found = asked(store, maker)
    means = {one.quantity: one.mean for one in found.quantities}
    expected = {"temperature_celsius": 50.0, "memory_total_bytes": 80.0, "memory_used_bytes": 40.0}
    assert means == expected | {"power_watts": 400.0, "memory_used_ratio": 0.5}
    assert found.metric is None


def test_values_that_are_not_numbers_are_not_readings(store, make):
    maker = make("m")
    busy(maker, 0.5, 10, "a", "0")
    busy(maker, float("nan"), 12, "a", "0")
    assert of_devices(asked(store, maker)) == {("a", "0"): (0.5, 2.0, False)}


def test_without_labels_it_is_the_first_gpu_of_the_process_host(store, make):
    maker = make("m")
    read(maker, "gpu_utilization_ratio", 0.5, 10)
    assert of_devices(asked(store, maker)) == {("host", "0"): (0.5, 0.0, False)}


def test_labels_that_are_not_strings_are_read_as_text(store, make):
    maker = make("m")
    read(maker, "gpu_utilization_ratio", 0.5, 10, host=7, gpu=0)
    read(maker, "DCGM_FI_DEV_GPU_UTIL", 90.0, 10, instance=8, gpu=1, UUID={"a": [1]})
    assert {place: use for place, (use, *_) in of_devices(asked(store, maker)).items()} == {
        ("7", "0"): 0.5,
        ("8", "1"): pytest.approx(0.9),
    }


def test_devices_are_in_natural_order_and_left_out_on_request(store, make):
    maker = make("m")
    for gpu in ("10", "9", "1"):
        busy(maker, 0.5, 10, "a", gpu)
    assert [one.gpu for one in asked(store, maker).devices] == ["1", "9", "10"]
    brief = asked(store, with_devices=False)
    assert (brief.gpus, quantity(brief).gpus, brief.devices) == (3, 3, [])


def test_clocks_are_aligned(store, make, begin_ns):
    """The clock of one machine is an hour fast; its readings are of the same moment."""
    own, fast = make("own"), make("fast")
    busy(own, 0.4, 0, "a", "0")
    busy(fast, 0.8, 3600, "b", "0")
    batches = [own.build(sent_ns=begin_ns), fast.build(sent_ns=begin_ns + 3600 * SECOND)]
    store.commit(batches, received_ns=[begin_ns, begin_ns])
    assert of_devices(asked(store)) == {("a", "0"): (0.4, 0.0, False), ("b", "0"): (0.8, 0.0, False)}


def test_a_run_without_gpus_has_none(store, make):
    found = asked(store)
    assert (found.time_ns, found.gpus, found.quantities, found.metric) == (None, 0, [], None)
    maker = make("m")
    maker.span("update")
    assert asked(store, maker).gpus == 0
