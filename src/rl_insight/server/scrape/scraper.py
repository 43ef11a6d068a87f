"""Scrapes the registered targets periodically and feeds their metrics into the ingest path."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf, isfinite

import msgspec
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from rl_insight.collector.health import HEALTH
from rl_insight.intake import first_assigned_sequence
from rl_insight.metrics import COUNTER, GAUGE, HISTOGRAM, Distribution
from rl_insight.metrics.totals import TotalsTable, explicit_codes
from rl_insight.otlp.decode.experiments import ExperimentBook
from rl_insight.schema import Batch, BatchBuilder, Process
from rl_insight.schema.names import DEFAULT_NAMESPACE, TARGET_PROCESS_PREFIX, TRAINER_JOB
from rl_insight.server.config import ScrapeSettings
from rl_insight.server.ingest import Ingest
from rl_insight.server.scrape._http_get import Page, ScrapeError, fetch
from rl_insight.server.scrape.client_runs import ClientRuns
from rl_insight.server.scrape.targets import Target, TargetBook

logger = logging.getLogger(__name__)

ACCEPT = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4"
_MAX_AT_ONCE = 64
_STORED_FAILURES_S = 30.0
_DROPPED_SAMPLES = frozenset({"_created"})
_HUB_PREFIX = "hub_"
_NOT_OF_THE_HUB = frozenset({"telemetry_lost", "collector_clock_offset_seconds"})
"""Reported by the processes behind a hub, and therefore in their batches."""
_encode = msgspec.json.Encoder(order="sorted").encode


class TargetHealth(msgspec.Struct, frozen=True):
    """The result of the last scrape of a target."""

    is_up: bool
    scraped_ns: int
    duration_s: float
    samples: int = 0
    problem: str = ""


class Scraper:
    """One task per target: a target that hangs or sends garbage does not delay the others."""

    def __init__(
        self,
        targets: TargetBook,
        ingest: Ingest,
        settings: ScrapeSettings,
        experiments: ExperimentBook,
        namespace: str = DEFAULT_NAMESPACE,
    ) -> None:
        self._targets = targets
        self._ingest = ingest
        self._settings = settings
        self._namespace = namespace
        self._hub_names = _hub_names(namespace)
        self._clients = ClientRuns(experiments, namespace)
        self._health: dict[str, TargetHealth] = {}
        self._processes: dict[tuple[str, str], _TargetProcess] = {}
        self._slots = asyncio.Semaphore(_MAX_AT_ONCE)

    def health(self) -> dict[str, TargetHealth]:
        """Return the result of the last scrape of each target, by URL, except those not scraped yet."""
        known = {target.url for target in self._targets.list()}
        return {url: health for url, health in self._health.items() if url in known}

    async def run(self) -> None:
        """Scrape every target at each interval, until cancelled."""
        tasks: dict[str, asyncio.Task[None]] = {}
        try:
            while True:
                wanted = {target.url for target in self._targets.list()}
                for url in [url for url in tasks if url not in wanted]:
                    tasks.pop(url).cancel()
                    try:
                        self._forget(url)
                    except Exception:
                        logger.exception("the last batch of %s could not be stored", url)
                for url in wanted:
                    # A task also ends when it finds its target removed, and the target may be back.
                    if url not in tasks or tasks[url].done():
                        tasks[url] = asyncio.create_task(self._follow(url))
                await asyncio.sleep(min(1.0, self._settings.interval_s))
        finally:
            for task in tasks.values():
                task.cancel()

    def _forget(self, url: str) -> None:
        self._health.pop(url, None)
        self._clients.forget(url)
        ended = [self._processes.pop(key) for key in [key for key in self._processes if key[0] == url]]
        # A removed target that had a lease has ended, like a process that sent its last batch.
        self._ingest.submit_batches([last for process in ended if (last := process.last_batch())], "scrape")

    async def _follow(self, url: str) -> None:
        while True:
            began = time.monotonic()
            target = next((target for target in self._targets.list() if target.url == url), None)
            if target is None:
                return
            try:
                async with self._slots:
                    await self.scrape(target)
            except Exception:
                logger.exception("scraping %s failed", url)
            await asyncio.sleep(max(self._settings.interval_s - (time.monotonic() - began), 0.05))

    async def scrape(self, target: Target) -> TargetHealth:
        """Scrape one target, and store its metrics in its run, together with `up` and the duration."""
        began = time.monotonic()
        settings = self._settings
        now_ns = time.time_ns()
        problem, samples = "", 0
        parts = [(target, BatchBuilder())]
        try:
            page = await fetch(target.url, accept=ACCEPT, timeout_s=settings.timeout_s, limit=settings.max_body_bytes)
            families = await asyncio.to_thread(read_page, page)
            shown = self._clients.parts(target, families) if target.client_host else [(target, families)]
            parts = [(part, await asyncio.to_thread(self._read, part, own, now_ns)) for part, own in shown]
            samples = sum(len(builder) for _, builder in parts)
        except (ScrapeError, ValueError) as error:
            problem = str(error) or type(error).__name__
            parts = [(target, BatchBuilder())]
        duration = time.monotonic() - began
        health = TargetHealth(not problem, now_ns, duration, samples, problem)
        self._note(target, health)
        if parts[-1][0] is not target:
            await asyncio.to_thread(self._targets.assign, parts[-1][0])
        batches = []
        for part, builder in parts:
            process = self._process_of(part)
            if not part.run_id or not process.stores(part, is_up=health.is_up, now_ns=now_ns):
                continue
            own = _encode(_own_labels(part)).decode()
            for name, value in (("up", 0.0 if problem else 1.0), ("scrape_duration_seconds", duration)):
                builder.add_sample(builder.add_series(name, GAUGE.name, "", own), time_ns=now_ns, value=value)
            batches.append(process.batch(builder, part, now_ns))
        if batches:
            await self._ingest.submit_batches(batches, "scrape").settled()
        return health

    def _read(self, target: Target, families: list[Metric], now_ns: int) -> BatchBuilder:
        builder = BatchBuilder()
        name_of = self._hub_names.get if target.forwards else self._client_name if target.is_client else None
        TargetReader(builder, target, self._process_of(target).totals, now_ns, name_of).add(families)
        return builder

    def _process_of(self, target: Target) -> _TargetProcess:
        heartbeat_s = self._settings.interval_s + self._settings.timeout_s
        return self._processes.setdefault((target.url, target.run_id), _TargetProcess(heartbeat_s))

    def _client_name(self, name: str) -> str:
        return name.removeprefix(f"{self._namespace}_")

    def _note(self, target: Target, health: TargetHealth) -> None:
        before = self._health.get(target.url)
        self._health[target.url] = health
        if health.is_up and not target.owner:  # owners renew their own leases
            self._targets.renew(target.url)
        if health.problem and (before is None or before.problem != health.problem):
            logger.warning("cannot scrape %s: %s. Retrying.", target.url, health.problem)
        elif before is not None and before.problem and health.is_up:
            logger.info("scraping %s works again", target.url)


class _TargetProcess:
    """The process that represents a target in its run."""

    def __init__(self, heartbeat_s: float) -> None:
        self._heartbeat_s = heartbeat_s
        self._started_ns = time.time_ns()
        self.totals = TotalsTable()
        # As for OTLP, the server assigns the sequence numbers.
        self._sequence = itertools.count(first_assigned_sequence())
        self._target: Target | None = None
        self._down_since_ns: int | None = None

    def stores(self, target: Target, *, is_up: bool, now_ns: int) -> bool:
        """Return whether to store the result of a scrape.

        A dead engine shows in the first failed scrapes. More of them, or those of a hub, which ends with its trainer,
        would only make an ended run longer.
        """
        if is_up:
            self._down_since_ns = None
            return True
        self._down_since_ns = self._down_since_ns or now_ns
        is_hub = target.forwards or (target.is_client and target.job_name == TRAINER_JOB)
        return not is_hub and now_ns - self._down_since_ns <= _STORED_FAILURES_S * 1e9

    def last_batch(self) -> tuple[Batch, int] | None:
        """Return the final batch of a target that had a lease; others may come back."""
        if self._target is None or not self._target.lease_s:
            return None
        return self.batch(BatchBuilder(), self._target, time.time_ns(), is_final=True)

    def batch(self, builder: BatchBuilder, target: Target, now_ns: int, *, is_final: bool = False) -> tuple[Batch, int]:
        """Return the next batch of the target, and its size."""
        self._target = target
        process = Process(
            process_id=f"{TARGET_PROCESS_PREFIX}{target.instance}-{target.job_name}",
            run_id=target.run_id,
            host=socket.gethostname(),
            pid=os.getpid(),
            project=target.project,
            experiment_name=target.experiment_name,
            role=target.job_name,
            labels=target.labels,
            started_ns=self._started_ns,
            heartbeat_s=self._heartbeat_s,
        )
        built = builder.build(process, sequence=next(self._sequence), sent_ns=now_ns, final=is_final)
        return built, builder.size_bytes


def _own_labels(target: Target) -> dict[str, str]:
    return {**target.labels, "job": target.job_name, "instance": target.instance}


def _hub_names(namespace: str) -> dict[str, str]:
    """Return the health metrics to scrape from a hub that forwards batches, and the names to store them under.

    Its page uses the same names as ours: unchanged, they would be mistaken for the server's health.
    """
    prefix = f"{namespace}_" if namespace else ""
    stems = {declared.name for declared in HEALTH.declarations} - _NOT_OF_THE_HUB
    return {prefix + stem: _HUB_PREFIX + stem.removeprefix("collector_") for stem in stems}


def read_page(page: Page) -> list[Metric]:
    """Return the metrics of a page.

    Raises:
        ValueError: the page is not in Prometheus' format.
    """
    text = bytes(page.body).decode("utf-8", "replace")
    is_openmetrics = page.headers.get("content-type", "").startswith("application/openmetrics-text")
    try:
        return list((parse_openmetrics if is_openmetrics else parse_text)(text))
    except Exception as error:  # the parsers raise ValueError, and IndexError or KeyError on some garbage
        raise ValueError(f"the page is not in Prometheus' format ({str(error)[:100]})") from error


class TargetReader:
    """Turns a page of metrics into rows; counters continue after a restart of the target.

    `name_of` renames metrics, or drops those for which it returns None.
    """

    def __init__(
        self,
        builder: BatchBuilder,
        target: Target,
        totals: TotalsTable,
        now_ns: int,
        name_of: Callable[[str], str | None] | None = None,
    ) -> None:
        self._name_of = name_of
        self._builder = builder
        self._own = _own_labels(target)
        self._totals = totals
        self._now_ns = now_ns

    def add(self, families: list[Metric]) -> None:
        """Add metrics of the target."""
        for family in self._kept(families):
            if family.type in {HISTOGRAM.name, "gaugehistogram"}:
                self._add_histogram(family)
            else:
                self._add_samples(family)

    def _kept(self, families: list[Metric]) -> list[Metric]:
        if self._name_of is None:
            return families
        return [_renamed(family, name) for family in families if (name := self._name_of(family.name)) is not None]

    def _add_samples(self, family: Metric) -> None:
        for sample in family.samples:
            suffix = sample.name.removeprefix(family.name)
            if suffix in _DROPPED_SAMPLES:
                continue
            is_counter = family.type == COUNTER.name or (family.type == "summary" and suffix in {"_sum", "_count"})
            name = sample.name.removesuffix("_total") if is_counter else sample.name
            labels, value = _labels(sample.labels, self._own), sample.value
            total = self._totals.of(name, labels) if is_counter and value >= 0 else None
            if total is not None:
                value = total.add_cumulative(value).total.value
            kind = COUNTER if is_counter else GAUGE
            series = self._builder.add_series(name, kind.name, family.documentation, labels)
            self._builder.add_sample(series, time_ns=self._now_ns, value=value)

    def _add_histogram(self, family: Metric) -> None:
        groups: dict[str, _HistogramSamples] = {}
        for sample in family.samples:
            suffix = sample.name.removeprefix(family.name)
            key = _labels({name: value for name, value in sample.labels.items() if name != "le"}, self._own)
            group = groups.setdefault(key, _HistogramSamples())
            if suffix == "_bucket":
                group.buckets.append((float(sample.labels.get("le", "nan")), sample.value))
            elif suffix in {"_sum", "_gsum"}:
                group.sum = sample.value
            elif suffix in {"_count", "_gcount"}:
                group.count = sample.value
        for labels, group in groups.items():
            total = self._totals.of(family.name, labels)
            if total is None:
                continue
            total.add_cumulative_distribution(group.distribution())
            self._builder.add_histogram(
                self._builder.add_series(family.name, HISTOGRAM.name, family.documentation, labels),
                time_ns=self._now_ns,
                count=total.count,
                total=total.value,
                minimum=total.minimum,
                maximum=total.maximum,
                buckets=total.buckets(),
            )


def _renamed(family: Metric, name: str) -> Metric:
    kept = Metric(name, family.documentation, family.type)
    for sample in family.samples:
        kept.add_sample(name + sample.name.removeprefix(family.name), sample.labels, sample.value)
    return kept


@dataclass(slots=True)
class _HistogramSamples:
    """The samples of one histogram."""

    buckets: list[tuple[float, float]] = field(default_factory=list)
    sum: float = 0.0
    count: float = 0.0

    def distribution(self) -> Distribution:
        known = dict(self.buckets)
        bounds = sorted(bound for bound in known if isfinite(bound))
        cumulative = [*(known[bound] for bound in bounds), known.get(inf, self.count)]
        filed: dict[int, int] = {}
        below = 0
        for code, value in zip(explicit_codes(tuple(bounds)), cumulative, strict=True):
            count = _valid_count(value)
            if count > below:
                filed[code] = filed.get(code, 0) + count - below
                below = count
        return Distribution(max(below, _valid_count(self.count)), self.sum, filed)


def _valid_count(value: float) -> int:
    return int(value) if 0 <= value < 2**63 else 0


def _labels(labels: dict[str, str], own: dict[str, str]) -> str:
    """Return labels as JSON; a label that conflicts with one of ours gets the prefix `exported_`, as in Prometheus."""
    merged = {f"exported_{name}" if name in own else name: value for name, value in labels.items()}
    return _encode(merged | own).decode()
