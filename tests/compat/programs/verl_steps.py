"""Training as verl drives it: its own logger in Ray actors, and nothing else of ours."""

from __future__ import annotations

import json
import os
import sys
import time

address, url, engine, paths = sys.argv[1:]
VARIABLES = {"RL_INSIGHT_SERVER_URL": url, "VERL_RL_INSIGHT_ENABLE": "1", "PYTHONPATH": paths}
os.environ |= VARIABLES

import ray  # noqa: E402

ray.init(address, runtime_env={"env_vars": VARIABLES}, logging_level="ERROR", log_to_driver=False)


def verl_logger():
    import stubs

    for name in ("verl", "verl.utils"):
        stubs.package(name)
    return stubs.load("verl.utils.tracking").RLInsightLogger


@ray.remote(num_cpus=0)
class Worker:
    def __init__(self, lane):
        self.lane = lane
        self.logger = verl_logger()

    def work(self, state, seconds):
        with self.logger.trace_state(state, state_lane_id=self.lane):
            time.sleep(seconds)


@ray.remote(num_cpus=0)
class Trainer:
    """verl's trainer is an actor too; its workers often record something before it knows its names."""

    def fit(self, ranks, replica):
        ray.get([worker.work.remote("load_model", 0.01) for worker in (*ranks, replica)])
        verl_logger().register_rollout_metrics([engine], "vllm", [{"replica": 0}])
        self.logger = verl_logger()("math", "grpo", {"trainer": {"rl_insight": {}}})
        truth = [self.step(number, ranks, replica) for number in range(1, 7)]
        import rl_insight

        rl_insight.flush(30)
        return {"run_id": rl_insight.get_status()["run_id"], "truth": truth}

    def step(self, number, ranks, replica):
        began = time.time()
        ray.get(replica.work.remote("vllm_generate", 0.3))
        ray.get([worker.work.remote("actor_update", 0.1 + 0.1 * number) for worker in ranks])
        metrics = {
            "critic/rewards/mean": number / 8,
            "timing_s/step": time.time() - began,
            "training/global_step": number,
            "actor/entropy": 1 / number,
            "note": "text",
        }
        self.logger.log(metrics, number)
        return number, began, time.time()

    def finish(self):
        self.logger.finish()


trainer = Trainer.remote()
ranks = [Worker.remote(f"rank_{rank}") for rank in range(2)]
print(json.dumps(ray.get(trainer.fit.remote(ranks, Worker.remote("replica_0")))), flush=True)
sys.stdin.read()
ray.get(trainer.finish.remote())
