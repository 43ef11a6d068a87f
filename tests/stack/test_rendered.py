"""The configuration and command lines of the services."""

from __future__ import annotations

from configparser import ConfigParser
from pathlib import Path
from unittest.mock import ANY

import psutil
import pytest
import yaml

from rl_insight.errors import ConfigError
from rl_insight.stack import MetricsEndpointOfServer, StackError, stack_status, start_stack
from rl_insight.stack.render import MARK, Layout, bundled_plugins, fill

NOWHERE = MetricsEndpointOfServer("http://127.0.0.1:9")


def test_a_file_of_the_users_is_left_alone(tmp_path, settings, prometheus_program):
    path = Layout(tmp_path).config("prometheus")
    path.parent.mkdir(parents=True)
    path.write_text("scrape_configs: []\n")
    with pytest.raises(StackError, match="was not written by rl-insight"):
        start_stack(settings(), tmp_path, NOWHERE)
    assert path.read_text() == "scrape_configs: []\n"
    path.unlink()
    with start_stack(settings(), tmp_path, NOWHERE):
        assert MARK in path.read_text()


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"mode": "kubernetes"}, "stack.mode"),
        ({"ready_timeout_s": 0.0}, "stack.ready_timeout_s"),
        ({"prometheus__port": 70_000}, "stack.prometheus.port"),
        ({"grafana__port": -1}, "stack.grafana.port"),
        ({"restart_delay_s": float("nan")}, "stack.restart_delay_s"),
    ],
)
def test_settings_out_of_range_are_refused(tmp_path, settings, changes, key):
    with pytest.raises(ConfigError, match=key):
        start_stack(settings(**changes), tmp_path, NOWHERE)


LOOPBACK_MEMBERS = {"bind_addr": ["127.0.0.1"], "bind_port": ANY}
LIVE_SEARCH = {"query_end_cutoff": "0s"}


@pytest.mark.parametrize(
    ("version", "wanted", "absent"),
    [
        (
            "3.0.3",
            {
                "query_frontend": LIVE_SEARCH,
                "live_store": {
                    "fail_on_high_lag": False,
                    "max_trace_idle": "1s",
                    "max_trace_live": "5s",
                    "flush_check_period": "1s",
                },
                "backend_worker": {"finish_on_shutdown_timeout": "2s", "backoff": {"max_period": "5s"}},
            },
            {"ingester", "compactor"},
        ),
        (
            "2.10.7",
            {
                "query_frontend": LIVE_SEARCH,
                "ingester": {
                    "trace_idle_period": "1s",
                    "trace_live_period": "5s",
                    "flush_check_period": "1s",
                    "max_block_duration": "5m",
                },
            },
            {"live_store", "overrides"},
        ),
        (
            "2.4.1",
            {
                "compactor": {"compaction": {"block_retention": "168h"}},
                # Versions before 2.9 refuse `trace_live_period`.
                "ingester": {"trace_idle_period": "1s", "flush_check_period": "1s", "max_block_duration": "5m"},
            },
            {"live_store", "query_frontend"},
        ),
    ],
)
def test_tempo_gets_the_configuration_of_its_version(tmp_path, settings, stand_in, version, wanted, absent):
    program = stand_in(tmp_path / "tempo", "tempo", version)
    chosen = settings(prometheus__enabled=False, tempo__enabled=True, tempo__binary_path=str(program))
    with start_stack(chosen, tmp_path / "data", NOWHERE):
        config = yaml.safe_load(Layout(tmp_path / "data").config("tempo").read_text())
    assert {key: config[key] for key in wanted} == wanted
    assert not absent & set(config)
    assert config["memberlist"] == LOOPBACK_MEMBERS
    assert config["usage_report"] == {"reporting_enabled": False}
    assert config["server"]["grpc_listen_address"] == "127.0.0.1"


def test_tempo_writes_nowhere_but_below_the_data_directory(tmp_path, settings, stand_in, pids_of):
    program = stand_in(tmp_path / "tempo", "tempo", "3.0.3")
    chosen = settings(prometheus__enabled=False, tempo__enabled=True, tempo__binary_path=str(program))
    with start_stack(chosen, tmp_path / "data", NOWHERE):
        words = psutil.Process(pids_of(tmp_path / "data")["tempo"]).cmdline()
    data = Layout(tmp_path / "data").data("tempo")
    assert words[-2:] == [
        f"-live-store.wal.path={data}/live-store/traces",
        f"-backend-scheduler.local-work-path={data}",
    ]


def test_grafana_asks_nobody_on_the_internet(tmp_path, settings, stand_in, pids_of):
    program = stand_in(tmp_path / "grafana", "grafana", "13.0.1")
    chosen = settings(prometheus__enabled=False, grafana__enabled=True, grafana__binary_path=str(program))
    with start_stack(chosen, tmp_path / "data", NOWHERE):
        config = ConfigParser(interpolation=None)
        config.read(Layout(tmp_path / "data").config("grafana"))
        words = psutil.Process(pids_of(tmp_path / "data")["grafana"]).cmdline()
    assert words[-3:] == [
        "server", f"--homepath={tmp_path / 'grafana'}", f"--config={Layout(tmp_path / 'data').config('grafana')}"
    ]  # fmt: skip
    for section, key, value in (
        ("analytics", "reporting_enabled", "false"),
        ("analytics", "check_for_updates", "false"),
        ("analytics", "check_for_plugin_updates", "false"),
        ("plugins", "preinstall_disabled", "true"),
        ("plugins", "public_key_retrieval_disabled", "true"),
        ("news", "news_feed_enabled", "false"),
        ("security", "disable_gravatar", "true"),
        ("snapshots", "external_enabled", "false"),
        ("auth.anonymous", "enabled", "true"),
        # Links to traces open Explore, which an anonymous viewer may use only with this.
        ("users", "viewers_can_edit", "true"),
    ):
        assert config[section][key] == value
    password_file = config["security"]["admin_password"].removeprefix("$__file{").removesuffix("}")
    assert Path(password_file).read_text()


def test_configuration_survives_odd_paths(tmp_path, settings, prometheus_program):
    directory = Path(tmp_path) / 'odd "name" $HOME: #1'
    with start_stack(settings(), directory, NOWHERE):
        assert stack_status(directory).services[0].ready


def test_bundled_plugins_of_packaged_grafanas_are_found(tmp_path):
    """Since 13.1.2, packages keep Grafana's data sources outside its home; archives and images do not."""
    home, packaged = tmp_path / "home", tmp_path / "plugins-bundled"
    assert bundled_plugins(home, packaged) == ""
    packaged.mkdir()
    assert bundled_plugins(home, packaged) == f"bundled_plugins = {packaged}"
    (home / "data" / "plugins-bundled").mkdir(parents=True)
    assert bundled_plugins(home, packaged) == ""
    assert bundled_plugins(None, packaged) == ""


def test_a_span_links_to_the_durations_of_its_name_and_to_the_states_of_its_role():
    """Grafana substitutes `__tags` in both queries: a tag `name` would become a label that states do not have."""
    text = fill("datasources.yml", {"namespace": "x_"}, prometheus_url="", tempo_url="", scrape_interval="")
    (tempo,) = [one for one in yaml.safe_load(text)["datasources"] if one["uid"] == "tempo"]
    links = tempo["jsonData"]["tracesToMetrics"]
    assert links["tags"] == [{"key": "role", "value": "role"}]
    durations, states = (one["query"] for one in links["queries"])
    assert 'x_span_duration_seconds_bucket{span_name="$${__span.name}",$$__tags}' in durations
    assert "x_state_seconds_total{$$__tags}" in states
