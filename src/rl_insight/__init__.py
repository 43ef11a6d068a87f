"""RL-Insight: always-on, low-friction observability for reinforcement-learning post-training.

>>> import rl_insight as insight
>>> insight.metric_count("rollouts", worker="0")  # a no-op until init()
"""

from typing import TYPE_CHECKING, Any

from rl_insight._version import __version__
from rl_insight.logging_handler import InsightHandler
from rl_insight.monitor import default_monitor as _monitor

if TYPE_CHECKING:
    from rl_insight import hardware
    from rl_insight.agent_loop import agent_loop_session
    from rl_insight.hardware import monitor_hardware
    from rl_insight.integrations.ray import call_remote, traced_remote
    from rl_insight.reader import open_run, runs
    from rl_insight.targets import update_prometheus_config

init = _monitor.init
finish = _monitor.finish
close = _monitor.close
flush = _monitor.flush
get_status = _monitor.get_status
run_url = _monitor.run_url

metric_count = _monitor.metric_count
metric_gauge = _monitor.metric_gauge
metric_histogram = _monitor.metric_histogram
metric_value = _monitor.metric_value
metric_distribution = _monitor.metric_distribution

trace_state = _monitor.trace_state
trace_op = _monitor.trace_op
trace_span = _monitor.trace_span
trace_event = _monitor.trace_event
alert = _monitor.alert
log = _monitor.log

session = _monitor.session
phase = _monitor.phase
task = _monitor.task
current_session = _monitor.current_session

record_config = _monitor.record_config
set_step = _monitor.set_step
step = _monitor.step
inject = _monitor.inject
attach = _monitor.attach

__all__ = [
    "InsightHandler",
    "__version__",
    "agent_loop_session",
    "alert",
    "attach",
    "call_remote",
    "close",
    "current_session",
    "finish",
    "flush",
    "get_status",
    "hardware",
    "init",
    "inject",
    "log",
    "metric_count",
    "metric_distribution",
    "metric_gauge",
    "metric_histogram",
    "metric_value",
    "monitor_hardware",
    "open_run",
    "phase",
    "record_config",
    "run_url",
    "runs",
    "session",
    "set_step",
    "step",
    "task",
    "trace_event",
    "trace_op",
    "trace_span",
    "trace_state",
    "traced_remote",
    "update_prometheus_config",
]

_LAZY = {
    "agent_loop_session": "rl_insight.agent_loop",
    "call_remote": "rl_insight.integrations.ray",
    "hardware": "rl_insight.hardware",
    "monitor_hardware": "rl_insight.hardware",
    "open_run": "rl_insight.reader",
    "runs": "rl_insight.reader",
    "traced_remote": "rl_insight.integrations.ray",
    "update_prometheus_config": "rl_insight.targets",
}
"""Public names from modules that most programs do not need."""


if not TYPE_CHECKING:  # a type checker must know these names, and only these

    def __getattr__(name: str) -> Any:
        """Import a public name on its first use."""
        if name not in _LAZY:
            raise AttributeError(f"module 'rl_insight' has no attribute {name!r}")
        import importlib

        module = importlib.import_module(_LAZY[name])
        return getattr(module, name, module)

    def __dir__() -> list[str]:
        """List the public API."""
        return __all__
