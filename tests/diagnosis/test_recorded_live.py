"""A real recorded training run: live findings are those of its file, and of its import elsewhere."""

from __future__ import annotations

import json

import pytest

from benchmarks.diagnosis_example import training
from benchmarks.server_process import connect, running_server
from rl_insight.diagnosis.run import replay
from rl_insight.exchange.exporting.exporter import export_run
from rl_insight.exchange.importing.destinations import StoreDestination
from rl_insight.exchange.importing.importer import Importer
from rl_insight.store.queries.findings import read_findings
from rl_insight.store.runs import RunDirectory

RUN = "recorded"


def _visible(findings):
    """Return the user-visible part of findings; an import marks process ids and renumbers lanes."""
    return {
        one.finding_id: json.loads(
            json.dumps(
                [one.rule, one.severity, one.status, one.title, one.culprit, one.impact, one.evidence, one.first_step,
                 one.last_step, one.start_ns, one.end_ns, one.sessions, one.explains]
            ).replace("@imported", "")
        )
        for one in findings
    }  # fmt: skip


def _ask(server, method, path, body=None):
    connection = connect(server.url)
    try:
        connection.request(
            method, f"/api/v1/findings{path}?run={RUN}&explained=true", body, {"content-type": "application/json"}
        )
        answer = connection.getresponse()
        return json.loads(answer.read()) if answer.status == 200 else None
    finally:
        connection.close()


def _ids(findings):
    return {(one["finding_id"], one["status"], one["last_step"], one["end_ns"]) for one in findings or ()}


@pytest.mark.parametrize(
    ("fault", "options"),
    [
        ("not_a_number", ("--speed", "20", "--steps", "9", "--exit")),
        pytest.param("tool_errors", ("--speed", "4"), marks=pytest.mark.slow),
    ],
)
def test_live_findings_are_those_of_the_import(tmp_path, wait_until, fault, options):
    data_dir, rule = tmp_path / "data", {"not_a_number": "non_finite"}.get(fault, fault)
    with running_server(data_dir=data_dir) as server:
        with training(server, RUN, tmp_path, "--fault", fault, "--fault-at", "6", *options):
            wait_until(lambda: rule in {one["rule"] for one in _ask(server, "GET", "") or ()}, 120)
        wait_until(lambda: _ids(_ask(server, "GET", "")) == _ids(_ask(server, "POST", "/replay", "{}")["findings"]))
    runs, elsewhere = RunDirectory(data_dir), RunDirectory(tmp_path / "elsewhere")
    try:
        with runs.open(RUN) as store:
            with store.reader() as cursor:
                live, offline = read_findings(cursor), replay(cursor).findings
            export_run(store, "rli", tmp_path / "run.rli")
        Importer(StoreDestination(elsewhere), data_dir=tmp_path / "elsewhere").add(tmp_path / "run.rli")
        (info,) = elsewhere.list_runs()
        with elsewhere.open(info.run_id) as store, store.reader() as cursor:
            imported = replay(cursor).findings
    finally:
        runs.close()
        elsewhere.close()
    assert rule in {one.rule for one in live}
    assert _visible(offline) == _visible(live)
    assert _visible(imported) == _visible(live)
