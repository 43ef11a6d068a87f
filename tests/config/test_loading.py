import dataclasses
import subprocess
import sys
from pathlib import Path
from types import MappingProxyType

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from rl_insight.config import InsightConfig, ServerConfig, config_from_dict, config_to_dict, load_config
from rl_insight.errors import ConfigError


@pytest.fixture
def yaml_file(tmp_path):
    def write(text, name="config.yaml"):
        path = tmp_path / name
        path.write_text(text)
        return str(path)

    return write


def load(source=None, overrides=None, **environ):
    return load_config(source, overrides=overrides, environ=environ)


def test_importing_the_package_imports_neither_omegaconf_nor_yaml():
    program = "import sys, rl_insight.config; print([m for m in ('omegaconf', 'yaml', 'antlr4') if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_a_plain_dict_becomes_a_config_without_omegaconf():
    program = (
        "import sys; from rl_insight.config import *; config_from_dict(config_to_dict(InsightConfig())); "
        "print('omegaconf' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "False"


def test_without_anything_the_defaults_hold():
    assert load() == InsightConfig()


# Sources


@dataclasses.dataclass
class UserServer:
    url: str = "http://a:1"


@dataclasses.dataclass
class UserConfig:
    server: UserServer = dataclasses.field(default_factory=UserServer)
    rank: int = 2


NESTED = {"server": {"url": "http://a:1"}, "rank": 2}
SOURCES = {
    "dict": NESTED,
    "other mapping": MappingProxyType({"server": MappingProxyType(NESTED["server"]), "rank": 2}),
    "dataclass": UserConfig(),
    "own dataclass": InsightConfig(server=ServerConfig(url="http://a:1"), rank=2),
    "DictConfig": OmegaConf.create(NESTED),
    "structured DictConfig": OmegaConf.structured(UserConfig),
    "dict with a DictConfig inside": {"server": OmegaConf.create(NESTED["server"]), "rank": 2},
    "text values": {"server": {"url": "http://a:1"}, "rank": "2"},
}


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES.keys())
def test_every_kind_of_source_gives_the_same_config(source):
    config = load(source)
    assert config == InsightConfig(server=ServerConfig(url="http://a:1"), rank=2)
    assert type(config.server) is ServerConfig


@pytest.mark.parametrize("kind", [str, Path])
def test_a_yaml_path_is_a_source(yaml_file, kind):
    path = yaml_file("server:\n  url: http://a:1\nrank: 2\n")
    assert load(kind(path)) == InsightConfig(server=ServerConfig(url="http://a:1"), rank=2)


def test_the_home_directory_is_expanded_in_a_path(yaml_file, monkeypatch):
    path = Path(yaml_file("rank: 4"))
    monkeypatch.setenv("HOME", str(path.parent))
    assert load(f"~/{path.name}").rank == 4


@pytest.mark.parametrize("text", ["", "# nothing but a comment\n", "---\n", "server:\n  # url: http://a:1\n"])
def test_a_file_without_values_leaves_the_defaults(yaml_file, text):
    assert load(yaml_file(text)) == InsightConfig()


def test_a_frozen_dict_config_is_accepted_and_left_as_it_was():
    source = OmegaConf.create({"server": {"url": "${run_id}"}, "run_id": "http://a:1"})
    OmegaConf.set_struct(source, True)
    OmegaConf.set_readonly(source, True)
    before = OmegaConf.to_yaml(source)
    assert load(source, overrides={"labels": {"a": "b"}}).server.url == "http://a:1"
    assert OmegaConf.to_yaml(source) == before
    assert OmegaConf.is_struct(source)
    assert OmegaConf.is_readonly(source)


def test_a_part_of_a_larger_config_may_refer_to_the_rest_of_it():
    whole = OmegaConf.create({"trainer": {"name": "grpo"}, "insight": {"experiment_name": "${trainer.name}"}})
    assert load(whole.insight).experiment_name == "grpo"


def test_a_given_mapping_is_not_changed():
    source = {"server": None, "labels": {"a": 1}}
    load(source, overrides={"labels": {"b": "2"}})
    assert source == {"server": None, "labels": {"a": 1}}


