"""Small training runs for the guides' screenshots: `python scripts/guide_runs.py trl`; see `make-guide-pictures`."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import time
import types
from pathlib import Path

import rl_insight as insight

STEPS = 8
dice = random.Random(7)


def module(name: str, source: str) -> types.ModuleType:
    """Create a module of a framework that is not installed, with the signatures of its public code."""
    parts = name.split(".")
    for depth in range(1, len(parts) + 1):
        part = ".".join(parts[:depth])
        if part not in sys.modules:
            sys.modules[part] = types.ModuleType(part)
            sys.modules[part].__path__ = []
    exec(source, sys.modules[name].__dict__)
    return sys.modules[name]


def use_tests() -> None:
    """Make the training runs of the tests importable, even if another package has a module of that name."""
    package = types.ModuleType("tests")
    package.__path__ = [str(Path(__file__).parents[1] / "tests")]
    sys.modules["tests"] = package


def trl() -> None:
    use_tests()
    from tests.frameworks.test_trl import make_trainer

    with tempfile.TemporaryDirectory() as folder:
        trainer = make_trainer(Path(folder))
        trainer.args.max_steps = STEPS
        trainer.train()


def lightning() -> None:
    use_tests()
    from tests.frameworks.test_lightning import fit

    with tempfile.TemporaryDirectory() as folder:
        fit(folder, logger=False)


def verl() -> None:
    from verl.utils.debug import marked_timer
    from verl.utils.tracking import Tracking

    tracking = Tracking("verl", "grpo", default_backend=["console"])
    for step in range(1, STEPS + 1):
        timings: dict[str, float] = {}
        with marked_timer("step", timings):
            for name, seconds in (("gen", 0.5), ("reward", 0.1), ("old_log_prob", 0.1), ("update_actor", 0.3)):
                with marked_timer(name, timings):
                    time.sleep(seconds * dice.uniform(0.8, 1.3))
        tracking.log({"critic/rewards/mean": 0.1 * step, "timing_s/step": timings["step"]}, step=step)


def slurm() -> None:
    program = (
        "import os, random, time, rl_insight as insight\n"
        "insight.init('slurm', 'ddp', role='trainer')\n"
        "for step in range(8):\n"
        "    with insight.step(step):\n"
        "        for name, seconds in (('forward', 0.1), ('backward', 0.2), ('all_reduce', 0.05)):\n"
        "            with insight.trace_state(name):\n"
        "                time.sleep(seconds * random.uniform(0.7, 1.4))\n"
        "insight.finish()\n"
    )
    with tempfile.NamedTemporaryFile("w", suffix=".py") as file:
        file.write(program)
        file.flush()
        words = ["-m", "torch.distributed.run", "--nproc-per-node", "4", file.name]
        subprocess.run([sys.executable, *words], check=True)


def ray() -> None:
    import ray

    ray.init("local", num_cpus=4, include_dashboard=False, log_to_driver=False, _node_ip_address="127.0.0.1")
    insight.init("ray", "rollouts", role="driver")

    @ray.remote
    class Rollout:
        def generate(self, step: int) -> None:
            with insight.trace_state("generate"):
                time.sleep(random.uniform(0.2, 0.5))
            with insight.trace_state("tool"):
                time.sleep(random.uniform(0.05, 0.2))

    workers = [Rollout.remote() for _ in range(3)]
    for step in range(STEPS):
        insight.set_step(step)
        with insight.trace_state("wait_for_rollouts"):
            ray.get([worker.generate.remote(step) for worker in workers])
        with insight.trace_state("update_actor"):
            time.sleep(0.2)
    insight.finish()
    ray.shutdown()


def wandb() -> None:
    import wandb

    os.environ |= {"WANDB_MODE": "offline", "WANDB_SILENT": "true"}
    with tempfile.TemporaryDirectory() as folder:
        run = wandb.init(project="math", name="grpo", dir=folder)
        for step in range(200):
            run.log({"loss": 2 / (1 + step / 20) + dice.gauss(0, 0.05), "reward/mean": 1 - 1 / (1 + step / 50)})
        run.finish()
        wandb.teardown()
        words = ["-m", "rl_insight.cli", "import", folder, "--run", os.environ["RL_INSIGHT_RUN_ID"]]
        subprocess.run([sys.executable, *words, "--server", os.environ["RL_INSIGHT_SERVER_URL"]], check=True)


def skyrl() -> None:
    module("skyrl.train.utils.callbacks", "class TrainingCallback: pass")
    timer = "class Timer:\n def __init__(self, message): self.message = message\n"
    timer += " def __enter__(self): return self\n def __exit__(self, *outcome): pass\n"
    timer += " async def __aenter__(self): return self\n async def __aexit__(self, *outcome): pass\n"
    utils = module("skyrl.train.utils.utils", timer)
    from rl_insight.integrations.skyrl import InsightSkyRLCallback

    callback = InsightSkyRLCallback()
    callback.on_train_start(None, None, None)
    for step in range(1, STEPS + 1):
        given = types.SimpleNamespace(global_step=step, logs={"reward/avg_raw_reward": 0.1 * step})
        callback.on_step_start(None, given, None)
        for name, seconds in (("generate", 0.4), ("sync_weights", 0.1), ("train_critic_and_policy", 0.3)):
            with utils.Timer(name):
                time.sleep(seconds * dice.uniform(0.8, 1.3))
        callback.on_log(None, given, None)


def areal() -> None:
    from rl_insight.compat import areal as tracer

    settings = {"enabled": True, "experiment_name": "areal", "trial_name": "trial0", "fileroot": tempfile.mkdtemp()}
    tracer.configure({**settings, "session_tracer": {"enabled": True}}, rank=0, role="rollout")

    @tracer.session_context()
    def episode() -> None:
        with tracer.trace_session_phase("generate"):
            time.sleep(dice.uniform(0.02, 0.1))
        with tracer.trace_session_phase("reward"):
            time.sleep(dice.uniform(0.01, 0.03))

    for task in range(40):
        tracer.register_task(task)
        tracer.set_task_id(task)
        episode()
        status = "accepted" if dice.random() < 0.8 else "rejected"
        tracer.trace_session_event("mark_finalized", task_id=task, status=status)
    tracer.save(force=True)


def xtuner() -> None:
    begin = time.time() - 30
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "producer.jsonl"
        with file.open("w") as stream:
            for number in range(40):
                at = begin + number * 0.5
                task = {
                    "trace_id": f"gsm8k:{number}",
                    "task_name": "gsm8k",
                    "uid": str(number),
                    "train_step": number // 8,
                }
                for name, start, seconds in (
                    ("generate", 0.0, dice.uniform(1, 4)),
                    ("judge", 4.0, dice.uniform(0.1, 1)),
                ):
                    for kind, moment in (("start", at + start), ("end", at + start + seconds)):
                        line = {**task, "stage": f"{name}.{kind}", "timestamp_s": moment, "status": "running"}
                        stream.write(json.dumps(line) + "\n")
        words = ["-m", "rl_insight.cli", "import", str(file), "--run", os.environ["RL_INSIGHT_RUN_ID"]]
        subprocess.run([sys.executable, *words, "--server", os.environ["RL_INSIGHT_SERVER_URL"]], check=True)


def nemo_rl() -> None:
    from rl_insight.integrations import nemo_rl as nemo

    logger = module("nemo_rl.utils.logger", "class Logger:\n def __init__(self, cfg): self.loggers = []\n")
    source = "class Timer:\n def start(self, label): pass\n def stop(self, label): pass\n"
    timer = module("nemo_rl.utils.timer", source).Timer
    nemo.instrument()
    logging, clock = logger.Logger({}), timer()
    for step in range(STEPS):
        clock.start("total_step_time")
        for name, seconds in (("generation", 0.4), ("idle/refit_bubble", 0.1), ("policy_training", 0.3)):
            clock.start(name)
            time.sleep(seconds * dice.uniform(0.8, 1.3))
            clock.stop(name)
        clock.stop("total_step_time")
        for one in logging.loggers:
            one.log_metrics({"loss": 1 / (1 + step)}, step, prefix="train")


def slime() -> None:
    from rl_insight.integrations.slime import log_rollout

    for rollout in range(STEPS):
        begun = time.time()
        time.sleep(dice.uniform(0.3, 0.8))
        samples = []
        for number in range(16):
            generated = begun + dice.uniform(0.1, 0.25)
            spans = [("sglang_generate", begun, generated), ("reward_model", generated, generated + 0.04)]
            events = [
                {"type": f"span_{edge}", "name": name, "ts": moment, "span_id": name}
                for name, *moments in spans
                for edge, moment in zip(("start", "end"), moments, strict=True)
            ]
            samples.append(
                types.SimpleNamespace(
                    reward=float(dice.random() < 0.1 * (rollout + 1)),
                    response_length=dice.randint(100, 900),
                    status="completed" if dice.random() < 0.9 else "truncated",
                    group_index=number // 4,
                    trace={"events": events},
                )
            )
        log_rollout(rollout, types.SimpleNamespace(), samples, None, time.time() - begun)


def prime_rl() -> None:
    from rl_insight.integrations.prime_rl import InsightMonitor

    monitor = InsightMonitor()
    monitor.init()
    for step in range(STEPS):
        now = time.time()
        episodes = []
        for number in range(8):
            seconds = dice.uniform(0.2, 0.9)
            timing = {
                "agent": {"start": now, "end": now + seconds},
                "scoring": {"start": now + seconds, "end": now + 1},
            }
            trace = {"id": f"{step}-{number}", "timing": timing, "reward": float(dice.random() < 0.1 * (step + 1))}
            episodes.append(
                {"traces": [trace], "ok": True, "num_output_tokens": 400, "group": {"id": f"g{number // 4}"}}
            )
        time.sleep(1.0)
        monitor.log_episodes(episodes, step, "train", "all")
        monitor.log_metrics({"reward/all/mean": 0.1 * step}, step)
    monitor.finalize()


def openrlhf() -> None:
    from rl_insight.integrations import openrlhf as integration

    methods = " def log_train(self, global_step, logs_dict): pass\n def log_eval(self, global_step, logs_dict): pass\n"
    source = f"class WandbLogger:\n{methods}class TensorboardLogger:\n{methods}"
    made = module("openrlhf.utils.logging_utils", source)
    integration.instrument()
    for step in range(60):
        values = {"reward": 1 - 1 / (1 + step / 20) + dice.gauss(0, 0.02), "timing/generation": dice.uniform(10, 14)}
        made.WandbLogger().log_train(step, values)
        time.sleep(0.05)


def vllm() -> None:
    loggers = "class StatLoggerBase: pass\n"
    module("vllm.v1.metrics.loggers", loggers)
    from rl_insight.integrations.vllm_stats import InsightStatLogger

    config = types.SimpleNamespace(model_config=types.SimpleNamespace(served_model_name="qwen"))
    engines = [InsightStatLogger(config, number) for number in range(2)]
    for tick in range(100):
        for number, engine in enumerate(engines):
            running = max(0, 64 - abs(tick % 50 - 20) * 2 - 8 * number + dice.randint(-3, 3))
            cache = types.SimpleNamespace(queries=100, hits=60)
            scheduler = types.SimpleNamespace(
                num_running_reqs=running,
                num_waiting_reqs=running // 4,
                kv_cache_usage=running / 80,
                prefix_cache_stats=cache,
            )
            iteration = types.SimpleNamespace(
                num_prompt_tokens=20, num_generation_tokens=running, num_preempted_reqs=0, finished_requests=[]
            )
            engine.record(scheduler, iteration)
        time.sleep(0.1)


def sglang() -> None:
    from rl_insight.integrations import sglang as integration

    source = "class SchedulerMetricsCollector:\n def __init__(self, labels): self.labels = labels\n"
    source += " def log_stats(self, stats): pass\n"
    made = module("sglang.srt.observability.metrics_collector", source)
    integration.plugin()
    one = made.SchedulerMetricsCollector({"model_name": "qwen", "tp_rank": "0"})
    for tick in range(100):
        running = max(0, 48 - abs(tick % 40 - 15) * 2 + dice.randint(-2, 2))
        stats = types.SimpleNamespace(num_running_reqs=running, token_usage=running / 60, gen_throughput=running * 40.0)
        one.log_stats(stats)
        time.sleep(0.1)


if __name__ == "__main__":
    globals()[sys.argv[1].replace("-", "_")]()
    insight.finish()
