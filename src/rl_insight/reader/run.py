"""A run to read: spans, sessions, metrics, steps, logs, events, findings, hardware, and SQL."""

from __future__ import annotations

import difflib
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Literal

from rl_insight.errors import ConfigError
from rl_insight.metrics.kinds import KINDS, Aggregation
from rl_insight.reader import pages
from rl_insight.reader.rows import Row, Rows
from rl_insight.reader.sources import RunSource
from rl_insight.schema.names import metric_name
from rl_insight.schema.tables import LAST_TIME_NS

_IN_TIME = frozenset({"text", "start_ns", "end_ns", "span_id", "process_id", "session_id", "step", "lane"})
_SPANS = frozenset(
    {"name", "name_contains", "text", "attribute", "error", "lane", "role", "status", "step", "session_id", "trace_id"}
    | {"longer_than_ns", "start_ns", "end_ns", "order"}
)
_SESSIONS = frozenset(
    {"session_id", "task_id", "group_id", "status", "reason", "role", "rank", "first_step", "last_step", "phase"}
    | {"text", "longer_than_s", "model_version", "order", "descending", "detail"}
    | {f"{bound}_{field}" for bound in ("least", "most") for field in ("reward", "tokens", "turns")}
)
_STEP_RANGE = frozenset({"first", "last"})
_HARDWARE = frozenset({"start_ns", "end_ns", "first_step", "last_step", "max_gap_s"})
_METRIC = frozenset({"aggregation", "match", "group_by", "start_ns", "end_ns", "width"})
_SPECIAL = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


