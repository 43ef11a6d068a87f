"""The runs for metrics of rl-insight 0.3.0, whose clients name no run, but label metrics with their experiment."""

from __future__ import annotations

from math import inf
from typing import Any

import msgspec
from prometheus_client.metrics_core import Metric

from rl_insight.otlp.decode.experiments import (
    NAMELESS,
    Experiment,
    ExperimentBook,
    NamingHost,
    experiment_of,
    run_of_day,
)
from rl_insight.server.scrape.targets import Target

_WAIT_S = 60.0
"""How long to wait for the names of a client that registers before it has them, as verl does with its engines."""


class ClientRuns:
    """Divides the pages of clients by experiment, and finds the experiment of those that do not name any."""

    def __init__(self, experiments: ExperimentBook, namespace: str) -> None:
        self._experiments = experiments
        self._namespace = namespace
        self._waiting_since_s: dict[str, float] = {}
        self._values: dict[str, dict[Experiment, list[tuple[Any, ...]]]] = {}
        """By URL: the named samples of each experiment at the last scrape."""

    def forget(self, url: str) -> None:
        """Forget a target that was removed."""
        self._waiting_since_s.pop(url, None)
        self._values.pop(url, None)

    def parts(self, target: Target, families: list[Metric]) -> list[tuple[Target, list[Metric]]]:
        """Return the metrics of a page for each run, as a target with that run; the current one is last.

        A hub lives as long as its Ray job and keeps showing the metrics of experiments that have ended: of several
        experiments, only those whose metrics change are returned.
        """
        sender = NamingHost(self._namespace, target.client_host)
        current = Experiment(target.project, target.experiment_name)
        groups = _by_experiment(families)
        nearby = sorted(filter(all, groups), key=lambda one: one != current)
        named: dict[Experiment, list[Metric]] = {}
        for found in [one for one in groups if one != NAMELESS]:
            named.setdefault(self._experiments.complete(sender, found, nearby), []).extend(groups[found])
        if not named:
            return [(self._nameless(target, sender, families), families)]
        self._waiting_since_s.pop(target.url, None)
        stored = self._changed(target.url, named) or [one for one in named if one == current] or list(named)
        stored.sort(key=lambda one: one == current)
        for one in stored:
            self._experiments.note(sender, one)
        named[stored[-1]] += groups.get(NAMELESS, [])
        return [(self._assigned(target, one), named[one]) for one in stored]

    def _changed(self, url: str, named: dict[Experiment, list[Metric]]) -> list[Experiment]:
        values = {one: [(*sample[:3],) for family in own for sample in family.samples] for one, own in named.items()}
        before, self._values[url] = self._values.get(url, {}), values
        return [one for one in values if before.get(one) != values[one]]

    def _nameless(self, target: Target, sender: NamingHost, families: list[Metric]) -> Target:
        names = [target.labels.get("project", ""), target.labels.get("experiment_name", "")]
        own = experiment_of(target.project or names[0], target.experiment_name or names[1])
        if target.run_id or any(family.name.startswith(f"{self._namespace}_") for family in families):
            return self._assigned(target, self._experiments.complete(sender, own))
        now_s = self._experiments.clock()
        since_s = self._waiting_since_s.setdefault(target.url, now_s)
        is_over = now_s - since_s >= _WAIT_S
        experiment = self._experiments.complete(sender, own, begun_s=-inf if is_over else since_s - _WAIT_S)
        if not is_over and not all(experiment):
            return target
        self._waiting_since_s.pop(target.url)
        return self._assigned(target, experiment)

    def _assigned(self, target: Target, experiment: Experiment) -> Target:
        run_id = run_of_day(self._namespace, experiment)
        if (run_id, *experiment) == (target.run_id, target.project, target.experiment_name):
            return target
        return msgspec.structs.replace(
            target, run_id=run_id, project=experiment.project, experiment_name=experiment.name
        )


def _by_experiment(families: list[Metric]) -> dict[Experiment, list[Metric]]:
    """Divide metrics by the experiment in the labels of their samples."""
    found: dict[Experiment, list[Metric]] = {}
    for family in families:
        divided: dict[Experiment, Metric] = {}
        for sample in family.samples:
            named = experiment_of(sample.labels.get("project", ""), sample.labels.get("experiment_name", ""))
            if named not in divided:
                divided[named] = Metric(family.name, family.documentation, family.type)
                found.setdefault(named, []).append(divided[named])
            divided[named].samples.append(sample)
    return found
