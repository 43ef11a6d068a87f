"""The server of rl-insight 0.3.0 and ours: its paths, its YAML file and its command line."""

from __future__ import annotations

import shutil

import pytest

from rl_insight.cli import main
from rl_insight.cli.app import build
from rl_insight.errors import ConfigError
from rl_insight.server import older_settings
from rl_insight.server.config import load_settings
from tests.compat.conftest import Programs

CONFIG = """
server: {{data_dir: {data}}}
prometheus: {{enable: false}}
grafana: {{enable: false}}
otel: {{otel_port: 14444}}
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The same requests to both, each with an empty data directory at the same path."""
    home = tmp_path_factory.mktemp("home")
    config = home / "server.yaml"
    config.write_text(CONFIG.format(data=home / "data"))
    answers = {}
    for which in ("original", "ours"):
        answers[which] = Programs(home).run("server_paths.py", which, config, original="rl-insight")
        shutil.rmtree(home / "data")
    return answers


def test_every_path_answers_the_same(runs):
    for part in ("healthz", "services", "statuses", "kinds", "jobs", "targets_file"):
        assert runs["ours"][part] == runs["original"][part], part


def test_the_discovery_file_has_the_same_entries_with_the_runs_names_added(runs):
    added = {"job", "run_id", "project", "experiment_name"}
    ours = [
        {**entry, "labels": {name: value for name, value in entry["labels"].items() if name not in added}}
        for entry in runs["ours"]["entries"]
    ]
    assert ours == runs["original"]["entries"]
    for entry in runs["ours"]["entries"]:
        assert entry["labels"]["job"] == entry["labels"]["rl_insight_job"]


class TestYaml:
    @pytest.fixture
    def load(self, tmp_path):
        def load(text):
            path = tmp_path / "server.yaml"
            path.write_text(text)
            return load_settings(path)

        return load

    def test_the_file_that_0_3_0_brings_along_is_read(self, tmp_path, caplog):
        config = Programs(tmp_path).original("rl-insight") / "rl_insight" / "config" / "config.yaml"
        settings = load_settings(config)
        stack = settings.stack
        assert (settings.port, settings.otlp_http_port, stack.enabled) == (18080, 4318, True)
        assert (stack.prometheus.port, stack.tempo.port, stack.grafana.port) == (9090, 3200, 3000)
        assert (stack.prometheus.retention, stack.tempo.retention) == ("30d", "720h")
        assert (stack.prometheus.binary_path, stack.grafana.dashboards_dir) == (None, None)
        assert stack.tempo.install_version == "2.6.1"
        assert [record.args[0] for record in caplog.records] == [
            "grafana.min_version, prometheus.min_version, tempo.min_version"
        ]

    def test_every_key_sets_what_it_set_there(self, load):
        settings = load(
            "server: {backend: local, enable: true, port: 1, data_dir: /d, install_dir: /i}\n"
            "prometheus: {enable: true, binary_path: /p, install_version: 3.1.0, prometheus_port: 2,"
            " retention_time: 5d}\n"
            "tempo: {enable: false, binary_path: '', query_port: 3, retention_time: 36h}\n"
            "grafana: {port: 4, dashboards_dir: /a, extra_dashboard_dir: /b}\n"
            "otel: {otel_port: 5}\n"
        )
        stack = settings.stack
        assert (settings.port, settings.data_dir, settings.otlp_http_port, stack.install_dir) == (1, "/d", 5, "/i")
        prometheus = stack.prometheus
        assert (prometheus.binary_path, prometheus.install_version, prometheus.port) == ("/p", "3.1.0", 2)
        assert (prometheus.retention, stack.tempo.enabled, stack.tempo.binary_path) == ("5d", False, None)
        assert (stack.tempo.port, stack.tempo.retention) == (3, "36h")
        assert (stack.grafana.port, stack.grafana.dashboards_dir, stack.enabled) == (4, "/b", True)

    @pytest.mark.parametrize(
        ("text", "is_enabled"),
        [
            ("server: {port: 1}", False),
            ("tempo:", True),
            ("prometheus: {enable: false}\ntempo: {enable: false}\ngrafana: {enable: false}", False),
            ("grafana: {port: 1}\nstack: {enabled: false}", False),
        ],
    )
    def test_a_section_about_a_program_starts_the_stack(self, load, text, is_enabled):
        assert load(text).stack.enabled is is_enabled

    def test_it_may_be_mixed_with_our_keys(self, load):
        settings = load("retention: {max_age_days: 7}\nstack: {tempo: {grpc_port: 9}}\ntempo: {query_port: 3}")
        assert (settings.retention.max_age_days, settings.stack.tempo.grpc_port, settings.stack.tempo.port) == (7, 9, 3)

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("server: {prot: 1}", "server.prot in .* is not a setting. Did you mean server.port?"),
            ("server: {backend: docker}", "only local is supported"),
            ("server: {enable: false}", "only true is supported"),
            ("tempo: 3", "it must be a section"),
            ("grafana: {port: abc}", "stack.grafana.port"),
        ],
    )
    def test_what_cannot_be_used_is_named(self, load, text, said):
        with pytest.raises(ConfigError, match=said):
            load(text)

    def test_a_key_without_effect_is_a_warning(self, load, caplog):
        load("server: {state_file: /s}\ntempo: {config_file: /t}")
        assert "server.state_file, tempo.config_file in " in caplog.text

    def test_every_key_is_known(self):
        programs = {"enable", "binary_path", "min_version", "install_version", "config_file", "data_dir"}
        expected = {f"{name}.{key}" for name in ("prometheus", "tempo", "grafana") for key in programs}
        server = ("backend", "enable", "port", "data_dir", "runtime_dir", "state_file", "install_dir")
        expected |= {f"server.{key}" for key in server}
        expected |= {"prometheus.retention_time", "tempo.retention_time", "prometheus.prometheus_port"}
        expected |= {"tempo.query_port", "otel.otel_port", "grafana.port", "grafana.provisioning_dir"}
        expected |= {"grafana.dashboards_dir", "grafana.extra_dashboard_dir"}
        assert {*older_settings.RENAMED, *older_settings.WITHOUT_EFFECT, "server.backend", "server.enable"} == expected


