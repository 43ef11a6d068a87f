"""verl's own modules with the plug-in that `import verl` loads: timers, tracking, agent loops."""

import asyncio
import subprocess
import sys

import pytest

pytest.importorskip("verl", reason="verl is not installed: `make integrations` runs this")

from rl_insight.integrations.verl import instrument

instrument()

from verl.experimental.agent_loop import agent_loop  # noqa: E402
from verl.tools.base_tool import BaseTool  # noqa: E402
from verl.utils import rollout_trace  # noqa: E402
from verl.utils.debug import marked_timer  # noqa: E402
from verl.utils.tracking import RLInsightLogger, Tracking  # noqa: E402


def test_driver_phases_are_open_while_they_run(insight_capture):
    timings = {}
    with marked_timer("step", timings):
        with marked_timer("gen", timings, color="red"):
            insight_capture.flush()
            insight_capture.clock.advance(10)
            insight_capture.flush()
            [running] = [span for span in insight_capture.spans if span.name == "gen"]
            assert running.duration_ns is None
        with marked_timer("update_actor", timings):
            pass
    assert set(timings) == {"step", "gen", "update_actor"}
    states = [span.name for span in insight_capture.spans if span.segment == "state_interval"]
    assert set(states) == {"gen", "update_actor"}


def test_a_failing_phase_keeps_its_exception(insight_capture):
    with pytest.raises(RuntimeError, match="engine is gone"), marked_timer("gen", {}):
        raise RuntimeError("engine is gone")
    assert insight_capture.span("gen").error == "RuntimeError"


def test_tracking_gives_every_metric_its_step(insight_capture):
    tracking = Tracking("math", "grpo", default_backend=["console"])
    for step in (1, 2):
        with marked_timer("gen", {}):
            pass
        tracking.log(data={"critic/rewards/mean": step / 10, "note": "text"}, step=step)
    values = {s.step: s.value for s in insight_capture.metrics if s.metric == "critic_rewards_mean"}
    assert values == {1: 0.1, 2: 0.2}
    assert [span.step for span in insight_capture.spans if span.name == "gen"][-1] == 2


def test_verl_s_own_logger_keeps_the_step_too(insight_capture, monkeypatch):
    monkeypatch.setenv("VERL_RL_INSIGHT_ENABLE", "1")
    monkeypatch.setattr(RLInsightLogger, "_init_done", True)
    RLInsightLogger.log(data={"actor/entropy": 0.5}, step=7)
    [sample] = [s for s in insight_capture.metrics if s.metric == "actor_entropy"]
    assert (sample.step, sample.value) == (7, 0.5)


class Search(BaseTool):
    def __init__(self):
        self.name = "search"

    execute = BaseTool.execute


class Server:
    @rollout_trace.rollout_trace_op
    async def generate(self, prompt):
        await asyncio.sleep(0)
        return prompt + " 4"


def test_agent_loops_are_sessions_with_generations_and_tool_calls(insight_capture):
    async def loop(sample):
        with rollout_trace.rollout_trace_attr(sample_index=sample, step=3, rollout_n=0, name="agent_loop"):
            answer = await Server().generate("2 + 2")
            await Search().execute("instance", {})
            return answer

    async def both():
        return await asyncio.gather(loop(0), loop(1))

    assert asyncio.run(both()) == ["2 + 2 4"] * 2
    sessions = insight_capture.sessions
    assert sorted(session["task_id"] for session in sessions) == [0, 1]
    for session in sessions:
        assert session["step"] == 3
        assert session["status"] == "accepted"
        assert set(session["phases"]) == {"generate", "toolcall"}
        assert session["phases"]["toolcall"][0]["payload"] == {"tool": "search"}


def test_reward_and_turns_of_an_agent_loop_reach_its_session(insight_capture, monkeypatch):
    class Result:
        reward_score = 1
        num_turns = 2

    worker = object.__new__(agent_loop.AgentLoopWorker)

    async def run():
        with rollout_trace.rollout_trace_attr(sample_index=5, step=1, rollout_n=0):
            result = Result()
            from rl_insight.integrations import verl

            verl._note_result(result)

    asyncio.run(run())
    assert hasattr(type(worker)._agent_loop_postprocess, "__wrapped__")
    [session] = insight_capture.sessions
    assert (session["reward"], session["counters"]) == (1.0, {"turns": 2})


@pytest.mark.parametrize(
    ("variables", "patched"), [({}, False), ({"RL_INSIGHT_SERVER_URL": "http://127.0.0.1:9"}, True)]
)
def test_import_verl_loads_the_plug_in_only_where_a_server_is_known(tmp_path, variables, patched):
    code = "import verl\nfrom verl.utils.debug import marked_timer\nprint(hasattr(marked_timer, '_rl_insight'))"
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)} | variables
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == str(patched)