def test_label_values_become_text():
    assert load({"labels": {"a": 1, "b": 1.5, "c": True}}).labels == {"a": "1", "b": "1.5", "c": "True"}


@pytest.mark.parametrize("source", [3, [1], object(), InsightConfig, {1, 2}])
def test_a_source_of_another_kind_is_refused(source):
    with pytest.raises(ConfigError, match="give a mapping, a dataclass instance"):
        load(source)


# Order


def test_each_layer_beats_the_ones_below_it(yaml_file):
    path = yaml_file("run_id: file\nproject: file\nexperiment_name: file\nrole: file\n")
    config = load(
        {"run_id": "config", "project": "config", "experiment_name": "config"},
        overrides={"run_id": "argument", "project": "argument"},
        RL_INSIGHT_CONFIG=path,
        RL_INSIGHT_RUN_ID="environment",
    )
    assert (config.run_id, config.project, config.experiment_name, config.role, config.rank) == (
        "environment",
        "argument",
        "config",
        "file",
        None,
    )


def test_arguments_that_were_not_given_hide_nothing():
    assert (
        load({"run_id": "config", "labels": {"a": "1"}}, overrides={"run_id": None, "labels": None}).run_id == "config"
    )


def test_labels_of_all_layers_are_merged(yaml_file):
    path = yaml_file("labels: {a: file, b: file, c: file}")
    config = load({"labels": {"b": "config", "c": "config"}}, {"labels": {"c": "argument"}}, RL_INSIGHT_CONFIG=path)
    assert config.labels == {"a": "file", "b": "config", "c": "argument"}


def test_a_list_replaces_the_list_below_it():
    assert load({"redaction": {"key_patterns": ["mine"]}}).redaction.key_patterns == ["mine"]


def test_two_loads_share_nothing():
    one, other = load(), load()
    one.labels["a"] = "b"
    one.redaction.key_patterns.clear()
    assert other == InsightConfig()


# Environment


def test_every_variable_sets_its_key():
    config = load(
        RL_INSIGHT_SERVER_URL="https://a:1",
        RL_INSIGHT_TOKEN="t",
        RL_INSIGHT_RUN_ID="7",
        RL_INSIGHT_ENABLED="off",
        OTEL_EXPORTER_OTLP_TRACES_ENDPOINT="http://b:4318/v1/traces",
    )
    assert (config.server.url, config.server.token, config.run_id) == ("https://a:1", "t", "7")
    assert config.otlp.traces_endpoint == "http://b:4318/v1/traces"
    assert config.enabled is False


@pytest.mark.parametrize(
    ("text", "expected"),
    [("true", True), ("1", True), ("YES", True), ("on", True), ("False", False), ("0", False), ("no", False)],
)
def test_spellings_of_enabled(text, expected):
    assert load({"enabled": not expected}, RL_INSIGHT_ENABLED=text).enabled is expected


@pytest.mark.parametrize("text", ["maybe", "2", "enabled", "None"])
def test_another_spelling_of_enabled_is_refused(text):
    with pytest.raises(ConfigError, match=f"RL_INSIGHT_ENABLED cannot be '{text}'"):
        load(RL_INSIGHT_ENABLED=text)


def test_empty_variables_count_as_unset():
    names = ("SERVER_URL", "TOKEN", "RUN_ID", "ENABLED", "CONFIG")
    assert load({"run_id": "x"}, **{f"RL_INSIGHT_{name}": "" for name in names}) == InsightConfig(run_id="x")


def test_a_wrong_value_in_the_environment_is_refused():
    with pytest.raises(ConfigError, match=r"server\.url cannot be 'nowhere'"):
        load(RL_INSIGHT_SERVER_URL="nowhere")


# Interpolation


def test_interpolation_reads_the_environment_and_other_keys(yaml_file, monkeypatch):
    monkeypatch.setenv("RL_INSIGHT_TEST_PORT", "1234")
    path = yaml_file(
        "prometheus: {metrics_report_port: '${oc.env:RL_INSIGHT_TEST_PORT}'}\nrun_id: ${experiment_name}-1\n"
    )
    config = load(path, overrides={"experiment_name": "grpo"})
    assert (config.prometheus.metrics_report_port, config.run_id) == (1234, "grpo-1")


