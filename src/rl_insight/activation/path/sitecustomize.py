# ruff: noqa: INP001  # a folder of the module path, not a package
"""Activates RL-Insight's integrations when an interpreter imports one of their libraries.

Also runs the `sitecustomize` that this one shadows. Nothing here may raise: it runs in every Python process of the
user's command. Interpreters that import none of the libraries load only this file, not RL-Insight.
"""

import os
import sys

LIBRARIES = frozenset({
    "areal", "mlflow", "nemo_rl", "openrlhf", "prime_rl", "skyrl", "slime", "tensorboardX", "torch", "trackio",
    "transformers", "trl", "verl", "wandb",
})  # fmt: skip


class _Activation:
    """Watches the imports of this interpreter for the first of the libraries; never finds a module itself."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:  # noqa: ARG002
        """Activate the integrations right before a library is imported."""
        if fullname in LIBRARIES and self in sys.meta_path:
            sys.meta_path.remove(self)
            _activate()


def _activate() -> None:
    try:
        from rl_insight.activation import activate

        activate()
    except Exception as error:  # noqa: BLE001  # an interpreter without RL-Insight, or with an older version
        sys.stderr.write(f"RL-Insight: cannot activate the integrations in this process: {error}\n")


def _run_hidden() -> None:
    """Run the `sitecustomize` that Python would have found without ours."""
    from importlib.machinery import PathFinder

    here = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120  # pathlib would add 5 ms to every start
    others = [folder for folder in sys.path if os.path.abspath(folder or ".") != here]  # noqa: PTH100
    spec = PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        from importlib.util import module_from_spec

        spec.loader.exec_module(module_from_spec(spec))


if os.environ.get("RL_INSIGHT_AUTO") == "1":
    sys.meta_path.insert(0, _Activation())
_run_hidden()
