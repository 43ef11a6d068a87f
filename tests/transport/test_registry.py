from __future__ import annotations

import subprocess
import sys

import pytest

from rl_insight.config.model import InsightConfig
from rl_insight.errors import ConfigError
from rl_insight.schema import Process
from rl_insight.transport import (
    FileTransport,
    HttpTransport,
    MemoryTransport,
    NullTransport,
    available_backends,
    create_transport,
)

PROCESS = Process(process_id="node7-1-aa", run_id="run", host="node7", pid=1)


@pytest.fixture
def config(tmp_path):
    config = InsightConfig()
    config.server.url = "http://127.0.0.1:9"
    config.http.spool_dir = str(tmp_path / "spool")
    config.file.directory = str(tmp_path / "events")
    return config


@pytest.mark.parametrize(
    ("backend", "kind"),
    [
        ("http", HttpTransport),
        ("file", FileTransport),
        ("memory", MemoryTransport),
        ("none", NullTransport),
    ],
)
def test_built_in_backends(config, backend, kind):
    transport = create_transport(backend, config, PROCESS)
    transport.close()
    assert type(transport) is kind


def test_unknown_backend_names_the_known_ones(config):
    with pytest.raises(ValueError, match=r"unknown server\.backend 'smoke'") as caught:
        create_transport("smoke", config, PROCESS)
    assert isinstance(caught.value, ConfigError)
    for name in ("auto", "file", "http", "memory", "none"):
        assert name in str(caught.value)


def test_http_without_an_address_waits_for_a_server_on_this_machine(config, monkeypatch, tmp_path, caplog):
    monkeypatch.setenv("RL_INSIGHT_DATA_DIR", str(tmp_path))
    config.server.url = None
    transport = create_transport("http", config, PROCESS)
    assert transport.server_url is None
    assert "no server is running on this machine" in transport.get_status()["last_error"]
    assert caplog.text.count("rl-insight server start") == 1
    transport.close()


def test_file_settings_reach_the_transport(config, helpers, tmp_path):
    transport = create_transport("file", config, PROCESS)
    transport.send(helpers.make_batch(1))
    transport.close()
    assert (tmp_path / "events" / "node7-1-aa.000001.rli").exists()


PLUGIN = """
from rl_insight.transport import MemoryTransport

class PigeonTransport(MemoryTransport):
    pass

def make(config, process):
    transport = PigeonTransport()
    transport.name_of_process = process.process_id
    transport.address = config.server.url
    return transport

def make_nonsense(config, process):
    return object()
"""


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    site = tmp_path / "site"
    metadata = site / "pigeon_post-1.0.dist-info"
    metadata.mkdir(parents=True)
    (site / "pigeon_post.py").write_text(PLUGIN)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: pigeon-post\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(
        "[rl_insight.transports]\n"
        "pigeon = pigeon_post:make\n"
        "nonsense = pigeon_post:make_nonsense\n"
        "broken = pigeon_post:absent\n"
    )
    monkeypatch.syspath_prepend(site)
    yield
    sys.modules.pop("pigeon_post", None)


def test_transport_of_another_package_is_found_by_its_entry_point(plugin, config):
    assert "pigeon" in available_backends()
    transport = create_transport("pigeon", config, PROCESS)
    assert type(transport).__name__ == "PigeonTransport"
    assert (transport.name_of_process, transport.address) == ("node7-1-aa", "http://127.0.0.1:9")


def test_broken_plugin_is_named(plugin, config):
    with pytest.raises(ConfigError, match="'broken' cannot be loaded from 'pigeon_post:absent'"):
        create_transport("broken", config, PROCESS)


def test_plugin_that_makes_something_else_is_refused(plugin, config):
    with pytest.raises(ConfigError, match="made a object, which is not a Transport"):
        create_transport("nonsense", config, PROCESS)


def test_importing_the_package_loads_nothing_heavy():
    script = "import sys, rl_insight.transport; print(sorted({'http.client', 'ssl', 'omegaconf'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"
