"""The caller's cost of each adapter call, compared with the original in the same run."""

from __future__ import annotations

import ast
import importlib
import pickle
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from benchmarks.harness import Figure, Loop, Options, measure_calls, say
from benchmarks.producer import open_telemetry_tracer
from benchmarks.sessions import areal_sessions
from rl_insight.integrations.timers import record_blocks
from rl_insight.monitor import default_monitor

NAME = "adapters"

_ROOT = Path(__file__).parents[1]
_ORIGINALS = _ROOT / ".originals"
_PROGRAMS = _ROOT / "tests" / "compat" / "programs"

Pair = tuple[str, Loop, Loop | None]
"""The name of a call, our implementation, and the original if it is installed."""


def run(options: Options) -> Iterator[Figure]:
    """Measure each adapter against its original."""
    rounds = 20 if options.quick else 300
    original = _original_insight()  # before our threads start importing modules
    default_monitor.init("math", "grpo", {"server": {"backend": "none"}, "announce": False})
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        say("adapters: rl-insight 0.3.0, AReaL, XTuner")
        for name, ours, theirs in (*_insight(*original), *_areal(folder, stack), *_xtuner(folder, stack)):
            yield from _beside(name, ours, theirs, rounds)
        yield from _skyrl_timer(rounds)
    losses = default_monitor.get_status()["losses"]
    default_monitor.finish()
    if losses:
        raise RuntimeError(f"events were lost, so the figures are meaningless: {losses}")


def _beside(name: str, ours: Loop, original: Loop | None, rounds: int) -> Iterator[Figure]:
    pair = {"ours": ours} | ({"original": original} if original is not None else {})
    costs = measure_calls(pair, rounds=rounds, between=default_monitor.flush)
    yield Figure(name, costs["ours"] / 1000, "µs")
    if original is not None:
        yield Figure(f"{name}, original", costs["original"] / 1000, "µs")
        yield Figure(f"{name}, ours / original", costs["ours"] / costs["original"], "×", budget=1.0)


# -- rl-insight 0.3.0, whose client only pickles each event: the minimum cost of its call to a Ray actor


def _insight(original: ModuleType | None, original_loops: ModuleType | None) -> Iterator[Pair]:
    import rl_insight as ours
    from rl_insight import agent_loop as our_loops

    for name, make in {
        "metric_count, 2 labels": _counting,
        "metric_gauge": _gauging,
        "trace_state": _states,
        "trace_op": _operations,
        "trace_span, finished": _finished_spans,
    }.items():
        yield name, make(ours), None if original is None else make(original)
    theirs = None if original_loops is None else _agent_loops(original_loops)
    yield "agent_loop_session and finish, 2 trajectories", _agent_loops(our_loops), theirs


def _original_insight() -> tuple[ModuleType | None, ModuleType | None]:
    """Return 0.3.0, which has our package name, and its agent loops; our modules are restored afterward."""
    folder = _ORIGINALS / "rl-insight"
    if not folder.exists():
        say("adapters: rl-insight 0.3.0 is not measured: run `make originals`")
        return None, None
    own = _taken_modules()
    sys.path.insert(0, str(folder))
    try:
        original: Any = importlib.import_module("rl_insight.api")
        loops = importlib.import_module("rl_insight.agent_loop")
        base: Any = importlib.import_module("rl_insight.client.base")
        client = type("Pickling", (base.MonitorClient,), {"apply_event": lambda _self, event: pickle.dumps(event)})
        base.register_monitor_client("pickling", lambda _config: client())
        original.init("math", "grpo", {"server": {"backend": "pickling", "url": "http://127.0.0.1:9"}})
    finally:
        sys.path.remove(str(folder))
        _taken_modules()
        sys.modules.update(own)
    return original, loops


def _taken_modules() -> dict[str, ModuleType]:
    names = [name for name in sys.modules if name == "rl_insight" or name.startswith("rl_insight.")]
    return {name: sys.modules.pop(name) for name in names}


def _counting(insight: Any) -> Loop:
    def loop(calls: int) -> None:
        for _ in range(calls):
            insight.metric_count("rollouts", worker="3", task="math")

    return loop


def _gauging(insight: Any) -> Loop:
    def loop(calls: int) -> None:
        for _ in range(calls):
            insight.metric_gauge("critic_score_mean", 0.5)

    return loop


def _states(insight: Any) -> Loop:
    def loop(calls: int) -> None:
        for _ in range(calls):
            with insight.trace_state("vllm_generate", state_lane_id="replica_0", step=3):
                pass

    return loop


def _operations(insight: Any) -> Loop:
    @insight.trace_op("update", stage="optimizer")  # type: ignore[untyped-decorator]
    def update() -> None:
        pass

    def loop(calls: int) -> None:
        for _ in range(calls):
            update()

    return loop


def _finished_spans(insight: Any) -> Loop:
    def loop(calls: int) -> None:
        for _ in range(calls):
            insight.trace_span(
                name="turn", start_time_ns=10**18, end_time_ns=10**18 + 9, attributes={"turn": 1, "tokens": 512}
            )

    return loop


