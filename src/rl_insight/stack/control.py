"""The status of the stack of a data directory, and stopping it, whichever process started it."""

from __future__ import annotations

import logging
import os
from functools import partial
from pathlib import Path

import msgspec

from rl_insight.stack.compose import ComposeProject
from rl_insight.stack.errors import StackError
from rl_insight.stack.render import Layout
from rl_insight.stack.service import end_group, end_strays, is_ready
from rl_insight.stack.specs import READY_PATHS
from rl_insight.stack.state import ServiceState, StackState, is_alive, read_state, remove_state
from rl_insight.waiting import wait_for

logger = logging.getLogger(__name__)


class ServiceStatus(ServiceState, frozen=True, kw_only=True, omit_defaults=False):
    """The status of one service; the state of a container is the one its engine reports."""

    ready: bool


class StackStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The status of the stack."""

    running: bool
    """True while its supervisor or its containers run."""
    mode: str = ""
    services: list[ServiceStatus] = []


def stop_stack(directory: Path, *, timeout_s: float = 10.0) -> bool:
    """Stop the stack of a data directory, whichever process started it; False if there was none."""
    layout = Layout(directory.expanduser().resolve())
    state = read_state(layout.root)
    if state is None:
        return end_strays(layout.root, timeout_s) > 0
    # The owner, if it still runs, ends the services itself when the file is gone.
    remove_state(layout.root)
    if state.mode == "compose":
        ComposeProject(layout.compose_file, state.project).down(timeout_s)
        return True
    if is_alive(state.owner_pid, state.owner_created) and state.owner_pid != os.getpid():
        wait_for(lambda: all(map(_is_gone, state.services)), timeout_s * len(state.services) + 5.0)
    for service in reversed(state.services):
        if service.pid is not None:
            end_group(service.pid, partial(_is_gone, service), timeout_s)
    end_strays(layout.root, timeout_s)
    return True


def stack_status(directory: Path) -> StackStatus:
    """Return the status of the stack of a data directory."""
    layout = Layout(directory.expanduser().resolve())
    state = read_state(layout.root)
    if state is None:
        return StackStatus(running=False)
    if state.mode == "compose":
        return _compose_status(layout, state)
    owned = is_alive(state.owner_pid, state.owner_created)
    services = []
    for service in state.services:
        alive = is_alive(service.pid, service.created)
        described = service.state if alive or (owned and service.state == "restarting") else "stopped"
        services.append(_status(service, described))
    return StackStatus(running=owned, mode=state.mode, services=services)


def _is_gone(service: ServiceState) -> bool:
    return not is_alive(service.pid, service.created)


def _compose_status(layout: Layout, state: StackState) -> StackStatus:
    try:
        states = ComposeProject(layout.compose_file, state.project).states()
    except StackError as error:
        logger.warning("%s", error)
        states = {}
    services = [_status(service, states.get(service.name, "stopped")) for service in state.services]
    return StackStatus(running=bool(states), mode=state.mode, services=services)


def _status(service: ServiceState, described: str) -> ServiceStatus:
    known = msgspec.structs.asdict(service) | {"state": described}
    if described == "stopped":
        known["pid"] = None
    ready = described == "running" and is_ready(service.url, READY_PATHS[service.name])
    return ServiceStatus(**known, ready=ready)
