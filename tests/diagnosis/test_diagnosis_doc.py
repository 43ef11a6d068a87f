"""docs/diagnosis.md matches the rules."""

from __future__ import annotations

from pathlib import Path

import pytest

from docs_reference.diagnosis_rules import updated
from rl_insight.diagnosis.rules import RULES
from rl_insight.diagnosis.settings import make_settings
from rl_insight.errors import ConfigError

DOCUMENT = Path(__file__).parents[2] / "docs" / "diagnosis.md"


def test_the_reference_is_generated_from_the_rules():
    assert DOCUMENT.read_text() == updated(DOCUMENT.read_text())


def test_rules_have_unique_names_and_explain_only_rules_that_exist():
    names = [rule.name for rule in RULES]
    assert len(names) == len(set(names))
    assert {name for rule in RULES for name in rule.explains} <= set(names)


def test_parameters_are_taken_and_rules_switched_off():
    settings = make_settings({"straggler": {"ratio": 2}, "rollout_bound": {"enabled": False}})
    assert settings.values == {"straggler": {"ratio": 2.0}}
    assert settings.off == {"rollout_bound"}


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        ({"stragler": {}}, "did you mean 'straggler'?"),
        ({"straggler": {"ration": 2}}, "the rule has"),
        ({"straggler": {"ratio": "high"}}, "must be a number"),
        ({"straggler": 3}, "write its parameters below it"),
    ],
)
def test_what_cannot_be_used_is_named(rules, said):
    with pytest.raises(ConfigError, match=said.replace("?", r"\?")):
        make_settings(rules)
