import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_insight.schema.names import label_name, metric_name


@pytest.mark.parametrize(
    ("given_name", "expected"),
    [
        ("reward", "reward"),
        ("timing_s/step", "timing_s_step"),
        ("actor.loss-mean", "actor_loss_mean"),
        ("vllm:tokens", "vllm:tokens"),
        ("99th", "_99th"),
        ("", "_"),
        ("größe", "gr__e"),
        ("²", "_"),
        ("a b\n", "a_b_"),
    ],
)
def test_metric_names(given_name, expected):
    assert metric_name(given_name) == expected


@pytest.mark.parametrize(
    ("given_name", "expected"),
    [
        ("worker", "worker"),
        ("data.source", "data_source"),
        ("a:b", "a_b"),
        ("__name__", "_name__"),
        ("__", "_"),
        ("_private", "_private"),
        ("0", "_0"),
        ("", "_"),
    ],
)
def test_label_names(given_name, expected):
    assert label_name(given_name) == expected


@given(st.text())
def test_any_name_becomes_one_that_prometheus_accepts_and_stays_so(name):
    assert re.fullmatch(r"[a-zA-Z_:][a-zA-Z0-9_:]*", metric_name(name))
    assert re.fullmatch(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*", label_name(name))
    assert metric_name(metric_name(name)) == metric_name(name)
    assert label_name(label_name(name)) == label_name(name)
