# ruff: noqa: INP001  # a folder of the module path, not a package
"""Activates RL-Insight's integrations when an interpreter starts, then runs the `sitecustomize` that this one hides.

Nothing here may raise: it runs in every Python process of the user's command.
"""

import os
import sys


def _activate() -> None:
    if os.environ.get("RL_INSIGHT_AUTO") != "1":
        return
    try:
        from rl_insight.integrations.launch import activate

        activate()
    except Exception as error:  # noqa: BLE001  # another interpreter, without us or with an older version of us
        sys.stderr.write(f"RL-Insight: its integrations are not active in this process: {error}\n")


def _run_hidden() -> None:
    """Run the `sitecustomize` that would have been found without ours."""
    import importlib.util
    from importlib.machinery import PathFinder

    here = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120  # pathlib would cost each start 5 ms
    others = [folder for folder in sys.path if os.path.abspath(folder or ".") != here]  # noqa: PTH100
    spec = PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


_activate()
_run_hidden()
