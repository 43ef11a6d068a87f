"""The server's settings: order, types, ranges, and messages that name the key."""

import re
from pathlib import Path

import pytest

from rl_insight.config import config_keys
from rl_insight.errors import ConfigError
from rl_insight.server.config import ServerSettings, load_settings

DOCUMENT = Path(__file__).parents[2] / "docs" / "server.md"


def test_loopback_and_the_documented_ports_are_the_defaults():
    settings = load_settings()
    assert (settings.host, settings.port, settings.otlp_http_port, settings.otlp_grpc_port) == (
        "127.0.0.1",
        18080,
        4318,
        4317,
    )
    assert settings.is_loopback
    assert not settings.sql.enabled


def test_a_file_is_weaker_than_words_and_words_than_options(tmp_path):
    path = tmp_path / "server.yaml"
    path.write_text("port: 1\nretention:\n  max_age_days: 3\nscrape:\n")
    settings = load_settings(path, ["port=2", "otlp_grpc_port=null"], {"port": 3, "host": None})
    assert (settings.port, settings.retention.max_age_days, settings.otlp_grpc_port) == (3, 3.0, None)
    assert settings.host == "127.0.0.1"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["prot=1"], "did you mean 'port'?"),
        (["retention.max_age_dais=1"], "did you mean 'retention.max_age_days'?"),
        (["max_age_days=1"], "did you mean 'retention.max_age_days'?"),
        (["port"], "key=value"),
        (["port=abc"], "port"),
        (["port=70000"], "from 0 to 65535"),
        (["otlp_http_port=-1"], "from 0 to 65535"),
        (["retention.max_age_days=.nan"], "at least 0"),
        (["retention=5"], "section"),
        (["log_level=loud"], "one of 'debug'"),
        (["namespace=a-b"], "Prometheus name"),
        (["token=short"], "16 or more"),
        (["tls_cert=/nowhere"], "belong together"),
        (["tls_cert=/nowhere", "tls_key=/nowhere"], "no such file"),
        (["page_dir=/nowhere"], "no such directory"),
        (["host="], "host"),
        (["alerts.webhook=http://"], "http or https URL with a host"),
        (["alerts.slack=hooks.example.com/x"], "http or https URL with a host"),
        (["port=[1"], "cannot parse the settings on the command line"),
        (["store.memory_limit.x=1"], "it must be a string"),
    ],
)
def test_a_setting_that_cannot_be_used_is_named_with_the_reason(words, said):
    with pytest.raises(ConfigError) as error:
        load_settings(words=words)
    assert said in str(error.value)


def test_a_missing_file_is_a_clear_error(tmp_path):
    with pytest.raises(ConfigError, match="cannot read the configuration file"):
        load_settings(tmp_path / "no.yaml")


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_sql_is_off_unless_asked_for(host):
    assert not load_settings(words=[f"host={host}"]).sql.enabled
    assert load_settings(words=[f"host={host}", "sql.enabled=true"]).sql.enabled


def test_the_token_does_not_show_in_the_settings():
    assert "0123456789abcdef" not in repr(load_settings(words=["token=x0123456789abcdef"]))


def test_every_setting_is_documented_and_no_other():
    def keys_in(document):
        return set(re.findall(r"^\| `([a-z_.]+)` \|", document.read_text(), re.MULTILINE))

    stack = {f"stack.{key}" for key in keys_in(DOCUMENT.with_name("stack.md"))}
    assert keys_in(DOCUMENT) | stack == set(config_keys(ServerSettings))