def test_an_empty_default_leaves_an_optional_key_unset():
    assert load({"server": {"url": '${oc.env:RL_INSIGHT_TEST_UNSET,""}'}}).server.url is None


@given(st.text(alphabet="$\\{}:a.", min_size=1))
def test_arguments_and_variables_are_taken_literally(text):
    assert load(overrides={"run_id": text}).run_id == text
    assert load(RL_INSIGHT_TOKEN=text).server.token == text


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"run_id": "${oc.env:RL_INSIGHT_TEST_UNSET}"}, "run_id cannot be resolved: .*RL_INSIGHT_TEST_UNSET"),
        ({"run_id": "${nothing}"}, "run_id cannot be resolved: .*nothing"),
        ({"run_id": "${"}, "run_id in the configuration cannot be used"),
        ({"rank": "${server.backend}"}, "rank cannot be resolved: .*auto"),
        (OmegaConf.create({"run_id": "${nothing}"}), "run_id cannot be resolved"),
    ],
)
def test_an_interpolation_that_fails_names_its_key(source, message):
    with pytest.raises(ConfigError, match=message):
        load(source)


# Files


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("server: [", "not valid YAML"),
        ("a: 1\na: 2", "not valid YAML: .*duplicate"),
        ("x: !!python/object:os.system {}", "not valid YAML"),
        ("- 1\n- 2", "is not a mapping"),
        ("word", "is not a mapping"),
        ("3", "is not a mapping"),
        ("serve: {}", "unknown key 'serve' in .*did you mean 'server'"),
        ("rank: many", "rank in .* cannot be 'many'"),
    ],
)
def test_a_bad_file_is_named(yaml_file, text, message):
    path = yaml_file(text)
    for attempt in (lambda: load(path), lambda: load(RL_INSIGHT_CONFIG=path)):
        with pytest.raises(ConfigError, match=message) as caught:
            attempt()
        assert path in str(caught.value)


def test_a_file_that_is_not_text_is_refused(tmp_path):
    path = tmp_path / "binary.yaml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match=r"binary\.yaml is not valid YAML"):
        load(path)


@pytest.mark.parametrize("name", ["missing.yaml", "."])
def test_a_file_that_cannot_be_read_is_refused(tmp_path, name):
    with pytest.raises(ConfigError, match="cannot read the configuration file"):
        load(RL_INSIGHT_CONFIG=str(tmp_path / name))


# The plain form


def test_the_plain_form_survives_a_round_trip_through_msgpack():
    config = load({"server": {"token": "t"}, "labels": {"a": "b"}, "rank": 3, "redaction": {"value_patterns": ["x"]}})
    wire = msgspec.msgpack.encode(config_to_dict(config))
    assert config_from_dict(msgspec.msgpack.decode(wire)) == config


def test_the_plain_form_of_another_version_is_read():
    assert config_from_dict({"rank": 1, "novelty": 2, "server": {"colour": "red"}}) == InsightConfig(rank=1)


@pytest.mark.parametrize(
    ("values", "message"), [({"rank": "one"}, "not a configuration"), ({"recorder": {"drop": "all"}}, "recorder.drop")]
)
def test_a_plain_form_with_wrong_values_is_refused(values, message):
    with pytest.raises(ConfigError, match=message):
        config_from_dict(values)


def test_the_token_does_not_show_in_the_config_as_text():
    assert "hidden-token" not in repr(load(RL_INSIGHT_TOKEN="hidden-token"))


def test_white_space_around_a_token_is_dropped():
    assert load({"server": {"token": " secret-token\n"}}).server.token == "secret-token"
    assert load(RL_INSIGHT_TOKEN="secret-token\r\n").server.token == "secret-token"
    assert load({"server": {"token": " \n"}}).server.token is None


@pytest.mark.parametrize("token", ["secret\ntoken", "secret token", "secr\xe9t", "secret\x00"])
def test_token_that_no_header_can_carry_is_refused_without_being_shown(token):
    with pytest.raises(ConfigError, match=r"server\.token cannot be sent") as caught:
        load({"server": {"token": token}})
    assert "secr" not in str(caught.value)
