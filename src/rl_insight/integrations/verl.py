"""verl: extends its built-in `rl_insight` logger through the entry point `verl.plugins` (verl 0.9.0 or newer).

verl loads this module on `import verl`, in the driver, the workers and the rollout servers. Without a known server it
does nothing. With one, the driver's phases (`gen`, `reward`, `update_actor`, ...) are states that are visible while
they run, every metric has its step, and every agent loop is a session whose generations and tool calls are phases.

Older releases load it with `VERL_USE_EXTERNAL_MODULES=rl_insight.integrations.verl`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from types import ModuleType
from typing import Any

from rl_insight.integrations import hooks
from rl_insight.integrations.mirrors import logged
from rl_insight.integrations.samples import captures_text, note_texts, takes_text
from rl_insight.integrations.starting import ensure_started, is_wanted
from rl_insight.integrations.timers import timed
from rl_insight.monitor import default_monitor as monitor
from rl_insight.recorder.decorators import surrounded

PHASES = {"generate": "generate", "execute": "toolcall"}
"""Traced methods of verl that are phases of a session; others are spans inside it."""

_tokenizer: ContextVar[Any] = ContextVar("rl_insight_verl_tokenizer", default=None)
"""The tokenizer of the running agent loop."""


def instrument() -> None:
    """Record what verl does, in modules that it imports from now on. Idempotent."""
    hooks.on_import("verl.utils.profiler", _patch_timers)
    hooks.on_import("verl.utils.debug", _patch_timers)
    hooks.on_import("verl.utils.tracking", _patch_tracking)
    hooks.on_import("verl.utils.rollout_trace", _patch_rollout_trace)
    hooks.on_import("verl.experimental.agent_loop.agent_loop", _patch_agent_loop)


def _patch_timers(module: ModuleType) -> None:
    hooks.around_blocks(module, "marked_timer", lambda call: timed(call["name"]))


def _patch_tracking(module: ModuleType) -> None:
    def start(call: hooks.Arguments) -> None:
        backends = call["default_backend"]
        if "rl_insight" not in ([backends] if isinstance(backends, str) else list(backends)):
            ensure_started(str(call["project_name"]), str(call["experiment_name"]), role="trainer")
        if call.get("config") is not None:
            monitor.record_config(call["config"])

    def recorded(call: hooks.Arguments) -> AbstractContextManager[None]:
        return logged({} if "rl_insight" in call["self"].logger else call["data"], int(call["step"]))

    hooks.before(module.Tracking, "__init__", start)
    hooks.around(module.Tracking, "log", recorded)
    if hasattr(module, "RLInsightLogger"):
        # verl drops the step there.
        hooks.around(module.RLInsightLogger, "log", lambda call: monitor.step(int(call["step"])))


def _patch_rollout_trace(module: ModuleType) -> None:
    hooks.around_blocks(module, "rollout_trace_attr", _session)
    hooks.replace_once(module, "rollout_trace_op", lambda original: lambda one: _recorded(original(one), one))


def _session(call: hooks.Arguments) -> Any:
    step = call["step"] if isinstance(call["step"], int) else None
    kind: dict[str, Any] = {"validate": True} if call.get("validate") else {}
    return monitor.session(task_id=call["sample_index"], step=step, rollout_n=call["rollout_n"], **kind)


def _recorded(decorated: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
    """Record the calls of a method that verl traces: as a phase of the current session, or as a span."""
    name = function.__name__
    phase = PHASES.get(name)

    @contextmanager
    def opened(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Any]:
        tool = {"tool": str(args[0].name)} if hasattr(args[0], "name") else {}
        span: Any = monitor.trace_span(function.__qualname__) if phase is None else monitor.phase(phase, **tool)
        with span:
            if name in _BEFORE:
                _note(_BEFORE[name], span, args, kwargs)
            yield span

    def ended(span: Any, result: Any) -> Any:
        if span is not None and name in _AFTER:
            _note(_AFTER[name], span, result)
        return result

    return surrounded(decorated, lambda *call: hooks.QuietContext("the phases of verl", lambda: opened(*call)), ended)


@hooks.quiet("the texts of verl's agent loops")
def _note(note: Callable[..., None], *given: Any) -> None:
    if captures_text():
        note(*given)


def _begin_loop(_span: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Add the prompt to the session, and keep the tokenizer for its turns."""
    _tokenizer.set(getattr(args[0], "tokenizer", None))
    session = monitor.current_session()
    if session is not None and "raw_prompt" in kwargs:
        note_texts(session, messages=list(kwargs["raw_prompt"]))


def _begin_call(phase: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Add the arguments of a tool call: `execute(instance_id, parameters)`."""
    note_texts(phase, tool_arguments=kwargs.get("parameters", args[2] if len(args) > 2 else None))


def _end_turn(phase: Any, output: Any) -> None:
    """Add the text that a turn generated: verl has tokens, which are decoded for sampled sessions only."""
    tokenizer, tokens = _tokenizer.get(), getattr(output, "token_ids", None)
    if tokens is None:
        return
    phase.set_attribute("tokens", len(tokens))
    if tokenizer is not None and takes_text():
        note_texts(phase, response=tokenizer.decode(tokens))


def _end_call(phase: Any, result: Any) -> None:
    """Add the result of a tool call: a response with text, a reward, and metrics."""
    response = result[0] if isinstance(result, tuple) else result
    note_texts(phase, tool_result=getattr(response, "text", response))


_BEFORE = {"run": _begin_loop, "execute": _begin_call}
_AFTER = {"generate": _end_turn, "execute": _end_call}


def _patch_agent_loop(module: ModuleType) -> None:
    hooks.after(module.AgentLoopWorker, "_agent_loop_postprocess", lambda _call, result: _note_result(result))


def _note_result(result: Any) -> None:
    session = monitor.current_session()
    if session is None:
        return
    reward, turns = getattr(result, "reward_score", None), getattr(result, "num_turns", None)
    if reward is not None:
        session.update(reward=float(reward))
    if turns:
        session.count("turns", turns)


if is_wanted():
    instrument()
