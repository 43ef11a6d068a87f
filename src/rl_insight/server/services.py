"""Everything that a running server owns, opened in order and closed in reverse."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from rl_insight.collector import Collector, Published, Sink
from rl_insight.collector.derived import DerivedMetrics
from rl_insight.collector.sinks.registry import make_sinks
from rl_insight.metrics import reserved_names
from rl_insight.otlp.decode.experiments import ExperimentBook
from rl_insight.server.alerts import Alerts
from rl_insight.server.config import ServerSettings
from rl_insight.server.counters import ByteBudget, ServerCounters
from rl_insight.server.diagnosis import DiagnosisService
from rl_insight.server.ingest import Ingest
from rl_insight.server.ingest_delay import IngestDelay
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
from rl_insight.store.runs import RunDirectory
from rl_insight.store.writer import Committed, StoreWriter

logger = logging.getLogger(__name__)

_WORKERS = 4
_CLOSE_S = 2.0
_DELETE_S = 5.0
"""How long deleting a run waits for its readers: a view, or diagnosis."""
_IDLE_RUN_S = 300.0
_LOST_SESSIONS_S = 5.0
_LOST_SESSIONS_FOR_S = 600.0
"""How long after its last batch a run is checked for lost sessions."""
_REMEMBERED_RUNS = 4


class Services:
    """The parts of a server, without the network.

    >>> services = Services(load_settings(options={"data_dir": "/tmp/insight"}))  # doctest: +SKIP
    >>> app = create_app(services)  # doctest: +SKIP
    >>> services.close()  # doctest: +SKIP

    Args:
        settings: the server's settings.
        sinks: get every stored batch, in addition to the sinks in the settings.
        token: required of every request; None for no authentication.
        page_url: the address of the page, for links from other machines; empty without a network.
    """

    def __init__(
        self, settings: ServerSettings, *, sinks: Iterable[Sink] = (), token: str | None = None, page_url: str = ""
    ) -> None:
        self.settings = settings
        self.token = token
        self.started_ns: int = time.time_ns()
        self.ingest_delay = IngestDelay(self.started_ns)
        self.otlp_port: int | None = None
        """The port for OTLP over HTTP, once the server listens."""
        self.counters: ServerCounters = ServerCounters()
        self.inflight: ByteBudget = ByteBudget(settings.max_inflight_bytes)
        self.workers = ThreadPoolExecutor(_WORKERS, thread_name_prefix="rl-insight-ingest")
        self.runs: RunDirectory = RunDirectory(
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
            runs=self.runs,
        )
        self.writer: StoreWriter = StoreWriter(
            self.runs, max_pending_bytes=settings.store.max_pending_bytes, on_commit=self._publish
        )
        self.pacing = FlushAdvice(self.writer.get_status)
        self.ingest = Ingest(self.writer, self.collector, self.counters)
        experiments = ExperimentBook()
        self.otlp = OtlpReceiver(
            self.ingest,
            self.counters,
            EngineRequests(self.runs),
            experiments,
            namespace=settings.namespace,
            max_items=settings.max_request_items,
        )
        self.targets = TargetBook(settings.directory / TARGETS_FILE)
        self.clients_file = settings.directory / CLIENTS_FILE
        self._clients_mirror = TargetMirror(self.targets.path, self.clients_file, CLIENTS_JOB_LABELS)
        self.scraper: Scraper = Scraper(
            self.targets, self.ingest, settings.scrape, experiments, namespace=settings.namespace
        )
        self.alerts: Alerts = Alerts(settings.alerts, page_url)
        self.stacks = StackRequests(enabled=settings.diagnosis.stacks)
        self.diagnosis: DiagnosisService = DiagnosisService(
            self.runs, settings.diagnosis, self.live, self.alerts, self.stacks, self.ingest_delay
        )
        self.is_ready = False
        """Set once the server accepts requests."""
        self._stop = threading.Event()
        self._housekeeper = threading.Thread(target=self._keep_house, name="rl-insight-housekeeper", daemon=True)
        self._housekeeper.start()

    def _publish(self, run_id: str, committed: Sequence[Committed]) -> None:
        """Publish committed batches to everything that follows the runs; the writer's thread must not block here."""
        self._written[run_id] = time.monotonic()
        self.ingest_delay.note(committed, time.time_ns())
        self.diagnosis.note(run_id)
        self.collector.publish(Published(one.batch, one.size, one.intake, one.new) for one in committed)
        if batches := [one.batch for one in committed if one.new]:
            self.live.note(run_id, batches)

    def _keep_house(self) -> None:
        """Close lost sessions and remove expired targets every few seconds; apply retention at its interval."""
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
        """Run one chore; its failure does not affect the others."""
        try:
            chore()
        except Exception:
            logger.exception("housekeeping failed; it will be retried")

    def _forget_targets(self) -> None:
        if forgotten := self.targets.forget_expired():
            logger.info("removed %d targets whose lease expired", forgotten)
        self.show_targets()

    def show_targets(self) -> None:
        """Update the discovery file for clients of rl-insight 0.3.0."""
        self._try(self._clients_mirror.refresh)

    def _remember_runs(self) -> None:
        """Also check the runs that an earlier server wrote last: their sessions may have been lost with it."""
        written = sorted(self.runs.list_runs(), key=lambda info: info.modified_s, reverse=True)
        for info in written[:_REMEMBERED_RUNS]:
            if not info.problem:
                self._written.setdefault(info.run_id, time.monotonic())
                self.diagnosis.note(info.run_id)

    def close_lost_sessions(self) -> None:
        """Close the sessions of recently written runs whose processes have died."""
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
                as_of_ns = now_ns - self.ingest_delay.behind_ns(now_ns)
                lost = queries.close_lost_sessions(store, as_of_ns, listening_since_ns=self.ingest_delay.since_ns)
        except RunNotFoundError:  # deleted since it was written
            self._written.pop(run_id, None)
            return
        if lost:
            self.diagnosis.note(run_id)
            logger.info("closed %d sessions of run %s as lost: their processes died", len(lost), run_id)

    def delete_run(self, run_id: str) -> None:
        """Delete a run: its file, and its series on `/metrics`."""
        self.runs.delete(run_id, _DELETE_S)
        self.collector.drop_run(run_id)

    def apply_retention(self) -> list[str]:
        """Delete the runs that exceed the retention settings; return their ids."""
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
        """Commit accepted batches, then release everything; return whether all were stored. Idempotent."""
        self.is_ready = False
        self._stop.set()
        self.diagnosis.close()
        self.alerts.close()
        self.workers.shutdown(wait=False, cancel_futures=True)
        stored = self.writer.close(_CLOSE_S)
        self.collector.close(_CLOSE_S)
        self.runs.close()
        if not stored:
            logger.error("some queued batches were not written in time; their senders will retry")
        return stored
