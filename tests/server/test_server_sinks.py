"""Sinks are enabled by settings."""

from __future__ import annotations

import json
import sys
import time

import pytest

from rl_insight.collector.sinks.registry import make_sinks
from rl_insight.errors import ConfigError
from rl_insight.schema import BatchBuilder, Process, encode, frame
from rl_insight.server.config import load_settings


def test_no_sink_is_on_by_default():
    assert make_sinks(load_settings().sinks) == []


def test_every_sink_is_switched_on_by_its_setting(tmp_path):
    words = [
        "sinks.remote_write.url=http://127.0.0.1:9090/api/v1/write",
        "sinks.remote_write.headers.X-Scope-OrgID=team",
        "sinks.otlp.endpoint=127.0.0.1:4317",
        "sinks.otlp.protocol=grpc",
        "sinks.otlp.signals=[traces,logs]",
        f"sinks.jsonl.path={tmp_path / 'events.jsonl'}",
    ]
    settings = load_settings(words=words)
    assert settings.sinks["remote_write"]["headers"] == {"X-Scope-OrgID": "team"}
    names = [sink.name for sink in make_sinks(settings.sinks)]
    assert names == ["remote_write", "otlp_traces", "otlp_logs", "jsonl"]


def test_headers_may_stand_in_a_file_and_do_not_show(tmp_path):
    path = tmp_path / "server.yaml"
    path.write_text("sinks:\n  otlp:\n    endpoint: http://h:4318\n    headers: {Authorization: Bearer secret}\n")
    settings = load_settings(path)
    assert settings.sinks["otlp"]["headers"] == {"Authorization": "Bearer secret"}
    assert "secret" not in repr(settings)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["sinks.remote_write.url=localhost"],
            "sinks.remote_write cannot be used: 'localhost' cannot be the remote-write",
        ),
        (["sinks.otlp.endpoint=ftp://h"], "sinks.otlp cannot be used: 'ftp://h' cannot be the OTLP endpoint"),
        (["sinks.otlp.endpoint=h:1", "sinks.otlp.protocol=thrift"], "unknown OTLP protocol 'thrift'"),
        (["sinks.otlp.endpoint=http://h", "sinks.otlp.signals=[spans]"], "unknown OTLP signal 'spans'"),
        (["sinks.otlp.endpont=http://h"], "did you mean 'sinks.otlp.endpoint'?"),
        (
            ["sinks.remote_write.url=http://h", "sinks.remote_write.headers=5"],
            "sinks.remote_write.headers is invalid",
        ),
        (["sinks.remote_write.url=http://h", "sinks.remote_write.max_samples=many"], "sinks.remote_write.max_samples"),
        (["sinks.remote_write.urll=http://h"], "did you mean 'sinks.remote_write.url'?"),
        (["sinks.remote_write.headers.a=b"], "sinks.remote_write.url is missing"),
        (["sinks.otlp=http://h"], "it must be a section"),
        (["sinks.remotewrite.url=http://h"], "unknown sink 'sinks.remotewrite': did you mean 'sinks.remote_write'?"),
        (["sinks.kafka.topic=rl"], "known are jsonl, memory, otlp, parquet, remote_write, tracker"),
        (["sinks.tracker.tracker=abacus"], "unknown tracker 'abacus'"),
    ],
)
def test_setting_that_cannot_be_used_is_named_with_the_reason(words, said):
    with pytest.raises(ConfigError) as error:
        load_settings(words=words)
    assert said in str(error.value)


def test_a_sink_of_the_file_can_be_switched_off(tmp_path):
    path = tmp_path / "server.yaml"
    path.write_text("sinks:\n  otlp:\n    endpoint: http://h:4318\n  jsonl: {path: events.jsonl}\n")
    settings = load_settings(path, words=["sinks.otlp=null"])
    assert [sink.name for sink in make_sinks(settings.sinks)] == ["jsonl"]


def test_secret_of_an_option_that_does_not_fit_is_not_shown():
    words = ["sinks.remote_write.url=http://h", "sinks.remote_write.headers=[Bearer secret]"]
    with pytest.raises(ConfigError) as error:
        load_settings(words=words)
    assert "secret" not in str(error.value)


def test_stored_batch_reaches_the_sinks(make_services, make_batch, tmp_path, wait_until):
    path = tmp_path / "events.jsonl"
    services = make_services(f"sinks.jsonl.path={path}")
    outcome = services.ingest.submit_frames(frame(encode(make_batch(spans=2)))).settle()
    assert outcome.accepted == 1
    wait_until(lambda: path.exists() and path.read_text().count("\n") == 3)
    assert [json.loads(line)["type"] for line in path.read_text().splitlines()] == ["process", "span", "span"]


