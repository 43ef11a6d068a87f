"""Every public name of the originals exists, and accepts the same arguments."""

from __future__ import annotations

import inspect

import pytest

from rl_insight.compat import xtuner
from rl_insight.compat.xtuner import rollout_api
from tests.compat.conftest import Programs


def missing(theirs, ours):
    """Return the parameters of a call that ours does not accept, and those that only ours requires."""
    if theirs is None or ours is None:
        return []
    known, given = {name for name, _, _ in ours}, {name for name, _, _ in theirs}
    if any(kind.startswith("VAR_") for _, kind, _ in ours):
        return []
    absent = [name for name, kind, _ in theirs if name not in known and not kind.startswith("VAR_")]
    return absent + [name for name, _, is_required in ours if is_required and name not in given]


@pytest.mark.parametrize(("package", "original"), [("rl_insight", "rl-insight"), ("areal", "areal")])
def test_every_name_takes_the_same_arguments(tmp_path, package, original):
    programs = Programs(tmp_path)
    theirs, ours = (programs.run("signatures.py", which, package, original=original) for which in ("original", "ours"))
    assert theirs.keys() - ours.keys() == set()
    assert len(theirs) > 10
    problems = {}
    theirs.get("SessionTracer", {})["call"] = None  # only its PerfTracer makes one
    for name, their in theirs.items():
        calls = {"": (their["call"], ours[name]["call"])}
        calls |= {method: (call, ours[name]["methods"].get(method)) for method, call in their["methods"].items()}
        for method, (call, own) in calls.items():
            if method and own is None and call is not None:
                problems[f"{name}.{method}"] = "absent"
            elif found := missing(call, own):
                problems[f"{name}.{method}"] = found
    assert problems == {}


XTUNER = {
    "configure_trace": ["config", "output_dir"],
    "configure_trace_runtime": ["config"],
    "current_trace_runtime": [],
    "get_tracer": [],
    "flush_trace": [],
    "close_trace": [],
    "get_trace_env_vars": [],
    "merge_trace_runtime_env": ["actor_options"],
    "build_trace_id": ["task_name", "uid"],
    "build_produce_batch_id": ["train_step", "model_step", "producer_future_step"],
    "build_trace_event": ["target", "stage"],
    "set_trace_attributes": ["attributes"],
    "inject_trace_context": ["carrier"],
}
ROLLOUT = {
    "trace_rollout_endpoint": ["span_name", "target_arg", "initial_attributes"],
    "trace_rollout_remote": ["remote_method", "target"],
    "is_rollout_trace_enabled": [],
    "extract_rollout_trace_parent_carrier": ["state"],
    "rollout_state_initial_attributes": ["state"],
    "rollout_state_final_attributes": ["state"],
}
CONSTANTS = {
    "TRACE_EXTRA_TRAIN_STEP": "_trace_train_step",
    "TRACE_EXTRA_MODEL_STEP": "_trace_model_step",
    "TRACE_EXTRA_PRODUCER_FUTURE_STEP": "_trace_producer_future_step",
    "TRACE_EXTRA_PRODUCE_BATCH_ID": "_trace_produce_batch_id",
    "TRACE_JSONL_BASENAME": "producer_trace",
    "TRACE_VIEWER_SCOPE_LATEST_PRODUCE_BATCH": "latest-produce-batch",
    "TRACE_VIEWER_SCOPE_ALL": "all",
}


@pytest.mark.parametrize(("module", "names"), [(xtuner, XTUNER), (rollout_api, ROLLOUT)], ids=["trace", "rollout_api"])
def test_xtuners_names_take_the_documented_arguments(module, names):
    for name, expected in names.items():
        found = inspect.signature(getattr(module, name)).parameters
        assert [one for one in expected if one not in found] == [], name
        required = [one.name for one in found.values() if one.default is one.empty and one.kind < one.VAR_POSITIONAL]
        assert set(required) <= set(expected), name


def test_xtuners_constants():
    assert {name: getattr(xtuner, name) for name in CONSTANTS} == CONSTANTS
