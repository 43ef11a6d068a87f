"""verl's own logger, as its trainer and workers use it, with our rl_insight."""

from __future__ import annotations

import json
import os
import sys
import time
import urllib.request
from types import SimpleNamespace

import stubs

url, engine = sys.argv[1:]
os.environ["RL_INSIGHT_SERVER_URL"] = url
os.environ["VERL_RL_INSIGHT_ENABLE"] = "1"
for name in ("verl", "verl.utils"):
    stubs.package(name)
trace_config = SimpleNamespace(project_name="math", experiment_name="grpo")
stubs.module("verl.utils.rollout_trace", RolloutTraceConfig=SimpleNamespace(get_instance=lambda: trace_config))
RLInsightLogger = stubs.load("verl.utils.tracking").RLInsightLogger

RLInsightLogger.register_rollout_metrics([engine, engine], "vllm", [{"replica": 0}, None])
logger = RLInsightLogger("math", "grpo", {"trainer": {"rl_insight": {}}})
for step in (1, 2):
    with RLInsightLogger.trace_state("vllm_generate", state_lane_id="replica_0"):
        pass
    with RLInsightLogger.trace_state("actor_update", state_lane_id="rank_3"):
        pass
    logger.log({"critic/score/mean": 0.5 * step, "training/global_step": step, "text": "left out"}, step)
session = RLInsightLogger.agent_loop_session(experiment_name="grpo", sample=3, session=0, global_steps=2)
turn = {**session.identity, "monitor.trace_source": "gateway", "turn": 0}
RLInsightLogger.trace_span("gateway_generation", start_time_ns=10**18, end_time_ns=10**18 + 9, attributes=turn)
session.finish(trajectories=[], status="success")
RLInsightLogger.register_metrics([engine.replace("127.0.0.1", "localhost")], "transfer_queue", None)
import rl_insight  # noqa: E402

status = rl_insight.get_status()
deadline = time.monotonic() + 30  # a training takes longer than the registration of its engines
while time.monotonic() < deadline:
    with urllib.request.urlopen(f"{url}/api/v1/targets", timeout=10) as answer:
        if len(json.load(answer)["targets"]) == 2:
            break
    time.sleep(0.1)
logger.finish()
logger.finish()
print(json.dumps({"run_id": status["run_id"], "losses": status["losses"]}))
