"""Decide when an integration records: on request, or, if loaded automatically, when a server is known."""

from __future__ import annotations

import contextlib
import os
from typing import Any

from rl_insight.config.loading import CONFIG_FILE_VARIABLE, SERVER_VARIABLE, environment_config
from rl_insight.config.paths import find_local_server
from rl_insight.errors import ConfigError
from rl_insight.monitor import default_monitor
from rl_insight.recorder.propagation import INHERIT_VARIABLE

_CONFIGURED = (SERVER_VARIABLE, CONFIG_FILE_VARIABLE, INHERIT_VARIABLE)


def is_wanted() -> bool:
    """Return whether this process records or would find a server: a configured one, or one on this machine.

    Integrations that another project loads automatically stay inert otherwise.
    """
    if default_monitor.get_status()["recording"]:
        return True
    with contextlib.suppress(ConfigError):  # `init` will report it
        if not environment_config().enabled:
            return False
    return any(os.environ.get(name) for name in _CONFIGURED) or find_local_server() is not None


def ensure_started(project: str, experiment_name: str, **identity: Any) -> None:
    """Start recording, unless this process already records or will join the run of a parent process."""
    if default_monitor.get_status()["recording"] or os.environ.get(INHERIT_VARIABLE):
        return
    default_monitor.init(project, experiment_name, **identity)
