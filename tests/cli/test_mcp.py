"""`rl-insight mcp`, queried by the SDK's client over stdio and over HTTP."""

import asyncio
import json
import os
import socket
import subprocess
import sys

import pytest

from rl_insight.cli import main
from tests.reader.crowd import SLOW_RANK, STUCK_RANK

mcp = pytest.importorskip("mcp")


def environment(**more):
    return {name: value for name, value in os.environ.items() if not name.startswith("RL_INSIGHT_")} | more


def ask(place, *calls):
    """Start the server as an agent does, and return the result of each call."""

    async def talk():
        words = ["-m", "rl_insight.cli", "mcp", "--data-dir", str(place)]
        program = mcp.StdioServerParameters(command=sys.executable, args=words, env=environment())
        async with mcp.stdio_client(program) as streams, mcp.ClientSession(*streams) as session:
            await session.initialize()
            tools = {tool.name for tool in (await session.list_tools()).tools}
            return tools, [await session.call_tool(name, arguments) for name, arguments in calls]

    return asyncio.run(talk())


def value(result):
    assert not getattr(result, "is_error", getattr(result, "isError", False)), result
    return json.loads(result.content[0].text)


def test_the_median_of_two_ranks_is_between_them(write_run):
    place = write_run(spans=[(rank, step, step * 20, step * 20 + 4 + 8 * rank) for rank in (0, 1) for step in (0, 1)])
    _, (result,) = ask(place, ("slow_ranks", {}))
    assert (value(result)["processes"], value(result)["median_seconds"]) == (2, 8.0)


def test_an_agent_finds_its_way_from_the_runs_to_the_rows(place):
    tools, results = ask(
        place,
        ("list_runs", {}),
        ("summary", {"run": "grpo-7b"}),
        ("findings", {}),
        ("step_breakdown", {"run": "ppo", "last_steps": 2}),
        ("metric_history", {"metric": "reward", "run": "ppo", "last_steps": 3}),
        ("metric_history", {}),
        ("sessions", {"status": "failed", "limit": 2}),
        ("open_work", {}),
        ("hotspots", {"step": 3}),
        ("transcript", {"session_id": "s1-1"}),
        ("sql", {"query": "SELECT count(*) AS n FROM spans WHERE name = 'update'", "run": "ppo"}),
    )
    assert tools >= {"list_runs", "summary", "findings", "step_breakdown", "metric_history", "sessions", "sql"}
    runs, summary, findings, steps, history, metrics, sessions, work, spots, told, rows = map(value, results)
    assert [row["run_id"] for row in runs["runs"]] == ["grpo-7b-b", "grpo-7b-a", "ppo-1"]
    assert summary["run_id"] == "grpo-7b-b"
    assert findings["run_id"] == "grpo-7b-b"
    assert {"rollout", "update", "idle", "seconds"} <= steps["steps"][-1].keys()
    assert [row["value"] for row in history["values"]] == [0.3, 0.4, 0.5]
    assert "reward" in metrics["metrics"]
    assert (sessions["total"], len(sessions["sessions"])) == (6, 2)
    assert work["open_spans"] == []
    assert {row["name"] for row in spots["hotspots"]} >= {"rollout"}
    assert [(one["role"], one["text"]) for one in told["messages"]] == [("user", "2 + 2?"), ("assistant", "It is 4.")]
    assert told["reward"] == 0.25
    assert rows["rows"] == [[6]]
    assert all(json.loads(result.content[0].text)["next"] for result in results)
    assert max(len(result.content[0].text) for result in results) < 20_000


def check_crowd(results):
    runs, summary, ranks, stacks, work, history = map(value, results)
    assert runs["total"] == 1
    assert (summary["processes"], summary["process_states"]) == (1_000, {"live": 999, "silent": 1})
    assert (ranks["span"], ranks["processes"], ranks["slowest"][0]["rank"]) == ("update_actor", 1_000, SLOW_RANK)
    assert len(ranks["slowest"]) == 10
    assert [group["processes"] for group in stacks["groups"]] == [1, 999]
    assert stacks["groups"][0] == {
        "processes": 1,
        "examples": [f"trainer {STUCK_RANK}"],
        "frames": ["load (data.py:3)"],
    }
    assert "stacks(run)" in work["next"]
    assert work["run_id"] == "crowd-1"
    assert (history["processes"], history["lowest"][-1]["value"]) == (1_000, 0.02)
    assert all(json.loads(result.content[0].text)["next"] for result in results)
    assert max(len(result.content[0].text) for result in results) < 5_000


CROWD_CALLS = (
    ("list_runs", {}),
    ("summary", {"run": "crowd"}),
    ("slow_ranks", {"run": "crowd"}),
    ("stacks", {}),
    ("open_work", {}),
    ("metric_history", {"metric": "gpu_utilization_ratio", "group_by": "rank"}),
)


def test_a_thousand_processes_over_stdio(crowd_files):
    tools, results = ask(crowd_files, *CROWD_CALLS)
    assert {"slow_ranks", "stacks"} <= tools
    check_crowd(results)


def test_a_question_that_cannot_be_answered_says_why(place):
    _, results = ask(
        place,
        ("summary", {"run": "nope"}),
        ("metric_history", {"metric": "nope"}),
        ("findings", {"finding_id": "nope"}),
        ("sql", {"query": "DROP TABLE spans"}),
        ("transcript", {"session_id": "nope"}),
    )
    texts = [result.content[0].text for result in results]
    assert "there is no run 'nope'" in texts[0]
    assert "has no metric 'nope'" in texts[1]
    assert "there is no finding 'nope'" in texts[2]
    assert "only SELECT is allowed" in texts[3]
    assert "there is no session 'nope'" in texts[4]


def test_a_thousand_processes_over_http(crowd_served, wait_until):
    from mcp.client.streamable_http import streamable_http_client

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = ["mcp", "--transport", "http", "--port", str(port), "--data-dir", str(crowd_served)]
    with subprocess.Popen([sys.executable, "-m", "rl_insight.cli", *words], env=environment()) as program:
        try:

            def is_open():
                with socket.socket() as connection:
                    return connection.connect_ex(("127.0.0.1", port)) == 0

            wait_until(is_open, 30.0)

            async def talk():
                async with (
                    streamable_http_client(f"http://127.0.0.1:{port}/mcp") as streams,
                    mcp.ClientSession(*streams[:2]) as session,
                ):
                    await session.initialize()
                    return [await session.call_tool(name, arguments) for name, arguments in CROWD_CALLS]

            check_crowd(asyncio.run(talk()))
        finally:
            program.terminate()
            program.wait(20)


@pytest.mark.parametrize(
    ("words", "said"),
    [(["--transport", "smoke"], "must be one of stdio, http"), (["--host", "0.0.0.0"], "has no authentication")],
)
def test_bad_settings_are_refused(words, said, capsys):
    assert main(["mcp", *words]) == 2
    assert said in capsys.readouterr().err
