"""Activates the integrations in the Python processes of `rl-insight run`.

The folder `path` next to this file contains a `sitecustomize.py`: with the folder in `PYTHONPATH`, every interpreter
that the command starts, directly or through torchrun, accelerate, Ray or Slurm, activates the integrations.
"""

from __future__ import annotations

import os
from collections.abc import MutableMapping
from pathlib import Path
from types import ModuleType

PATH = str(Path(__file__).parent / "path")
"""The folder with our `sitecustomize.py`."""

SWITCH = "RL_INSIGHT_AUTO"
"""`RL_INSIGHT_AUTO=0` turns the integrations off in the processes of `rl-insight run`."""


def prepare_environment(environ: MutableMapping[str, str]) -> None:
    """Make Python processes with this environment activate the integrations."""
    rest = [folder for folder in environ.get("PYTHONPATH", "").split(os.pathsep) if folder and folder != PATH]
    environ["PYTHONPATH"] = os.pathsep.join([PATH, *rest])
    environ.setdefault(SWITCH, "1")


def activate() -> None:
    """Activate the integrations in this process; imports none of their libraries."""
    from rl_insight.integrations import nemo_rl, openrlhf, prime_rl, slime, trl, verl
    from rl_insight.integrations.hooks import on_import
    from rl_insight.integrations.mirrors import mirror_trackers
    from rl_insight.integrations.timers import record_blocks

    mirror_trackers()
    for integration in (trl, verl, nemo_rl, openrlhf, slime):
        integration.instrument()
    prime_rl.register()
    on_import("areal.utils", _patch_areal)
    # SkyRL's metrics are recorded through the mirrors, unless it has our callback.
    on_import("skyrl.train.utils.utils", record_blocks)
    on_import("transformers.integrations.integration_utils", _patch_reporting)
    on_import("transformers.trainer", _patch_trainer)


def _patch_areal(_module: ModuleType) -> None:
    """Replace AReaL's tracer with ours; `areal.utils` is imported before any of its modules."""
    from rl_insight.compat import areal

    areal.install()


def _patch_reporting(module: ModuleType) -> None:
    """Make `report_to="rl_insight"` work without importing our module."""
    from rl_insight.integrations.transformers import register

    register(module)


def _patch_trainer(module: ModuleType) -> None:
    from rl_insight.integrations.transformers import record_every_trainer

    record_every_trainer(module)
