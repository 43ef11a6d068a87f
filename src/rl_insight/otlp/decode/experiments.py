"""The experiments of clients that name them on each span and metric, as those of rl-insight 0.3.0 do."""

from __future__ import annotations

import hashlib
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from math import inf
from threading import Lock
from typing import Any, Final, NamedTuple

MARKERS: Final = (b"experiment_name", b"project")
"""The spans of a request without any of these name no experiment."""
_MAX_TEXT = 200
_MAX_KNOWN = 1000
_RECENT_S = 120.0
"""How long names apply to data without names from the same sender; a hub that is scraped repeats them all the time."""
_LOSSY = re.compile(r"[^A-Za-z0-9_-]+", re.ASCII)
_LONGEST_PART = 80


class Experiment(NamedTuple):
    """An experiment of a project; an empty part is unknown."""

    project: str = ""
    name: str = ""


NAMELESS: Final = Experiment()


class NamingHost(NamedTuple):
    """Where the names of one client come from: a Ray job sends all its data from one process."""

    service: str
    host: str


def run_of_day(service: str, experiment: Experiment = NAMELESS, day: str = "") -> str:
    """Return the run for data without a run id: one per service, experiment and day (default: today).

    >>> run_of_day("vllm", day="20260101"), run_of_day("hub", Experiment("math", "grpo"), "20260101")
    ('otlp-vllm-20260101', 'otlp-hub-math.grpo-20260101')
    """
    parts = [_LOSSY.sub("-", part)[:_LONGEST_PART] for part in experiment if part]
    if parts and tuple(parts) != experiment:
        parts.append(hashlib.blake2b("\0".join(experiment).encode("utf-8", "replace"), digest_size=3).hexdigest())
    names = f"{'.'.join(parts)}-" if parts else ""
    return f"otlp-{service}-{names}{day or time.strftime('%Y%m%d', time.gmtime())}"


def experiment_of(project: str, name: str) -> Experiment:
    """Return an experiment with names of a limited length."""
    return Experiment(project[:_MAX_TEXT], name[:_MAX_TEXT])


class ExperimentBook:
    """The experiments that each sender named recently.

    Workers of a Ray job often do not know the names, and an agent session may know only the experiment: what they send
    belongs to the experiment that the same sender named last.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._lock = Lock()
        self._named_s: OrderedDict[tuple[NamingHost, Experiment], tuple[float, float]] = OrderedDict()
        """When it was named for the first and for the last time."""

    def note(self, sender: NamingHost, experiment: Experiment) -> None:
        """Remember that a sender named an experiment."""
        if experiment == NAMELESS:
            return
        with self._lock:
            now_s = self.clock()
            first_s, last_s = self._named_s.get((sender, experiment), (now_s, now_s))
            self._named_s[sender, experiment] = (first_s if now_s - last_s < _RECENT_S else now_s, now_s)
            self._named_s.move_to_end((sender, experiment))
            if len(self._named_s) > _MAX_KNOWN:
                self._named_s.popitem(last=False)

    def complete(
        self, sender: NamingHost, found: Experiment, nearby: Iterable[Experiment] = (), begun_s: float = -inf
    ) -> Experiment:
        """Return an experiment with its missing names, from those in `nearby` or those that the sender named last.

        `begun_s` excludes what the sender named before that time of the clock.
        """
        if all(found):
            return found
        for known in (*nearby, *self._recent(sender, begun_s)):
            if found.project in ("", known.project) and found.name in ("", known.name):
                return known
        return found

    def _recent(self, sender: NamingHost, begun_s: float) -> list[Experiment]:
        with self._lock:
            since_s = self.clock() - _RECENT_S
            return [
                known
                for (one, known), (first_s, last_s) in reversed(self._named_s.items())
                if one == sender and last_s > since_s and first_s >= begun_s
            ]

    def split(self, entry: Any, sender: NamingHost, default: Experiment) -> Iterator[tuple[Experiment, Any]]:
        """Yield the spans of each experiment in a `ResourceSpans` message, as messages of the same kind.

        `default` has the names of the resource; those of a span take precedence.
        """
        named = [[_named(span, default) for span in scope.spans] for scope in entry.scope_spans]
        nearby = [one for one in dict.fromkeys(one for scope in named for one in scope) if all(one)]
        complete = {
            one: self.complete(sender, one, nearby) for one in dict.fromkeys(one for scope in named for one in scope)
        }
        for experiment in complete.values():
            self.note(sender, experiment)
        experiments = list(dict.fromkeys(complete.values()))
        if len(experiments) == 1:
            yield experiments[0], entry
            return
        for experiment in experiments:
            part = type(entry)(resource=entry.resource, schema_url=entry.schema_url)
            for scope, names in zip(entry.scope_spans, named, strict=True):
                spans = [span for span, one in zip(scope.spans, names, strict=True) if complete[one] == experiment]
                if spans:
                    part.scope_spans.add(scope=scope.scope, schema_url=scope.schema_url, spans=spans)
            yield experiment, part


def _named(span: Any, default: Experiment) -> Experiment:
    project, name = "", ""
    for pair in span.attributes:
        if pair.key == "experiment_name":
            name = pair.value.string_value
        elif pair.key == "project":
            project = pair.value.string_value
    return experiment_of(project or default.project, name or default.name)
