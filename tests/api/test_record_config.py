"""The configuration of a run: what is accepted, what is masked, and the limits."""

from __future__ import annotations

import argparse
import dataclasses

import pytest
from omegaconf import OmegaConf

import rl_insight as insight
from rl_insight.recorder.run_config import MAX_KEYS, MAX_TEXT
from rl_insight.schema.names import CONFIG_EVENT
from rl_insight.schema.records import records


@dataclasses.dataclass
class Optimizer:
    lr: float = 1e-6
    betas: tuple[float, float] = (0.9, 0.95)


@dataclasses.dataclass
class Training:
    optimizer: Optimizer = dataclasses.field(default_factory=Optimizer)
    seed: int = 7


def recorded(capture):
    found = {}
    for event in capture.events:
        assert event.name == CONFIG_EVENT
        found |= event.attributes
    return found


@pytest.mark.parametrize(
    "config",
    [
        {"optimizer": {"lr": 1e-6, "betas": [0.9, 0.95]}, "seed": 7},
        Training(),
        OmegaConf.create({"optimizer": {"lr": "${rate}", "betas": [0.9, 0.95]}, "rate": 1e-6, "seed": 7}),
        argparse.Namespace(optimizer=Optimizer(), seed=7),
    ],
    ids=["mapping", "dataclass", "omegaconf", "namespace"],
)
def test_every_kind_of_configuration_becomes_dotted_keys(insight_capture, config):
    insight.record_config(config)
    found = recorded(insight_capture)
    found.pop("rate", None)
    assert found == {"optimizer.lr": 1e-6, "optimizer.betas": [0.9, 0.95], "seed": 7}


def test_values_of_keys_that_look_like_secrets_are_masked(insight_capture):
    insight.record_config({"tracker": {"api_key": "abc", "url": "https://me:hunter22@host/x"}, "HF_TOKEN": "abc"})
    found = recorded(insight_capture)
    assert found["tracker.api_key"] == found["HF_TOKEN"] == "[redacted]"
    assert "hunter22" not in found["tracker.url"]


def test_keys_and_texts_are_bounded_and_the_loss_is_counted(insight_capture):
    insight.record_config({f"key_{number:05}": number for number in range(MAX_KEYS + 10)} | {"text": "x"})
    found = recorded(insight_capture)
    assert len(found) == MAX_KEYS
    assert insight_capture.get_status()["losses"] == {"configs/too_many": 1}
    insight.record_config({"text": "x" * (MAX_TEXT + 5)})
    assert recorded(insight_capture)["text"] == "x" * MAX_TEXT


@pytest.mark.parametrize("config", [7, ["lr"], None, OmegaConf.create({"a": "${missing}"})])
def test_what_is_not_a_configuration_is_refused_without_an_error(insight_capture, config):
    insight.record_config(config)
    assert insight_capture.events == []
    assert insight_capture.get_status()["losses"] == {"configs/unreadable": 1}


def test_a_configuration_that_holds_itself_ends(insight_capture):
    config = {"a": 1}
    config["self"] = config
    insight.record_config(config)
    assert recorded(insight_capture)["self.a"] == 1


def test_init_records_its_run_config_once_and_children_do_not_repeat_it(monitor):
    config = {"server": {"backend": "memory"}, "run_config": {"actor": {"lr": 1e-6}}}
    monitor.init("p", "e", config)
    assert monitor._pipeline.config.run_config == {}
    assert monitor.flush()
    (event,) = (one for batch in monitor._pipeline.transport.batches for one in records(batch))
    assert (event.name, event.attributes) == (CONFIG_EVENT, {"actor.lr": 1e-6})
