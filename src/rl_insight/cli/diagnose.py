"""`rl-insight diagnose`: what is wrong with a run, who causes it, and what it costs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer

from rl_insight.cli.client import call
from rl_insight.cli.completion import complete_rules, complete_run, complete_words
from rl_insight.cli.console import say, say_json, working
from rl_insight.cli.exporting import moment_ns
from rl_insight.cli.opening import AsJson, DataDir, Run, given_run, local_runs, opened_run, run_id_of, server_with
from rl_insight.cli.place import directory_of, running_record
from rl_insight.cli.transfer import LONG_TIMEOUT_S
from rl_insight.diagnosis.words import counted
from rl_insight.errors import ConfigError

if TYPE_CHECKING:
    from rl_insight.diagnosis.run import Report
    from rl_insight.store.queries import Finding

_ORDER = ("info", "warning", "critical")


def diagnose(
    word: Annotated[
        str | None,
        typer.Argument(metavar="[RUN]", help="The run, in place of --run, or a file.", autocompletion=complete_run),
    ] = None,
    run: Run = None,
    at: Annotated[
        str | None, typer.Option(help="Look at the run as of a step, or of a time such as 2026-05-01T12:00.")
    ] = None,
    rules: Annotated[
        str | None,
        typer.Option(help="Only findings of these rules, separated by commas.", autocompletion=complete_rules),
    ] = None,
    fail_on: Annotated[
        str | None,
        typer.Option(
            help="Exit with 1 for a finding of this severity or above.", autocompletion=complete_words(lambda: _ORDER)
        ),
    ] = None,
    explained: Annotated[
        bool, typer.Option("--explained", help="Also show findings that another one explains.")
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
        str | None, typer.Option(help="The server's YAML file, for its thresholds; default those of the running one.")
    ] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> int:
    """Say what is wrong with a run, as it would have been said while it ran."""
    from rl_insight.diagnosis.settings import check_rule
    from rl_insight.store import queries

    run = given_run(word, run)
    if fail_on is not None and fail_on not in _ORDER:
        raise ConfigError(f"--fail-on cannot be {fail_on!r}: choose one of {', '.join(_ORDER)}.")
    if mute is not None or unmute is not None:
        check_rule(mute or unmute or "")
        _mute(run, mute or unmute or "", data_dir, muted=mute is not None)
        return 0
    chosen = frozenset(name.strip() for name in rules.split(",") if name.strip()) if rules else None
    for name in chosen or ():
        check_rule(name)
    step, moment = _moment(at)
    how = {"at_ns": moment, "at_step": step, "only": sorted(chosen) if chosen else None, "rules": _rules(config)}
    report = _replay(run, how, data_dir)
    shown = report.findings if explained else queries.top_findings(report.findings)
    if as_json:
        say_json({"as_of_ns": report.as_of_ns, "findings": shown, "coverage": report.coverage})
    else:
        _say(report, shown)
    worst = max((_ORDER.index(finding.severity) for finding in shown), default=-1)
    return int(fail_on is not None and worst >= _ORDER.index(fail_on))


def _replay(run: str | None, how: dict[str, Any], data_dir: str | None) -> Report:
    """Diagnose a run from its beginning, without findings of muted rules: on its server, or from its file."""
    import msgspec

    from rl_insight.diagnosis.run import Report, heard, replay
    from rl_insight.diagnosis.settings import make_settings

    paths = [Path(run)] if run is not None and Path(run).exists() else []
    server = server_with(data_dir, run, paths)
    if server is not None:
        run_id = run_id_of(data_dir, run)
        path = f"/api/v1/findings/replay?run={quote(run_id, safe='')}"
        with working(f"diagnosing {run_id}"):
            return msgspec.convert(call(server, "POST", path, how, LONG_TIMEOUT_S), type=Report)
    rules = _server_rules(data_dir) if how["rules"] is None else how["rules"]
    settings = make_settings(rules, None if how["only"] is None else frozenset(how["only"]))
    with opened_run(data_dir, None if paths else run, paths) as store, store.reader() as cursor, working("diagnosing"):
        return heard(cursor, replay(cursor, settings, at_ns=how["at_ns"], at_step=how["at_step"]))


def _rules(config: str | None) -> Mapping[str, Any] | None:
    """Return the thresholds of a settings file; None for those of the server."""
    if config is None:
        return None
    from rl_insight.server.config import load_settings

    return load_settings(config).diagnosis.rules


def _server_rules(data_dir: str | None) -> Mapping[str, Any]:
    """Return the thresholds of the server that runs on a data directory."""
    from rl_insight.server.state import read_record

    record = read_record(directory_of(data_dir))
    return {} if record is None else record.diagnosis_rules


def _moment(at: str | None) -> tuple[int | None, int | None]:
    """Return the step or the time that is asked for."""
    if at is None:
        return None, None
    return (int(at), None) if at.lstrip("-").isdecimal() else (None, moment_ns(at))


def _mute(run: str | None, rule: str, data_dir: str | None, *, muted: bool) -> None:
    from rl_insight.store import queries

    record, run_id = running_record(data_dir), run_id_of(data_dir, run)
    if record is not None:
        chosen = f"rule={quote(rule)}&muted={str(muted).lower()}&run={quote(run_id, safe='')}"
        call(record, "POST", f"/api/v1/findings/mute?{chosen}")
    else:
        with local_runs(data_dir) as runs, runs.open(run_id) as store:
            queries.mute_rule(store, rule, muted=muted)
    say(f"{'Muted' if muted else 'Unmuted'} {rule} for {run_id}.")


def _say(report: Report, shown: list[Finding]) -> None:
    if not shown:
        say("Nothing is wrong, as far as can be seen.")
    for finding in shown:
        resolved = "" if finding.status == "open" else ", resolved"
        steps = "" if finding.first_step is None else f", steps {finding.first_step} to {finding.last_step}"
        say(f"{finding.severity.upper()}  {finding.title}")
        say(f"    {finding.rule}{steps}{resolved}. {finding.explanation}")
        say(f"    What to do: {finding.remedy}")
        if finding.explains:
            say(f"    Explains {counted(len(finding.explains), 'other finding')}; see --explained.")
    if report.coverage:
        say(f"{counted(len(report.coverage), 'rule')} could not be judged; --json lists what they would need.")