def _agent_loops(loops: Any) -> Loop:
    trajectories = [SimpleNamespace(chain_id=number, reward_score=0.5, num_turns=4) for number in (1, 2)]

    def loop(calls: int) -> None:
        for number in range(calls):
            session = loops.agent_loop_session(experiment_name="grpo", sample=number % 8, session=0, global_steps=7)
            session.finish(trajectories=trajectories, status="success", runner_name="react", finished=True)

    return loop


# -- SkyRL 0.3.0, whose timer our callback hooks into


def _skyrl_timer(rounds: int) -> Iterator[Figure]:
    folder = _ORIGINALS / "skyrl"
    if not folder.exists():
        say("adapters: SkyRL's timer is not measured: run `make originals`")
        return
    sys.path.insert(0, str(folder))
    stubs: Any = importlib.import_module("stubs")
    for name in ("skyrl", "skyrl.train", "skyrl.train.utils"):
        stubs.package(name)
    plain, hooked = (_skyrl_utils(folder) for _ in range(2))
    record_blocks(hooked)

    def timing(module: Any) -> Loop:
        def loop(calls: int) -> None:
            for _ in range(calls):
                with module.Timer("generate"):
                    pass

        return loop

    pair = {"hooked": timing(hooked), "plain": timing(plain)}
    costs = measure_calls(pair, rounds=rounds, between=default_monitor.flush)
    yield Figure("SkyRL timer, overhead", (costs["hooked"] - costs["plain"]) / 1000, "µs")


def _skyrl_utils(folder: Path) -> ModuleType:
    """Return SkyRL's module with only its timer: the rest needs torch. Its two log lines are not counted."""
    source = (folder / "skyrl" / "train" / "utils" / "utils.py").read_text()
    kept: list[ast.stmt] = [
        node for node in ast.parse(source).body if isinstance(node, ast.ClassDef) and node.name == "Timer"
    ]
    module = ModuleType("skyrl.train.utils.utils")
    quiet = SimpleNamespace(opt=lambda **_options: SimpleNamespace(info=lambda _text: None))
    vars(module).update(time=time, logger=quiet)
    exec(compile(ast.Module(kept, []), "utils.py", "exec"), vars(module))
    return module


# -- AReaL 1.0.4


def _areal(folder: str, stack: ExitStack) -> Iterator[Pair]:
    from rl_insight.compat import areal as ours

    sys.path.insert(0, str(_PROGRAMS))
    programs: Any = importlib.import_module("perf_tracers")
    tracers: list[Any] = [ours]
    if (_ORIGINALS / "areal").exists():
        sys.path.insert(0, str(_ORIGINALS / "areal"))
        tracers.append(programs.load("original"))
    else:
        say("adapters: AReaL's tracer is not measured: run `make originals`")
    for number, tracer in enumerate(tracers):
        config = programs.PerfTracerConfig(fileroot=f"{folder}/{number}", enabled=True)
        tracer.configure(config, rank=0, role="actor")
        stack.callback(tracer.reset)
    for name, make in {
        "AReaL scope": _scopes,
        "AReaL instant": _instants,
        "AReaL session with 3 phases": areal_sessions,
    }.items():
        loops = [make(tracer) for tracer in tracers]
        yield name, loops[0], loops[1] if len(loops) > 1 else None


def _scopes(tracer: Any) -> Loop:
    category = tracer.Category.COMPUTE

    def loop(calls: int) -> None:
        for _ in range(calls):
            with tracer.trace_scope("train.rollout", category=category, args={"global_step": 3}):
                pass

    return loop


def _instants(tracer: Any) -> Loop:
    category = tracer.Category.IO

    def loop(calls: int) -> None:
        for _ in range(calls):
            tracer.instant("weights.received", category=category, args={"version": 3})

    return loop


# -- XTuner, against the OpenTelemetry span that its own is built on


def _xtuner(folder: str, stack: ExitStack) -> Iterator[Pair]:
    from rl_insight.compat import xtuner

    tracer, _ = stack.enter_context(open_telemetry_tracer())
    attributes = {"tokens": 512, "model": "policy", "turn": 3}

    def ours(calls: int) -> None:
        for _ in range(calls):
            with xtuner.trace_span("generate", attributes):
                pass

    def open_telemetry(calls: int) -> None:
        for _ in range(calls):
            with tracer.start_as_current_span("generate", attributes=attributes):
                pass

    xtuner.configure_trace(xtuner.TraceConfig(enabled=True, output_dir=f"{folder}/otel", service_name="rollout"))
    yield "XTuner span, 3 attributes", ours, open_telemetry
    xtuner.configure_trace(
        xtuner.TraceConfig(enabled=True, output_dir=f"{folder}/producer", max_events=10**6, viewer_enabled=False)
    )
    stack.callback(xtuner.close_trace)
    sample = SimpleNamespace(
        uid=17, task_name="gsm8k", session_uid=2, status="init", extra_fields={"_trace_train_step": 5}
    )

    def stages(calls: int) -> None:
        for _ in range(calls):
            with xtuner.trace_span(sample, "xtuner.judger.judge", worker_rank=3):
                pass

    yield "XTuner stage of a sample: two lines and a phase", stages, None
