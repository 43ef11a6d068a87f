"""Prometheus, Tempo and Grafana next to the server, for teams and for more than one machine. See `docs/stack.md`."""

from __future__ import annotations

from rl_insight.stack.control import StackStatus, stack_status, stop_stack
from rl_insight.stack.discovery import ray_metrics_addresses
from rl_insight.stack.errors import MissingProgramError, StackError
from rl_insight.stack.install import install_programs
from rl_insight.stack.launch import RunningStack, start_stack
from rl_insight.stack.render import MetricsEndpointOfServer
from rl_insight.stack.settings import StackSettings

__all__ = [
    "MetricsEndpointOfServer",
    "MissingProgramError",
    "RunningStack",
    "StackError",
    "StackSettings",
    "StackStatus",
    "install_programs",
    "ray_metrics_addresses",
    "stack_status",
    "start_stack",
    "stop_stack",
]
