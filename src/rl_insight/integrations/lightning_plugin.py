"""The factory that Lightning loads automatically, through its entry point `lightning.pytorch.callbacks_factory`.

It is separate from the callback because every trainer imports it: that must succeed with every version of Lightning.
"""

from __future__ import annotations

from typing import Any

from rl_insight.integrations.hooks import quiet
from rl_insight.integrations.starting import is_wanted


@quiet("the integration with lightning", otherwise=[])
def callbacks() -> list[Any]:
    """Return the callback if a server is configured or running, else an empty list."""
    if not is_wanted():
        return []
    from rl_insight.integrations.lightning import InsightLightningCallback

    return [InsightLightningCallback()]
