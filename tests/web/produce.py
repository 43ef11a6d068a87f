"""Records a small run with everything the views show: sessions, logs, events, histograms and simulated hardware.

python tests/web/produce.py --server http://127.0.0.1:18080 --steps 6 --experiment first
"""

from __future__ import annotations

import argparse
import asyncio
import random
import socket
import time

import rl_insight as insight

HOSTILE = "</script><img src=x onerror=alert(1)> 🦊"
NODES = 2
GPUS = 4


async def _session(number: int, step: int, dice: random.Random, pace: float) -> None:
    async with insight.session(task_id=f"task-{number // 4}", step=step, model_version=str(step)) as session:
        session.mark("enqueued")
        await asyncio.sleep(dice.uniform(0.0, 0.05) * pace)
        async with insight.phase("execution"):
            for turn in range(dice.randint(1, 3)):
                session.count("turns")
                tokens = dice.randint(20, 400)
                async with insight.phase("generate", tokens=tokens, turn=turn):
                    await asyncio.sleep(dice.lognormvariate(-2.5, 0.6) * pace)
                insight.metric_histogram("generate_tokens", tokens, "Tokens of a turn", turn=str(turn))
                if dice.random() < 0.6:
                    insight.trace_event("tool asked", tool="search" if dice.random() < 0.9 else HOSTILE)
                    async with insight.phase("toolcall", tool="search"):
                        await asyncio.sleep(dice.lognormvariate(-3.2, 0.9) * pace)
                insight.log("info", f"turn {turn} done", tokens=tokens)
            if number % 17 == 16:
                insight.log("error", "the tool server refused", tool=HOSTILE)
                raise ConnectionError("the tool server refused")
        async with insight.phase("reward"):
            await asyncio.sleep(0.01 * pace)
        reward = dice.random()
        insight.metric_gauge("reward_mean", reward, "Mean reward of the batch")
        session.mark("consumed")
        session.finalize("accepted" if reward > 0.2 else "rejected", reward=reward, tokens=tokens)


def _hardware(step: int, dice: random.Random) -> None:
    for node in range(NODES):
        # The first is this machine, so that its accelerators can be joined with what this process does.
        host = f"node-{node}" if node else socket.gethostname()
        labels = {"source": "host", "node": host, "host": host}
        insight.metric_gauge("node_cpu_utilization_ratio", dice.uniform(0.2, 0.6), "Share of all cores", **labels)
        insight.metric_gauge("node_memory_used_bytes", dice.uniform(60, 80) * 2**30, "RAM in use", **labels)
        insight.metric_gauge("node_memory_total_bytes", 512 * 2**30, "RAM installed", **labels)
        for gpu in range(GPUS):
            of_gpu = {**labels, "source": "nvml", "gpu": str(gpu)}
            # One accelerator idles every other step: what the heat map is there to show.
            busy = 0.05 if (node, gpu) == (1, 2) and step % 2 else dice.uniform(0.7, 1.0)
            insight.metric_gauge("gpu_utilization_ratio", busy, "Share of time busy", **of_gpu)
            insight.metric_gauge("gpu_memory_used_bytes", dice.uniform(50, 70) * 2**30, "Memory in use", **of_gpu)
            insight.metric_gauge("gpu_memory_total_bytes", 80 * 2**30, "Memory installed", **of_gpu)
            insight.metric_gauge("gpu_power_watts", 120 + 500 * busy, "Power drawn", **of_gpu)
            insight.metric_gauge("gpu_temperature_celsius", 40 + 30 * busy, "Temperature", **of_gpu)


async def _steps(arguments: argparse.Namespace, dice: random.Random) -> None:
    for step in range(arguments.steps):
        with insight.step(step):
            _hardware(step, dice)
            with insight.trace_state("rollout"):
                first = step * arguments.sessions
                numbers = range(first, first + arguments.sessions)
                outcomes = [_session(number, step, dice, arguments.pace) for number in numbers]
                await asyncio.gather(*outcomes, return_exceptions=True)
            with insight.trace_state("update"):
                with insight.trace_span("forward"):
                    await asyncio.sleep(0.02 * arguments.pace)
                with insight.trace_span("backward"):
                    await asyncio.sleep(0.04 * arguments.pace)
            insight.metric_gauge("step_time_seconds", dice.uniform(0.4, 0.6), "Duration of the step")
            insight.metric_count("trained_tokens", 1000 * (step + 1), "Tokens trained on")


def main() -> None:
    """Record the run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", required=True)
    parser.add_argument("--experiment", default="views")
    parser.add_argument("--run-id", default=None)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--sessions", type=int, default=12, help="in each step")
    parser.add_argument("--pace", type=float, default=1.0, help="how much longer everything takes")
    parser.add_argument(
        "--stuck", type=float, default=0.0, help="keep one tool call open for so many seconds at the end"
    )
    arguments = parser.parse_args()
    dice = random.Random(7)
    insight.init(
        "web",
        arguments.experiment,
        config={"server": {"url": arguments.server}},
        run_id=arguments.run_id,
        role="rollout",
        rank=0,
    )
    asyncio.run(_steps(arguments, dice))
    if arguments.stuck:
        with (
            insight.session(task_id="stuck-task", step=max(0, arguments.steps - 1)),
            insight.phase("toolcall", tool="browser"),
        ):
            time.sleep(arguments.stuck)
    insight.finish()


if __name__ == "__main__":
    main()