class Run:
    """A run, live or ended; `rl_insight.open_run` makes one.

    Times are nanoseconds since 1970, aligned between processes. Each method returns `Rows`, which read nothing until
    they are iterated or converted with `to_dicts`, `to_arrow`, `to_pandas` or `to_polars`.

    >>> with insight.open_run("grpo-7b") as run:  # doctest: +SKIP
    ...     run.sessions(status="failed").to_pandas()
    """

    def __init__(self, source: RunSource) -> None:
        self._source = source

    @property
    def run_id(self) -> str:
        """The run's full id."""
        return self._source.run_id

    def summary(self) -> Row:
        """Return the summary of the run: its time range, steps, and record counts."""
        found: Row = self._source.ask("summary")
        return found

    def ask(self, question: str, **conditions: Any) -> Any:
        """Return the answer of the route `/api/v1/<question>` as plain values, for questions without a method here."""
        return self._source.ask(question, **conditions)

    def spans(
        self,
        *,
        name: str | None = None,
        step: int | None = None,
        role: str | None = None,
        status: Literal["ok", "error", "cancelled", "open"] | None = None,
        session_id: str | None = None,
        order: Literal["oldest", "newest", "longest"] = "oldest",
        **conditions: Any,
    ) -> Rows:
        """Return spans; the order `longest` requires `head(n)`.

        Args:
            name: the full name; `name_contains` matches a part of it.
            step: recorded in this training step.
            role: the role of their processes.
            status: `open` spans have not ended.
            session_id: the session they belong to.
            order: the sort order.
            **conditions: `name_contains`, `text`, `attribute`, `error`, `lane`, `trace_id`, `longer_than_ns`,
                `start_ns`, `end_ns`.
        """

        def fetch(given: Mapping[str, Any], most: int | None) -> Iterator[Row]:
            if given.get("order") == "longest":
                return pages.longest(self._source, given, most)
            return pages.in_time(self._source, "spans", given, most, "start_ns")

        known = {"name": name, "step": step, "role": role, "status": status, "session_id": session_id, "order": order}
        return self._rows("spans", fetch, _SPANS, known | conditions)

    def sessions(
        self,
        *,
        status: str | Sequence[str] | None = None,
        step: int | None = None,
        order: str = "submit_ts",
        descending: bool = False,
        **conditions: Any,
    ) -> Rows:
        """Return sessions in order of submission.

        Args:
            status: one or several of `accepted`, `failed`, `pending` and so on.
            step: the training step; use `first_step` and `last_step` for a range.
            order: a field to sort by.
            descending: largest first.
            **conditions: `session_id`, `task_id`, `group_id`, `reason`, `role`, `rank`, `first_step`, `last_step`,
                `longer_than_s`, `model_version`, `phase`, `text`, `least_` and `most_` with `reward`, `tokens` or
                `turns`, `detail` (`full`, `phases` or `brief`).
        """
        steps = {} if step is None else {"first_step": step, "last_step": step}
        statuses = [status] if isinstance(status, str) else None if status is None else list(status)
        known = {"status": statuses, "order": order, "descending": descending, **steps}
        return self._rows("sessions", partial(pages.sessions, self._source), _SESSIONS, known | conditions)

    def metrics(self) -> Rows:
        """Return the available metrics: name, kind, labels and number of series."""
        return self._plain("metrics")

    def metric(
        self,
        name: str,
        *,
        by: Literal["step", "time"] = "step",
        aggregation: Aggregation | None = None,
        match: Sequence[str] | None = None,
        group_by: Sequence[str] | None = (),
        points: int = 1_000,
        **conditions: Any,
    ) -> Rows:
        """Return the values of a metric: one row per step or interval and group of series.

        A histogram has three rows instead, identified by the column `quantile`: 0.5, 0.95 or 0.99.

        Args:
            name: the metric's name, as it was recorded or as `metrics()` lists it.
            by: `step`, or `time` in intervals.
            aggregation: how the values of a group are combined; by default the average, for counters the rate. Not for
                histograms.
            match: conditions on labels, such as `role=rollout` or `rank=~[0-3]`.
            group_by: labels to group by; None keeps every series separate, by default all are combined.
            points: the number of time intervals.
            **conditions: `start_ns`, `end_ns`, `width` (of an interval: nanoseconds, or steps).
        """
        groups = None if group_by is None else [*group_by] or [""]
        known = {"aggregation": aggregation, "match": None if match is None else list(match), "group_by": groups}
        return self._rows(f"values of {name}", partial(self._values, name, by, points), _METRIC, known | conditions)

    def _values(self, name: str, by: str, points: int, given: Mapping[str, Any], _most: int | None) -> Iterator[Row]:
        asked = dict(given)
        if by not in {"step", "time"}:
            raise ConfigError(f"cannot show a metric by {by!r}: choose step or time.")
        if by == "step":
            asked = {"start_ns": 0, "end_ns": LAST_TIME_NS - 1, "width": 1} | asked
        else:
            summary = self.summary()
            start, end = asked.get("start_ns", summary["start_ns"]), asked.get("end_ns", summary["end_ns"])
            if start is None or end is None:
                return
            asked |= {"start_ns": start, "end_ns": max(end, start) + 1}
            asked.setdefault("width", max(1, (asked["end_ns"] - start) // max(1, points)))
        kinds = {one["name"]: one["kind"] for one in self._source.ask("metrics")}
        stored = name if name in kinds else metric_name(name)
        if stored not in kinds:
            near = difflib.get_close_matches(stored, kinds, 1)
            hint = f"did you mean {near[0]!r}?" if near else "metrics() lists those it has."
            raise ConfigError(f"{self.run_id} has no metric {name!r}: {hint}")
        question = "metrics/range"
        if KINDS[kinds[stored]].is_distribution:
            question = "metrics/quantiles"
            if "aggregation" in asked:
                raise ConfigError(f"{name!r} is a histogram: it has quantiles, and cannot be combined by aggregation=.")
        for line in self._source.ask(question, metric=stored, axis=by, **asked):
            for x, y in zip(line["x"], line["y"], strict=True):
                yield {("step" if by == "step" else "time_ns"): x, "value": _SPECIAL.get(y, y), **line["labels"]}

    def steps(self, *, first: int | None = None, last: int | None = None) -> Rows:
        """Return the training steps with their times; `head(n)` returns the last n."""
        return self._rows("steps", partial(pages.steps, self._source), _STEP_RANGE, {"first": first, "last": last})

    def breakdown(self, *, first: int | None = None, last: int | None = None, role: str | None = None) -> Rows:
        """Return where the time of each finished step went: one row per step and state, in seconds."""

        def fetch(given: Mapping[str, Any], _most: int | None) -> Iterator[Row]:
            known = list(pages.steps(self._source, given, 1_000))
            if not known:
                return
            span = {"first": known[0]["step"], "last": known[-1]["step"], "role": given.get("role")}
            for step in self._source.ask("steps/breakdown", **span)["steps"]:
                for phase in step["phases"]:
                    yield {"step": step["step"], "name": phase["name"], "seconds": phase["wall_ns"] / 1e9}
                yield {"step": step["step"], "name": "idle", "seconds": step["idle_ns"] / 1e9}

        return self._rows("step times", fetch, _STEP_RANGE | {"role"}, {"first": first, "last": last, "role": role})

    def hotspots(self, **conditions: Any) -> Rows:
        """Return where the time goes: spans by name, the most wall time first.

        Args:
            **conditions: `step`, `last_steps`, `start_ns`, `end_ns`, `lane`, `segment`, `group_by`.
        """
        allowed = frozenset({"step", "last_steps", "start_ns", "end_ns", "lane", "segment", "group_by"})
        return self._plain("hotspots", allowed, conditions)

    def logs(self, *, text: str | None = None, level: int | None = None, **conditions: Any) -> Rows:
        """Return log lines, the oldest first.

        Args:
            text: a part of the message or of the attributes.
            level: at least this level, as in `logging`.
            **conditions: `start_ns`, `end_ns`, `span_id`, `process_id`, `session_id`, `step`, `lane`, `role`,
                `rank`.
        """
        return self._in_time("logs", _IN_TIME | {"level", "role", "rank"}, {"text": text, "level": level, **conditions})

    def events(self, *, text: str | None = None, **conditions: Any) -> Rows:
        """Return events, the oldest first; the conditions are those of `logs`, without `level`, `role` and `rank`."""
        return self._in_time("events", _IN_TIME, {"text": text, **conditions})

    def findings(self, *, explained: bool = False, muted: bool = False) -> Rows:
        """Return what diagnosis found, the most severe first.

        Args:
            explained: include those that another finding explains.
            muted: include those of muted rules.
        """
        return self._plain("findings", frozenset({"explained", "muted"}), {"explained": explained, "muted": muted})

    def hardware(self, **conditions: Any) -> Rows:
        """Return GPU usage in each state of each role: busy share, memory, energy.

        Args:
            **conditions: `start_ns`, `end_ns`, `first_step`, `last_step`, `max_gap_s`.
        """

        def fetch(given: Mapping[str, Any], _most: int | None) -> Iterator[Row]:
            return iter(self._source.ask("hardware/by_state", **given)["states"])

        return self._rows("states of GPUs", fetch, _HARDWARE, conditions)

    def processes(self) -> Rows:
        """Return the processes and their health."""
        return self._plain("processes")

    def sql(self, text: str, *, timeout_s: float = 10.0, max_rows: int = 100_000) -> Rows:
        """Return the rows of one SELECT over the run's tables; see docs/store.md for them.

        Run files always support SQL; a server needs `sql.enabled=true`. If there are more than `max_rows` rows, a
        warning is issued.
        """

        def fetch(_given: Mapping[str, Any], _most: int | None) -> Iterator[Row]:
            found = self._source.sql(text, timeout_s=timeout_s, max_rows=max_rows)
            if found["truncated"]:
                warnings.warn(f"the query has more than {max_rows:,} rows: the rest is left out.", stacklevel=3)
            for row in found["rows"]:
                yield dict(zip(found["columns"], row, strict=True))

        return self._rows("rows of SQL", fetch, frozenset(), {})

    def close(self) -> None:
        """Close the file or the connection; idempotent."""
        self._source.close()

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        """Return the run's id and location."""
        return f"<run {self.run_id} at {self._source.place}>"

    def _rows(self, title: str, fetch: Any, allowed: frozenset[str], conditions: Mapping[str, Any]) -> Rows:
        return Rows(f"{title} of {self.run_id}", fetch, allowed, conditions)

    def _plain(
        self, question: str, allowed: frozenset[str] = frozenset(), conditions: Mapping[str, Any] | None = None
    ) -> Rows:
        """Return the rows of a question without paging."""

        def fetch(given: Mapping[str, Any], _most: int | None) -> Iterator[Row]:
            return iter(self._source.ask(question, **given))

        return self._rows(question, fetch, allowed, conditions or {})

    def _in_time(self, question: str, allowed: frozenset[str], conditions: Mapping[str, Any]) -> Rows:
        def fetch(given: Mapping[str, Any], most: int | None) -> Iterator[Row]:
            return pages.in_time(self._source, question, {**given, "newest_first": False}, most, "time_ns")

        return self._rows(question, fetch, allowed, conditions)
