"""`rl-insight diagnose`: the problems of a run, their causes, and their cost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rl_insight.cli.completion import complete_rules, one_of
from rl_insight.cli.console import say, say_json, working
from rl_insight.cli.exporting import parse_time_ns
from rl_insight.cli.opening import AsJson, Run, RunWords, local_runs, opened_run, run_id_of, run_or_files, server_with
from rl_insight.cli.place import call, current_directory, current_server
from rl_insight.cli.transfer import LONG_TIMEOUT_S
from rl_insight.schema.names import SEVERITIES
from rl_insight.words import counted

if TYPE_CHECKING:
    from pathlib import Path

    from rl_insight.diagnosis.run import Report
    from rl_insight.store.queries import Finding


def diagnose(
    words: RunWords = None,
    run: Run = None,
    at: Annotated[
        str | None, typer.Option(help="Diagnose the run as of a step, or a time such as 2026-05-01T12:00.")
    ] = None,
    rules: Annotated[
        str | None,
        typer.Option(help="Only these rules, separated by commas.", autocompletion=complete_rules),
    ] = None,
    fail_on: Annotated[
        str | None, one_of(lambda: SEVERITIES, help="Exit with 1 for a finding of this severity or above.")
    ] = None,
    explained: Annotated[
        bool, typer.Option("--explained", help="Also show findings explained by another one.")
    ] = False,
    mute: Annotated[
        str | None,
        typer.Option(help="Mute a rule for this run, and do nothing else.", autocompletion=complete_rules),
    ] = None,
    unmute: Annotated[
        str | None,
        typer.Option(help="Unmute a rule for this run, and do nothing else.", autocompletion=complete_rules),
    ] = None,
    config: Annotated[
        str | None,
        typer.Option(help="A YAML file of a server, for its thresholds; default those of the running server."),
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Report what is wrong with a run, as live diagnosis would have."""
    from rl_insight.diagnosis.settings import check_rule
    from rl_insight.store import queries

    run, paths = run_or_files(words, run)
    if mute is not None or unmute is not None:
        check_rule(mute or unmute or "")
        _mute(run, mute or unmute or "", muted=mute is not None)
        return 0
    chosen = frozenset(name.strip() for name in rules.split(",") if name.strip()) if rules else None
    for name in chosen or ():
        check_rule(name)
    step, at_ns = _step_or_time(at)
    how = {"at_ns": at_ns, "at_step": step, "only": sorted(chosen) if chosen else None, "rules": _rules(config)}
    report = _replay(run, paths, how)
    shown = report.findings if explained else queries.top_findings(report.findings)
    if as_json:
        say_json({"as_of_ns": report.as_of_ns, "findings": shown, "coverage": report.coverage})
    else:
        _say(report, shown)
    worst = max((SEVERITIES.index(finding.severity) for finding in shown), default=-1)
    return int(fail_on is not None and worst >= SEVERITIES.index(fail_on))


def _replay(run: str | None, paths: list[Path], how: dict[str, Any]) -> Report:
    """Diagnose a run from its beginning, without muted rules: on its server, or from its file."""
    import msgspec

    from rl_insight.diagnosis.run import Report, replay, without_muted
    from rl_insight.diagnosis.settings import make_settings

    if server_with(run, paths) is not None:
        run_id = run_id_of(run)
        with working(f"diagnosing {run_id}"):
            found = call("POST", "/api/v1/findings/replay", how, timeout_s=LONG_TIMEOUT_S, run=run_id)
        return msgspec.convert(found, type=Report)
    rules = _server_rules() if how["rules"] is None else how["rules"]
    settings = make_settings(rules, None if how["only"] is None else frozenset(how["only"]))
    with opened_run(run, paths) as store, store.reader() as cursor, working("diagnosing"):
        return without_muted(cursor, replay(cursor, settings, at_ns=how["at_ns"], at_step=how["at_step"]))


def _rules(config: str | None) -> Mapping[str, Any] | None:
    """Return the thresholds of a settings file; None means those of the server."""
    if config is None:
        return None
    from rl_insight.server.config import load_settings

    return load_settings(config).diagnosis.rules


def _server_rules() -> Mapping[str, Any]:
    """Return the thresholds of the server that uses the data directory."""
    from rl_insight.server.state import read_record

    record = read_record(current_directory())
    return {} if record is None else record.diagnosis_rules


def _step_or_time(at: str | None) -> tuple[int | None, int | None]:
    """Parse `--at`: a step, or a time."""
    if at is None:
        return None, None
    return (int(at), None) if at.lstrip("-").isdecimal() else (None, parse_time_ns(at))


def _mute(run: str | None, rule: str, *, muted: bool) -> None:
    from rl_insight.store import queries

    run_id = run_id_of(run)
    if current_server() is not None:
        call("POST", "/api/v1/findings/mute", rule=rule, muted=muted, run=run_id)
    else:
        with local_runs() as runs, runs.open(run_id) as store:
            queries.mute_rule(store, rule, muted=muted)
    say(f"{'Muted' if muted else 'Unmuted'} {rule} for {run_id}.")


def _say(report: Report, shown: list[Finding]) -> None:
    if not shown:
        say("No problems found.")
    for finding in shown:
        resolved = "" if finding.status == "open" else ", resolved"
        steps = "" if finding.first_step is None else f", steps {finding.first_step} to {finding.last_step}"
        say(f"{finding.severity.upper()}  {finding.title}")
        say(f"    {finding.rule}{steps}{resolved}. {finding.explanation}")
        say(f"    What to do: {finding.remedy}")
        if finding.explains:
            say(f"    Explains {counted(len(finding.explains), 'other finding')}; see --explained.")
    if report.coverage:
        say(f"{counted(len(report.coverage), 'rule')} could not be evaluated; --json lists the data they need.")
