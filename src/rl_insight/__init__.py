"""RL-Insight: always-on, low-friction observability for reinforcement-learning post-training.

>>> import rl_insight as insight
>>> insight.metric_count("rollouts", worker="0")  # a no-op until init()
"""

from rl_insight._version import __version__
from rl_insight.api import (
    attach,
    close,
    finish,
    flush,
    get_status,
    init,
    inject,
    log,
    metric_count,
    metric_distribution,
    metric_gauge,
    metric_histogram,
    metric_value,
    set_step,
    step,
    trace_event,
    trace_op,
    trace_span,
    trace_state,
)
from rl_insight.logging_handler import InsightHandler

__all__ = [
    "InsightHandler",
    "__version__",
    "attach",
    "close",
    "finish",
    "flush",
    "get_status",
    "init",
    "inject",
    "log",
    "metric_count",
    "metric_distribution",
    "metric_gauge",
    "metric_histogram",
    "metric_value",
    "set_step",
    "step",
    "trace_event",
    "trace_op",
    "trace_span",
    "trace_state",
]
