"""The life of a Ray job, for a hub that belongs to the job and not to the process that started it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

_POLL_S = 1.0


def can_watch_job() -> bool:
    """Return whether this version of Ray says which jobs are over; without that, a hub ends with its maker."""
    return _job_table() is not None


def wait_for_end_of_job() -> None:
    """Return when the Ray job of this process is over."""
    import ray

    job_id = ray.get_runtime_context().get_job_id()
    jobs = _job_table()
    while jobs is not None:
        with contextlib.suppress(Exception):  # the cluster's head may be restarting
            if any(job["JobID"] == job_id and job["IsDead"] for job in jobs()):
                return
        time.sleep(_POLL_S)


def _job_table() -> Callable[[], list[dict[str, Any]]] | None:
    """Return Ray's list of jobs; its public spelling asks the dashboard, which many clusters do not have."""
    try:
        from ray._private.state import jobs
    except ImportError:
        return None
    return jobs  # type: ignore[no-any-return]
