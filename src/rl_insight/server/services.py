"""Everything that a running server owns, opened in order and closed in reverse."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import partial

from rl_insight.collector import Collector, Published, Sink
from rl_insight.collector.derived import DerivedMetrics
from rl_insight.collector.sinks.registry import make_sinks
from rl_insight.metrics import reserved_names
from rl_insight.server.alerts import Alerts
from rl_insight.server.config import ServerSettings
from rl_insight.server.counters import ByteBudget, ServerCounters
from rl_insight.server.diagnosis import DiagnosisService
from rl_insight.server.hearing import Hearing
from rl_insight.server.http.bodies import UnpackLimits
from rl_insight.server.ingest import Ingest
from rl_insight.server.launches import Launches
from rl_insight.server.live import LiveNotes
from rl_insight.server.metrics import SERVER
from rl_insight.server.otlp.engine_requests import EngineRequests
from rl_insight.server.otlp.receiver import OtlpReceiver
from rl_insight.server.pacing import FlushAdvice
from rl_insight.server.saved_views import VIEWS_FILE, ViewBook
from rl_insight.server.scrape.scraper import Scraper
from rl_insight.server.scrape.targets import TargetBook
from rl_insight.server.stacks import StackRequests
from rl_insight.stack.discovery import CLIENTS_FILE, CLIENTS_JOB_LABELS, TARGETS_FILE, TargetMirror
from rl_insight.store import queries
from rl_insight.store.errors import RunNotFoundError
from rl_insight.store.run_store import RunStore
from rl_insight.store.runs import RunDirectory
from rl_insight.store.writer import Committed, StoreWriter

logger = logging.getLogger(__name__)

_WORKERS = 4
_CLOSE_S = 2.0
_DELETE_S = 5.0
"""How long the deletion of a run waits for those who read it: a view, or diagnosis."""
_IDLE_RUN_S = 300.0
_LOST_SESSIONS_S = 5.0
_LOST_SESSIONS_FOR_S = 600.0
"""How long after its last batch a run is looked at: its processes have been silent for long by then."""
_REMEMBERED_RUNS = 4


class Services:
    """The parts of a server, without a network.

    >>> services = Services(load_settings(options={"data_dir": "/tmp/insight"}))  # doctest: +SKIP
    >>> app = create_app(services)  # doctest: +SKIP
    >>> services.close()  # doctest: +SKIP

    Query routes read from `runs`; a live stream reads `live`; sinks are given at the start.

    Args:
        settings: the server's settings.
        sinks: where every stored batch is handed on to, besides those that the settings switch on.
        token: what every request must show; None where none is asked for.
    """

    def __init__(self, settings: ServerSettings, *, sinks: Iterable[Sink] = (), token: str | None = None) -> None:
        self.settings = settings
        self.token = token
        self.started_ns = time.time_ns()
        self.hearing = Hearing(self.started_ns)
        self.otlp_port: int | None = None
        """Where OTLP over HTTP is taken, once the server listens."""
        self.counters = ServerCounters()
        self.inflight = ByteBudget(settings.max_inflight_bytes)
        self.unpack_limits = UnpackLimits(settings.max_decompressed_bytes, settings.max_decompression_ratio)
        self.workers = ThreadPoolExecutor(_WORKERS, thread_name_prefix="rl-insight-ingest")
        self.runs = RunDirectory(
            settings.directory,
            max_open=settings.store.max_open_runs,
            max_open_bytes=settings.store.max_open_bytes,
            memory_limit=settings.store.memory_limit,
            min_free_bytes=settings.store.min_free_bytes,
        )
        self.launches = Launches(self.runs)
        self.live = LiveNotes()
        self.views = ViewBook(settings.directory / VIEWS_FILE)
        self._written: dict[str, float] = {}
        """When each run was last written, by the monotonic clock."""
        self.collector = Collector(
            [DerivedMetrics(), *sinks, *make_sinks(settings.sinks)],
            namespace=settings.namespace,
            reserved=reserved_names(SERVER.declarations),
            runs=_Runs(self.runs),
        )
        self.writer = StoreWriter(
            self.runs, max_pending_bytes=settings.store.max_pending_bytes, on_commit=self._publish
        )
        self.pacing = FlushAdvice(self.writer.get_status)
        self.ingest = Ingest(self.writer, self.collector, self.counters)
        self.otlp = OtlpReceiver(
            self.ingest, self.counters, EngineRequests(self.runs), max_items=settings.max_request_items
        )
        self.targets = TargetBook(settings.directory / TARGETS_FILE)
        self.clients_file = settings.directory / CLIENTS_FILE
        self._clients_mirror = TargetMirror(self.targets.path, self.clients_file, CLIENTS_JOB_LABELS)
        self.scraper = Scraper(self.targets, self.ingest, settings.scrape, namespace=settings.namespace)
        self.alerts = Alerts(settings.alerts, f"http://{settings.host}:{settings.port}")
        self.stacks = StackRequests(enabled=settings.diagnosis.stacks)
        self.diagnosis = DiagnosisService(
            self.runs, settings.diagnosis, self.live, self.alerts, self.stacks, self.hearing
        )
        self.is_ready = False
        """Set by the listener, once everything can be reached."""
        self._stop = threading.Event()
        self._housekeeper = threading.Thread(target=self._keep_house, name="rl-insight-housekeeper", daemon=True)
        self._housekeeper.start()

    def _publish(self, run_id: str, committed: Sequence[Committed]) -> None:
        """Show what was committed to everything that follows the runs; on the writer's thread, so nothing may wait."""
        self._written[run_id] = time.monotonic()
        self.hearing.note(committed, time.time_ns())
        self.diagnosis.note(run_id)
        self.collector.publish(Published(one.batch, one.size, one.intake, one.new) for one in committed)
        if batches := [one.batch for one in committed if one.new]:
            self.live.note(run_id, batches)

    def _keep_house(self) -> None:
        """Close lost sessions and forget silent targets every few seconds; clean up at the interval of retention."""
        next_cleaning = time.monotonic() + self.settings.retention.interval_s
        self._try(self._remember_runs)
        while not self._stop.wait(_LOST_SESSIONS_S):
            for chore in (self._forget_targets, self.close_lost_sessions, self.runs.trim):
                self._try(chore)
            if time.monotonic() >= next_cleaning:
                next_cleaning = time.monotonic() + self.settings.retention.interval_s
                self._try(partial(self.runs.close_idle, _IDLE_RUN_S))
                self._try(self.apply_retention)

    def _try(self, chore: Callable[[], object]) -> None:
        """Do one chore; its failure keeps none of the others from being done."""
        try:
            chore()
        except Exception:
            logger.exception("housekeeping failed: it is tried again later")

    def _forget_targets(self) -> None:
        if forgotten := self.targets.forget_expired():
            logger.info("forgot %d targets that did not register again in time", forgotten)
        self.show_targets()

    def show_targets(self) -> None:
        """Bring the discovery file of clients of rl-insight 0.3.0 up to date."""
        self._try(self._clients_mirror.refresh)

    def _remember_runs(self) -> None:
        """Look at the runs that an earlier server wrote last too: their sessions may have been lost with it."""
        written = sorted(self.runs.list_runs(), key=lambda info: info.modified_s, reverse=True)
        for info in written[:_REMEMBERED_RUNS]:
            if not info.problem:
                self._written.setdefault(info.run_id, time.monotonic())
                self.diagnosis.note(info.run_id)

    def close_lost_sessions(self) -> None:
        """Close the sessions of recently written runs whose processes are gone."""
        oldest = time.monotonic() - _LOST_SESSIONS_FOR_S
        for run_id, written in list(self._written.items()):
            if written < oldest:
                self._written.pop(run_id, None)
            else:
                self._try(partial(self._close_lost_sessions_of, run_id))

    def _close_lost_sessions_of(self, run_id: str) -> None:
        try:
            with self.runs.open(run_id) as store:
                now_ns = time.time_ns()
                heard_ns = now_ns - self.hearing.behind_ns(now_ns)
                lost = queries.close_lost_sessions(store, heard_ns, listening_since_ns=self.hearing.since_ns)
        except RunNotFoundError:  # deleted since it was written
            self._written.pop(run_id, None)
            return
        if lost:
            self.diagnosis.note(run_id)
            logger.info("closed %d sessions of run %s as lost: their processes are gone", len(lost), run_id)

    def delete_run(self, run_id: str) -> None:
        """Delete a run: its file, and its metrics on `/metrics`."""
        self.runs.delete(run_id, _DELETE_S)
        self.collector.drop_run(run_id)

    def apply_retention(self) -> list[str]:
        """Delete the runs that retention does not keep; returns their ids."""
        retention = self.settings.retention
        if retention.max_age_days is None and retention.max_total_gb is None:
            return []
        deleted = self.runs.apply_retention(
            max_age_s=None if retention.max_age_days is None else retention.max_age_days * 86_400,
            max_total_bytes=None if retention.max_total_gb is None else int(retention.max_total_gb * 1e9),
            keep_s=_IDLE_RUN_S,
        )
        for run_id in deleted:
            self.collector.drop_run(run_id)
        return deleted

    def close(self) -> bool:
        """Store what was accepted, then release everything; True when all of it was stored. Idempotent."""
        self.is_ready = False
        self._stop.set()
        self.diagnosis.close()
        self.alerts.close()
        self.workers.shutdown(wait=False, cancel_futures=True)
        stored = self.writer.close(_CLOSE_S)
        self.collector.close(_CLOSE_S)
        self.runs.close()
        if not stored:
            logger.error("not everything that waited was written in time: its senders will send it again")
        return stored


class _Runs:
    """The runs as sinks see them."""

    def __init__(self, directory: RunDirectory) -> None:
        self._directory = directory

    def run_ids(self) -> list[str]:
        """Return the ids of all runs that can be read."""
        return [info.run_id for info in self._directory.list_runs() if not info.problem]

    def open_run(self, run_id: str) -> AbstractContextManager[RunStore]:
        """Lend a run's store."""
        return self._directory.open(run_id)
