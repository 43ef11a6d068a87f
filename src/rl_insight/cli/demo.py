"""`rl-insight demo`: the example training, which needs neither a GPU nor a model."""

from __future__ import annotations

import sys
from pathlib import Path

import typer

from rl_insight.errors import InsightError

_PACKAGE = Path(__file__).parents[1]
_PLACES = (_PACKAGE / "demo", _PACKAGE.parents[1])
"""In a wheel, and in a checkout."""


def demo(context: typer.Context) -> int:
    """Run the example training: asynchronous GRPO on a toy task, recorded by the local server or a temporary one.

    Options are those of the example: `rl-insight demo -- --help` lists them.
    """
    place = next((place for place in _PLACES if (place / "examples" / "async_grpo").is_dir()), None)
    if place is None:
        raise InsightError("the example is not part of this installation: install a release, or run it from a clone.")
    # Its worker processes find it on the path, too.
    sys.path.insert(0, str(place))
    from examples.async_grpo.launcher import main

    return main(list(context.args), "rl-insight demo")
