# ruff: noqa: INP001  # a folder of the module path, not a package
"""Activates RL-Insight's integrations when an interpreter imports one of their libraries.

Also runs the `sitecustomize` that this one hides. Nothing here may raise: it runs in every Python process of the user's
command. Interpreters that need none of the libraries pay for this file alone, not for the import of RL-Insight.
"""

import os
import sys

LIBRARIES = frozenset({
    "areal", "mlflow", "nemo_rl", "openrlhf", "prime_rl", "skyrl", "slime", "tensorboardX", "torch", "trackio",
    "transformers", "trl", "verl", "wandb",
})  # fmt: skip


class _Activation:
    """Looks at the imports of this interpreter until one of the libraries comes; finds nothing itself."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:  # noqa: ARG002
        """Activate the integrations right before a library is imported."""
        if fullname in LIBRARIES and self in sys.meta_path:
            sys.meta_path.remove(self)
            _activate()


def _activate() -> None:
    try:
        from rl_insight.activation import activate

        activate()
    except Exception as error:  # noqa: BLE001  # another interpreter, without us or with an older version of us
        sys.stderr.write(f"RL-Insight: its integrations are not active in this process: {error}\n")


def _run_hidden() -> None:
    """Run the `sitecustomize` that would have been found without ours."""
    from importlib.machinery import PathFinder

    here = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120  # pathlib would cost each start 5 ms
    others = [folder for folder in sys.path if os.path.abspath(folder or ".") != here]  # noqa: PTH100
    spec = PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        from importlib.util import module_from_spec

        spec.loader.exec_module(module_from_spec(spec))


if os.environ.get("RL_INSIGHT_AUTO") == "1":
    sys.meta_path.insert(0, _Activation())
_run_hidden()
