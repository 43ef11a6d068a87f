"""What `rl-insight run` puts into the Python processes of a command.

The folder `path` beside this file holds a `sitecustomize.py`: with the folder in `PYTHONPATH`, every interpreter that
the command starts, directly or through torchrun, accelerate, Ray or Slurm, activates the integrations.
"""

from __future__ import annotations

import os
from collections.abc import MutableMapping
from pathlib import Path
from types import ModuleType

PATH = str(Path(__file__).parent / "path")
"""The folder with our `sitecustomize.py`."""

SWITCH = "RL_INSIGHT_AUTO"
"""`RL_INSIGHT_AUTO=0` leaves the integrations out of the processes of `rl-insight run`."""


def prepare_environment(environ: MutableMapping[str, str]) -> None:
    """Have the Python processes that get this environment activate the integrations."""
    rest = [folder for folder in environ.get("PYTHONPATH", "").split(os.pathsep) if folder and folder != PATH]
    environ["PYTHONPATH"] = os.pathsep.join([PATH, *rest])
    environ.setdefault(SWITCH, "1")


def activate() -> None:
    """Activate the integrations in this process; imports none of the libraries that they wait for."""
    from rl_insight.integrations import nemo_rl, openrlhf, prime_rl, slime, trl, verl
    from rl_insight.integrations.hooks import on_import
    from rl_insight.integrations.mirrors import mirror_trackers

    mirror_trackers()
    trl.instrument()
    verl.instrument()
    nemo_rl.instrument()
    openrlhf.instrument()
    prime_rl.register()
    slime.instrument()
    on_import("areal.utils", _install_areal_tracer)
    on_import("skyrl.train.utils.utils", _time_skyrl)
    on_import("transformers.integrations.integration_utils", _register_with_transformers)
    on_import("transformers.trainer", _record_trainers)


def _install_areal_tracer(_module: ModuleType) -> None:
    """Put our tracer in place of AReaL's; `areal.utils` is imported before any of its modules."""
    from rl_insight.compat import areal

    areal.install()


def _time_skyrl(module: ModuleType) -> None:
    """Record what SkyRL times; what it logs comes through the mirrors, unless it has our callback."""
    from rl_insight.integrations.timers import record_blocks

    record_blocks(module.Timer)


def _register_with_transformers(module: ModuleType) -> None:
    """Have `report_to="rl_insight"` work without an import of ours."""
    from rl_insight.integrations.transformers import register

    register(module)


def _record_trainers(module: ModuleType) -> None:
    from rl_insight.integrations.transformers import record_every_trainer

    record_every_trainer(module)
