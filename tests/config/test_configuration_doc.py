"""docs/configuration.md must describe every key and every variable, with the correct types and defaults."""

import doctest
import importlib
import json
import re
from pathlib import Path

import pytest

from rl_insight.config import ENVIRONMENT_VARIABLES, InsightConfig, config_keys, load_config
from rl_insight.config.fields import keys_of
from rl_insight.config.paths import DATA_DIR_VARIABLE

DOCUMENT = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text()
ROW = re.compile(r"^\| `([a-z_.]+)` \| `(.+?)` \| (.+?) \| (.*?) ?\| .+ \|$", re.MULTILINE)
ROWS = {key: (kind.replace(r"\|", "|"), default, allowed) for key, kind, default, allowed in ROW.findall(DOCUMENT)}


def test_exactly_the_existing_keys_are_documented():
    assert set(ROWS) == set(config_keys(InsightConfig))


@pytest.mark.parametrize("key", config_keys(InsightConfig))
def test_a_key_is_documented_with_its_type_default_and_limits(key):
    kind, default, allowed = ROWS[key]
    value = InsightConfig()
    for name in key.split("."):
        value = getattr(value, name)
    assert kind == config_keys(InsightConfig)[key]
    assert allowed.replace("`", "'") == keys_of(InsightConfig)[key].allowed
    if not isinstance(value, list):
        assert default == f"`{value if isinstance(value, str) else json.dumps(value)}`"


def test_exactly_the_existing_variables_are_documented():
    documented = set(re.findall(r"^\| `([A-Z_]+)` \|", DOCUMENT, re.MULTILINE))
    assert documented == {*ENVIRONMENT_VARIABLES, DATA_DIR_VARIABLE}


def test_the_file_in_the_document_is_valid(tmp_path):
    (text,) = re.findall(r"```yaml\n(.*?)```", DOCUMENT, re.DOTALL)
    path = tmp_path / "config.yaml"
    path.write_text(text)
    config = load_config(path, environ={})
    assert (config.server.url, config.recorder.flush_interval_s) == ("http://10.0.0.1:18080", 1.0)


@pytest.mark.parametrize("name", ["", ".checks", ".fields", ".loading", ".model"])
def test_the_examples_in_the_docstrings_hold(name):
    assert doctest.testmod(importlib.import_module(f"rl_insight.config{name}")).failed == 0
