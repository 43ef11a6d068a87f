"""Scrape targets as Prometheus reads them from files."""

from __future__ import annotations

import json
import shutil
import subprocess
import threading

import pytest

from rl_insight.server.scrape.targets import TargetBook, make_targets
from rl_insight.stack.discovery import (
    RegisteredTarget,
    TargetMirror,
    discovery_entry,
    ray_metrics_addresses,
    read_targets,
    write_discovery,
)


@pytest.mark.parametrize(
    ("target", "entry"),
    [
        ({"url": "http://n:1/metrics"}, {"targets": ["n:1"], "labels": {"job": "targets"}}),
        (
            {
                "url": "https://n/custom",
                "job_name": "sglang",
                "labels": {"role": "rollout"},
                "run_id": "r",
                "project": "p",
            },
            {
                "targets": ["n"],
                "labels": {
                    "role": "rollout",
                    "project": "p",
                    "run_id": "r",
                    "job": "sglang",
                    "__scheme__": "https",
                    "__metrics_path__": "/custom",
                },
            },
        ),
        (
            {"url": "http://[::1]:8/metrics?format=prometheus&x=1"},
            {
                "targets": ["[::1]:8"],
                "labels": {"job": "targets", "__param_format": "prometheus", "__param_x": "1"},
            },
        ),
        (
            {"url": "http://n:1/metrics", "job_name": "mine", "labels": {"job": "other", "run_id": "x"}, "run_id": "r"},
            {"targets": ["n:1"], "labels": {"job": "mine", "run_id": "r"}},
        ),
    ],
)
def test_a_target_becomes_an_entry(target, entry):
    assert discovery_entry(RegisteredTarget(**target)) == entry


def test_what_is_on_the_servers_own_page_is_not_read_a_second_time(tmp_path):
    book = TargetBook(tmp_path / "targets.json")
    book.add(make_targets(["engine:8000"]))
    book.add(make_targets(["hub:9092"], forwards=True, lease_s=60.0), "r1/hub")
    assert [target.url for target in read_targets(tmp_path / "targets.json")] == ["http://engine:8000/metrics"]


def test_what_the_server_registered_reaches_the_file(tmp_path):
    book = TargetBook(tmp_path / "targets.json")
    path = tmp_path / "stack" / "registered.json"
    mirror = TargetMirror(tmp_path / "targets.json", path)
    mirror.refresh()
    assert json.loads(path.read_text()) == []
    book.add(make_targets(["node7:8000", "https://node8/m"], job_name="vllm", labels={"role": "rollout"}, run_id="r1"))
    mirror.refresh()
    assert [entry["targets"] for entry in json.loads(path.read_text())] == [["node7:8000"], ["node8"]]
    book.remove(["http://node7:8000/metrics"])
    mirror.refresh()
    (entry,) = json.loads(path.read_text())
    assert entry["labels"] == {
        "role": "rollout", "run_id": "r1", "job": "vllm", "__scheme__": "https", "__metrics_path__": "/m"
    }  # fmt: skip


def test_an_unchanged_list_is_not_written_again(tmp_path):
    path = tmp_path / "t.json"
    targets = [RegisteredTarget(url="http://n:1/metrics")]
    assert write_discovery(path, targets)
    before = path.stat().st_ino
    assert not write_discovery(path, targets)
    assert path.stat().st_ino == before


def test_a_reader_never_sees_half_a_file(tmp_path):
    path = tmp_path / "t.json"
    write_discovery(path, [])
    stop = threading.Event()
    lists = [[RegisteredTarget(url=f"http://node{n}:1/metrics") for n in range(count)] for count in (1, 300)]

    def write(number):
        while not stop.is_set():
            write_discovery(path, lists[number % 2])
            number += 1

    writers = [threading.Thread(target=write, args=(number,)) for number in range(2)]
    for writer in writers:
        writer.start()
    try:
        for _ in range(200):
            assert len(json.loads(path.read_text())) in {0, 1, 300}
    finally:
        stop.set()
        for writer in writers:
            writer.join()


@pytest.mark.parametrize("content", ["{", "[]", '{"targets": [{"no": "url"}]}'])
def test_a_list_that_cannot_be_read_is_not_a_list(tmp_path, content, caplog):
    (tmp_path / "targets.json").write_text(content)
    assert read_targets(tmp_path / "targets.json") == []
    assert "cannot be read" in caplog.text


def test_all_alive_nodes_of_a_ray_cluster_are_targets():
    nodes = [
        {"Alive": True, "NodeManagerAddress": "10.0.0.1", "MetricsExportPort": 8080},
        {"Alive": False, "NodeManagerAddress": "10.0.0.2", "MetricsExportPort": 8080},
        {"Alive": True, "NodeManagerAddress": "10.0.0.3", "MetricsExportPort": 9090},
        {"Alive": True, "NodeManagerAddress": "10.0.0.4", "MetricsExportPort": 0},
    ]
    assert ray_metrics_addresses(nodes) == ["10.0.0.1:8080", "10.0.0.3:9090"]


def test_promtool_accepts_the_file(tmp_path):
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("the program promtool is not installed")
    write_discovery(tmp_path / "t.json", [RegisteredTarget(url="https://n:1/x?y=1", labels={"a": "b"}, run_id="r")])
    config = {"scrape_configs": [{"job_name": "t", "file_sd_configs": [{"files": [str(tmp_path / "t.json")]}]}]}
    (tmp_path / "p.yml").write_text(json.dumps(config))
    done = subprocess.run([promtool, "check", "config", str(tmp_path / "p.yml")], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