SINK_OF_ANOTHER_PACKAGE = """
from rl_insight.collector import Sink

class CountingSink(Sink):
    name = "counting"

    def __init__(self, path: str, *, every: int = 1):
        self._path, self._every, self._count = path, every, 0

    def write(self, batch):
        self._count += 1
        if self._count % self._every == 0:
            with open(self._path, "a") as file:
                file.write(f"{batch.process.run_id} {self._count}\\n")

    def get_status(self):
        return {"count": self._count}

def nothing():
    return [object()]

def broken():
    raise RuntimeError("no license")
"""


@pytest.fixture
def installed_package(tmp_path, monkeypatch):
    """A package with sinks, as installed by pip."""
    place = tmp_path / "site"
    metadata = place / "counting_sinks-1.0.dist-info"
    metadata.mkdir(parents=True)
    (place / "counting_sinks.py").write_text(SINK_OF_ANOTHER_PACKAGE)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: counting-sinks\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(
        "[rl_insight.sinks]\ncounting = counting_sinks:CountingSink\n"
        "nothing = counting_sinks:nothing\nbroken = counting_sinks:broken\nabsent = no_such_module:Sink\n"
    )
    monkeypatch.syspath_prepend(str(place))
    yield
    sys.modules.pop("counting_sinks", None)


@pytest.mark.usefixtures("installed_package")
def test_sink_of_another_package_is_loaded_by_configuration_alone(make_services, make_batch, tmp_path, wait_until):
    path = tmp_path / "counts"
    services = make_services(f"sinks.counting.path={path}", "sinks.counting.every=2")
    for sequence in (1, 2):
        assert services.ingest.submit_frames(frame(encode(make_batch(sequence)))).settle().accepted == 1
    wait_until(lambda: path.exists() and path.read_text() == "r1 2\n")
    assert services.collector.get_status()["sinks"]["counting"]["details"] == {"count": 2}


@pytest.mark.usefixtures("installed_package")
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["sinks.counting.every=2"], "sinks.counting.path is missing"),
        (["sinks.counting.path=x", "sinks.counting.every=often"], "sinks.counting.every is invalid"),
        (["sinks.counting.path=x", "sinks.counting.evry=2"], "did you mean 'sinks.counting.every'?"),
        (["sinks.nothing={}"], "sinks.nothing returned a object: it must be a rl_insight.collector.Sink"),
        (["sinks.broken={}"], "sinks.broken cannot be used: RuntimeError: no license"),
        (["sinks.absent={}"], "sinks.absent cannot be used: ModuleNotFoundError"),
    ],
)
def test_sink_of_another_package_that_cannot_be_made_is_named(words, said):
    with pytest.raises(ConfigError) as error:
        load_settings(words=words)
    assert said in str(error.value)


def test_tracker_by_configuration_begins_a_run_only_when_it_has_values(make_services, tmp_path, wait_until):
    pytest.importorskip("tensorboardX")
    folder = tmp_path / "events"
    words = ["sinks.tracker.tracker=tensorboard", f"sinks.tracker.log_dir={folder}", "sinks.tracker.metrics=[reward*]"]
    services = make_services(*words)
    assert not folder.exists()
    builder = BatchBuilder()
    builder.add_sample(builder.add_series("reward", "gauge", "", "{}"), time_ns=1, value=7.0, step=3)
    process = Process(process_id="p1", run_id="r1", host="node", pid=1)
    batch = builder.build(process, sequence=1, sent_ns=time.time_ns())
    assert services.ingest.submit_frames(frame(encode(batch))).settle().accepted == 1
    wait_until(lambda: folder.exists() and list(folder.iterdir()))


def test_server_writes_to_a_real_prometheus(make_services, start_prometheus):
    prometheus = start_prometheus([], "--web.enable-remote-write-receiver")
    services = make_services(f"sinks.remote_write.url={prometheus.url}/api/v1/write")
    builder = BatchBuilder()
    builder.add_sample(builder.add_series("steps", "counter", "", "{}"), time_ns=time.time_ns(), value=7.0)
    process = Process(process_id="p1", run_id="r1", host="node", pid=1)
    batch = builder.build(process, sequence=1, sent_ns=time.time_ns())
    assert services.ingest.submit_frames(frame(encode(batch))).settle().accepted == 1
    services.writer.close()
    assert services.collector.wait_idle(30.0)
    ((labels, value),) = prometheus.query("rl_insight_monitor_steps_total")
    assert (labels["run_id"], value) == ("r1", 7.0)
