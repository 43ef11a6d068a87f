"""The public names of an original or of ours, with their parameters: `signatures.py WHICH rl_insight|areal`."""

from __future__ import annotations

import inspect
import sys

import perf_tracers


def parameters(value):
    """Return the names of a callable's parameters with their kinds; None if it is not callable."""
    if not callable(value):
        return None
    try:
        found = inspect.signature(value).parameters.values()
    except ValueError:
        return None
    return [[one.name, one.kind.name, one.default is inspect.Parameter.empty] for one in found if one.name != "self"]


def methods(value):
    if not inspect.isclass(value):
        return {}
    return {name: parameters(one) for name, one in inspect.getmembers(value) if not name.startswith("_")}


which, package = sys.argv[1:]
if package == "areal":
    module = perf_tracers.load(which)
else:
    import rl_insight as module
    import rl_insight.agent_loop as more

    for name in ("agent_loop_session", "agent_loop_lane_id"):
        setattr(module, name, getattr(more, name))
names = {*module.__all__, *(("agent_loop_lane_id",) if package == "rl_insight" else ())}
found = {name: {"call": parameters(getattr(module, name)), "methods": methods(getattr(module, name))} for name in names}
perf_tracers.say(**found)
