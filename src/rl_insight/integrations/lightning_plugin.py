"""What Lightning loads by itself, through its entry point `lightning.pytorch.callbacks_factory`.

Apart from the callback: importing this must succeed with every version of Lightning, because every trainer does.
"""

from __future__ import annotations

from typing import Any

from rl_insight.integrations.hooks import report_once
from rl_insight.integrations.starting import is_wanted


def callbacks() -> list[Any]:
    """Return the callback where a server is configured or running, else nothing: Lightning asks every trainer."""
    try:
        if not is_wanted():
            return []
        from rl_insight.integrations.lightning import InsightLightningCallback

        return [InsightLightningCallback()]
    except Exception as error:  # noqa: BLE001  # a trainer must start as if we were not here
        report_once("the integration with lightning", error)
        return []
