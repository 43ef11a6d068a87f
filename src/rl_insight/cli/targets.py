"""`rl-insight server targets ...`: the Prometheus endpoints that the server scrapes."""

from __future__ import annotations

from typing import Annotated

import typer

from rl_insight.cli.completion import named_values
from rl_insight.cli.console import fail, say, say_json, say_table
from rl_insight.cli.opening import AsJson
from rl_insight.cli.place import call, remote, required_server, use_directory
from rl_insight.config.loading import read_yaml
from rl_insight.errors import ConfigError, InsightError

app = typer.Typer(help="Prometheus endpoints that the server scrapes.", no_args_is_help=True)

Addresses = Annotated[list[str], typer.Argument(help="host:port, or URLs.")]
Listed = Annotated[list[str], typer.Argument(help="host:port, URLs, or a YAML file with `jobs`.")]
_FILE_ENDINGS = (".yaml", ".yml", ".json")
_BAD_JOB, _BAD_FILE = 1, 2


@app.command("add")
@remote
def add(
    addresses: Listed,
    job: Annotated[str | None, typer.Option(help="The job name, such as vllm.")] = None,
    label: Annotated[list[str] | None, typer.Option(help="A label as name=value; may be repeated.")] = None,
    run: Annotated[str | None, typer.Option(help="The run that stores their metrics; default none.")] = None,
    config: Annotated[str | None, typer.Option(help="The YAML file of the server, for its data_dir.")] = None,
) -> int:
    """Register targets; they survive restarts of the server.

    A YAML file lists `jobs`, each with `job_name`, `labels` and `targets`: `host:port`, or `target` with `labels`.
    """
    if config is not None:
        from rl_insight.server.config import load_settings

        use_directory(load_settings(config).directory)
    if len(addresses) == 1 and addresses[0].lower().endswith(_FILE_ENDINGS):
        return _add_jobs(addresses[0], run)
    registration = {
        "addresses": addresses,
        "job_name": job,
        "labels": named_values(label or [], "is not a label: write name=value."),
        "run_id": run,
    }
    answer = call("POST", "/api/v1/targets", registration)
    say(f"{answer['added']} added, {answer['targets']} in total.")
    _say_where(run)
    return 0


def _say_where(run: str | None) -> None:
    if run is None:
        say("No run stores their metrics: give --run. Their health is shown, and the stack's Prometheus scrapes them.")


def _add_jobs(path: str, run: str | None) -> int:
    """Register the jobs of a file; returns 2 for an invalid file, 1 for an invalid job."""
    try:
        jobs = read_yaml(path).get("jobs")
    except (OSError, ConfigError) as error:
        return fail(str(error), _BAD_FILE)
    if not isinstance(jobs, list) or not all(isinstance(job, dict) for job in jobs):
        return fail(f"{path} has no list of `jobs`.", _BAD_FILE)
    required_server()
    code = 0
    for job in jobs:
        try:
            answer = call("POST", "/api/v1/prometheus/targets", {**job, "run_id": run or ""})
        except InsightError as error:
            code = fail(f"{job.get('job_name') or 'a job'} was not registered: {error}", _BAD_JOB)
        else:
            say(f"{answer['job_name']}: {answer['target_count']} targets in total.")
    _say_where(run)
    return code


@app.command("list")
@remote
def list_(as_json: AsJson = False) -> None:
    """List the targets and the result of their last scrape."""
    found = call("GET", "/api/v1/targets")["targets"]
    if as_json:
        say_json(found)
        return
    if not found:
        say("No targets are registered.")
        return
    rows = []
    for target in found:
        health = target["health"]
        state = "not scraped yet" if health is None else "up" if health["is_up"] else f"down: {health['problem']}"
        labels = ",".join(f"{name}={value}" for name, value in target.get("labels", {}).items())
        rows.append([target["url"], target.get("job_name", "default"), target.get("run_id", "-"), labels, state])
    say_table(["target", "job", "run", "labels", "state"], rows)


@app.command("remove")
@remote
def remove(addresses: Addresses) -> None:
    """Remove targets."""
    answer = call("DELETE", "/api/v1/targets", address=addresses)
    say(f"{answer['removed']} removed.")