class TestCommandLine:
    OPTIONS = {
        (): {"--log-level", "--version"},
        ("server", "install"): {"--config", "--install-dir", "--force", "--local-archive"},
        ("server", "start"): {
            "--config", "--auto-port", "--log-dir", "--extra-dashboard-dir", "--detach", "--attach-logs"
        },
        ("server", "stop"): {"--config"},
        ("server", "targets", "add"): {"--config"},
    }  # fmt: skip

    @pytest.mark.parametrize("words", OPTIONS, ids=" ".join)
    def test_every_option_is_there(self, words):
        command = build()
        for word in words:
            command = command.commands[word]
        found = {option for parameter in command.params for option in parameter.opts}
        assert self.OPTIONS[words] <= found

    def test_python_can_run_the_package(self, programs):
        assert programs.python("-m", "rl_insight", "--version").startswith("rl-insight ")

    @pytest.mark.parametrize("level", ["DEBUG", "error"])
    def test_the_log_level_is_that_of_the_server(self, level, monkeypatch, tmp_path):
        started = []
        monkeypatch.setattr("rl_insight.server.lifecycle.serve", lambda settings, _: started.append(settings) or 0)
        assert main(["--log-level", level, "server", "start", "--log-dir", str(tmp_path)]) == 0
        (settings,) = started
        assert (settings.log_level, settings.data_dir) == (level.lower(), str(tmp_path))

    def test_extra_dashboards_are_further_dashboards(self, monkeypatch, tmp_path):
        started = []
        monkeypatch.setattr("rl_insight.server.lifecycle.serve", lambda settings, _: started.append(settings) or 0)
        folder = tmp_path / "my: dashboards #1"
        assert main(["server", "start", "--data-dir", str(tmp_path), "--extra-dashboard-dir", str(folder)]) == 0
        assert started[0].stack.grafana.dashboards_dir == str(folder)

    @pytest.mark.parametrize(
        ("words", "code"),
        [
            (["--log-level", "loud", "server", "stop"], 2),
            (["server", "start", "--detach", "--attach-logs"], 2),
            (["server", "stop", "--config", "server.yaml"], 0),
            (["server", "targets", "add", "missing.yaml"], 2),
            (["server", "targets", "add", "no_jobs.yaml", "--config", "server.yaml"], 2),
            (["server", "targets", "add", "bad_job.yaml", "--config", "server.yaml"], 1),
            (["server", "targets", "add"], 2),
            (["server"], 2),
        ],
        ids=lambda value: " ".join(value) if isinstance(value, list) else str(value),
    )
    def test_exit_codes_are_the_same(self, words, code, tmp_path):
        (tmp_path / "server.yaml").write_text(f"server: {{data_dir: {tmp_path / 'data'}}}\n")
        (tmp_path / "no_jobs.yaml").write_text("jobs: 3\n")
        (tmp_path / "bad_job.yaml").write_text("jobs: [{job_name: a}]\n")
        programs = Programs(tmp_path)
        for paths in ((programs.original("rl-insight"),), ()):
            programs.python("-m", "rl_insight", *words, paths=paths, expect=code)
