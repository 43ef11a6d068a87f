"""The hardware monitor: one thread that reads all sources, records the readings, and keeps means per step."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Sequence
from typing import Any

from rl_insight.hardware.base import Source
from rl_insight.hardware.means import StepMean, StepMeans
from rl_insight.hardware.recording import ReadingRecorder
from rl_insight.hardware.selection import choose_sources
from rl_insight.hardware.tracker_keys import tracker_values
from rl_insight.monitor import default_monitor
from rl_insight.producer import Producer

logger = logging.getLogger("rl_insight")

_STOP_WAIT_S = 0.1
_MIN_INTERVAL_S = 0.05


class HardwareMonitor:
    """Monitors accelerators and hosts from a daemon thread.

    >>> with HardwareMonitor(interval_s=60.0, sources=["host"]) as hardware:
    ...     means = hardware.flush(timeout_s=10.0)
    >>> means["ray/cpu_ram_used_gb.avg"] > 0
    True

    Args:
        interval_s: Seconds between readings.
        sources: `auto`, or sources and names of sources (`ray`, `nvml`, `host`).
        monitor: Records the readings; by default the default monitor.
        key_prefix: The prefix of the keys that `flush` returns.
    """

    def __init__(
        self,
        interval_s: float = 5.0,
        sources: str | Sequence[Source | str] = "auto",
        monitor: Producer | None = None,
        *,
        key_prefix: str = "ray",
    ) -> None:
        if not interval_s > 0:
            raise ValueError(f"interval_s is {interval_s!r}: it must be more than 0 seconds.")
        self._interval_s = max(float(interval_s), _MIN_INTERVAL_S)
        self._wanted = sources
        self._key_prefix = key_prefix
        self._means = StepMeans()
        self._recorder = ReadingRecorder(monitor or default_monitor)
        self._lock = threading.Lock()
        self._sampled = threading.Condition()
        self._samples = 0
        self._failures = 0
        self._logged: set[str] = set()
        self._sources: list[Source] = []
        self._run: _MonitorThread | None = None

    # -- lifecycle

    @property
    def is_running(self) -> bool:
        """Whether the thread is alive, in this process."""
        run = self._run
        return run is not None and run.is_alive()

    def start(self) -> HardwareMonitor:
        """Start monitoring; does nothing if it is running already. Warns if there is nothing to monitor."""
        with self._lock:
            if self.is_running:
                return self
            self._sources = choose_sources(self._wanted)
            if not self._sources:
                logger.warning(
                    "hardware is not monitored: Ray is not initialized, and neither NVML nor psutil can be used. "
                    "Start Ray first, or install rl-insight[nvml]."
                )
                return self
            if not any(source.is_available() for source in self._sources):
                names = ", ".join(source.name for source in self._sources)
                logger.warning("there is no hardware to monitor yet: %s found none. Retrying.", names)
            self._run = _MonitorThread(self)
            self._run.thread.start()
        return self

    def stop(self) -> None:
        """Stop monitoring immediately; means that were not flushed yet are kept. Idempotent."""
        with self._lock:
            run, self._run = self._run, None
        if run is None or not run.is_alive():
            return
        run.stopping.set()
        run.wake.set()
        with self._sampled:
            self._sampled.notify_all()
        # A source that waits for the network returns soon; there is no need to wait for it.
        run.thread.join(_STOP_WAIT_S)

    def __enter__(self) -> HardwareMonitor:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    # -- results

    def flush(self, timeout_s: float = 1.0) -> dict[str, float]:
        """Return the means since the last flush, for a tracker, and start over.

        A step that was shorter than the interval triggers a separate reading, which may take up to `timeout_s`.
        If several threads flush at once, one gets the means and the others an empty dictionary.
        """
        return tracker_values(self.drain(timeout_s), prefix=self._key_prefix)

    def drain(self, timeout_s: float = 1.0) -> list[StepMean]:
        """Return the means since the last flush as records, with all quantities; otherwise like `flush`."""
        run = self._run
        if self._means.is_empty and run is not None and run.is_alive():
            self._sample_within(run, timeout_s)
        return self._means.drain()

    def get_status(self) -> dict[str, Any]:
        """Return the sources and counts of readings."""
        return {
            "running": self.is_running,
            "interval_s": self._interval_s,
            "sources": [source.name for source in self._sources],
            "samples": self._samples,
            "failed_reads": self._failures,
        }

    # -- the thread

    def _sample_within(self, run: _MonitorThread, timeout_s: float) -> None:
        with self._sampled:
            # A reading in progress is sufficient; if it yields nothing, wait for one that starts from now on.
            wanted = run.begun + 1
            run.wake.set()
            self._sampled.wait_for(
                lambda: run.ended >= wanted or not self._means.is_empty or run.stopping.is_set(), timeout=timeout_s
            )

    def _watch(self, run: _MonitorThread) -> None:
        sources = self._sources
        try:
            while not run.stopping.is_set():
                with self._sampled:
                    run.begun += 1
                    run.wake.clear()
                started = time.monotonic()
                for source in sources:
                    self._read(source, run.stopping)
                with self._sampled:
                    self._samples += 1
                    run.ended += 1
                    if not self._means.is_empty:
                        run.wake.clear()  # requests that arrived in the meantime are served
                    self._sampled.notify_all()
                if run.stopping.is_set():  # its wakeup may have been cleared
                    break
                run.wake.wait(max(0.0, started + self._interval_s - time.monotonic()))
        finally:
            for source in sources:
                source.close()

    def _read(self, source: Source, stopping: threading.Event) -> None:
        if stopping.is_set():
            return
        try:
            readings = source.read(stopping)
            fresh = self._means.add(readings)
            self._recorder.record(source.name, fresh)
        except Exception as error:  # noqa: BLE001  # an error in one source must not affect the others
            self._failures += 1
            text = f"{source.name}: {error!r}"
            if len(self._logged) < 100 and text not in self._logged:
                self._logged.add(text)
                logger.warning("hardware source %s could not be read: %r. Retrying.", source.name, error)


class _MonitorThread:
    """The thread's state from one `start` to `stop`; a thread that ends late cannot affect the next one."""

    def __init__(self, monitor: HardwareMonitor) -> None:
        self.stopping = threading.Event()
        self.wake = threading.Event()
        self.begun = self.ended = 0
        """Counts of readings of all sources."""
        self.pid = os.getpid()
        self.thread = threading.Thread(target=monitor._watch, args=(self,), name="rl-insight-hardware", daemon=True)

    def is_alive(self) -> bool:
        return self.pid == os.getpid() and self.thread.is_alive()
