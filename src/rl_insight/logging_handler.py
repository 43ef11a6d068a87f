"""Sends records of Python's `logging` to RL-Insight, with the current span, session, step and lane."""

from __future__ import annotations

import logging
from typing import Any

from rl_insight.monitor import default_monitor
from rl_insight.producer import Producer
from rl_insight.recorder.losses import safe_text
from rl_insight.recorder.recorder import LOG

_STANDARD = frozenset(vars(logging.LogRecord("", 0, "", 0, "", None, None))) | {"message", "asctime", "taskName"}


class InsightHandler(logging.Handler):
    """A logging handler; `extra=` values become fields.

    >>> import logging
    >>> logging.getLogger("trainer").addHandler(InsightHandler(level=logging.INFO))
    >>> logging.getLogger("trainer").warning("reward is %s", "NaN", extra={"sample": 17})
    """

    def __init__(self, level: int | str = logging.NOTSET, *, monitor: Producer | None = None) -> None:
        super().__init__(level)
        self._monitor = monitor

    def emit(self, record: logging.LogRecord) -> None:
        """Record one line; RL-Insight's own lines are skipped to prevent feedback loops."""
        if record.name == "rl_insight" or record.name.startswith("rl_insight."):
            return
        monitor = self._monitor or default_monitor
        recorder = monitor.active_recorder()
        if recorder is None:
            return
        given = vars(record).items()
        # Names with a leading "_" come from a library's record class, such as Ray's `_ray_timestamp_ns`.
        fields: dict[str, Any] = {key: value for key, value in given if key not in _STANDARD and key[:1] != "_"}
        if record.exc_info and record.exc_info[0] is not None:
            fields["exception.type"] = record.exc_info[0].__name__
            fields["exception.stacktrace"] = (self.formatter or _formatter).formatException(record.exc_info)
        fields["code.location"] = f"{record.pathname}:{record.lineno}"
        try:
            message = record.getMessage()
        except Exception:  # noqa: BLE001  # arguments that do not fit the format
            message = safe_text(record.msg)
        recorder.record_point(LOG, record.levelno, message, fields, record.name)


_formatter = logging.Formatter()
