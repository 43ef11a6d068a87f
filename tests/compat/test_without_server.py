"""Adapters that are turned off, or whose server is down, do not change training."""

from __future__ import annotations

import json

import pytest

from tests.compat.conftest import ORIGINALS, PROGRAMS, Programs

ADAPTERS = ("rl_insight", "verl", "areal", "xtuner_first", "xtuner_otel", "skyrl", "nemo_rl")
AWAY = "http://127.0.0.1:9"
STATES = {
    "on": {},
    "off": {},
    "disabled": {"RL_INSIGHT_ENABLED": "false"},
}


@pytest.fixture(scope="module", params=STATES)
def found(request, tmp_path_factory):
    """One training run through every adapter, with a server that does not respond."""
    home = tmp_path_factory.mktemp("home")
    config = home / "insight.yaml"
    config.write_text("recorder: {finish_timeout_s: 0.2}")
    variables = {"RL_INSIGHT_SERVER_URL": AWAY, "RL_INSIGHT_CONFIG": str(config), "TMPDIR": str(home)}
    state = "off" if request.param == "off" else "on"
    programs = Programs(home)
    words = [PROGRAMS / "adapters.py", state, home]
    printed = programs.python(*words, paths=(ORIGINALS / "verl",), **variables, **STATES[request.param])
    return {"state": request.param, **json.loads(printed.splitlines()[-1])}


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_every_call_answers_and_raises_as_without_the_adapter(found, adapter):
    if adapter == "verl" and adapter not in found["answers"]:
        pytest.skip("verl: not installed: run `make originals`")
    assert found["answers"][adapter] == found["answers"]["plain"]


def test_adapters_that_are_on_write_their_files_without_a_server(found):
    assert found["files"] == (["areal", "otel", "xtuner"] if found["state"] == "on" else [])
