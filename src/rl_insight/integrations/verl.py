"""verl: what its own `rl_insight` logger leaves out, through the entry point `verl.plugins` (verl 0.9.0 or newer).

verl loads this module on `import verl`, in the driver, the workers and the rollout servers. Where no server is known it
does nothing. With it, the driver's phases (`gen`, `reward`, `update_actor`, ...) are open states, every metric has its
step, and every agent loop is a session with its generations and tool calls as phases.

Older releases load it with `VERL_USE_EXTERNAL_MODULES=rl_insight.integrations.verl`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import ModuleType
from typing import Any, NamedTuple

from rl_insight.integrations.hooks import QuietContext, around, before, on_import, quiet, replace_once
from rl_insight.integrations.mirrors import paused
from rl_insight.integrations.starting import ensure_started, is_wanted
from rl_insight.integrations.texts import captures_text, note_texts, takes_text
from rl_insight.integrations.timers import timed
from rl_insight.integrations.trackers.logger import InsightLogger
from rl_insight.monitor import default_monitor as monitor
from rl_insight.recorder.decorators import surrounded

PHASES = {"generate": "generate", "execute": "toolcall"}
"""The traced methods of verl that are phases of a session; others are spans inside it."""

_logger = InsightLogger()
_tokenizer: ContextVar[Any] = ContextVar("rl_insight_verl_tokenizer", default=None)
"""Of the agent loop that is running."""


def instrument() -> None:
    """Record what verl does, in the modules that it imports from now on; calling it again changes nothing."""
    on_import("verl.utils.profiler", _patch_timers)
    on_import("verl.utils.debug", _patch_timers)
    on_import("verl.utils.tracking", _patch_tracking)
    on_import("verl.utils.rollout_trace", _patch_rollout_trace)
    on_import("verl.experimental.agent_loop.agent_loop", _patch_agent_loop)


def _patch_timers(module: Any) -> None:
    def shown(timer: Callable[..., Any]) -> Callable[..., Any]:
        @contextmanager
        def marked_timer(name: str, *args: Any, **kwargs: Any) -> Iterator[Any]:
            with QuietContext("the phases of verl", lambda: timed(name)), timer(name, *args, **kwargs) as value:
                yield value

        return marked_timer

    replace_once(module, "marked_timer", shown)


def _patch_tracking(module: ModuleType) -> None:
    def start(call: Any) -> None:
        backends = call["default_backend"]
        if "rl_insight" not in ([backends] if isinstance(backends, str) else list(backends)):
            ensure_started(str(call["project_name"]), str(call["experiment_name"]), role="trainer")
        if call.get("config") is not None:
            monitor.record_config(call["config"])

    @contextmanager
    def logged(call: Any) -> Iterator[None]:
        step = int(call["step"])
        if "rl_insight" not in call["self"].logger:
            _logger.log(call["data"], step)
        # What follows belongs to the next step: verl logs a step when it is over.
        monitor.set_step(step + 1)
        with paused():
            yield

    before(module.Tracking, "__init__", start)
    around(module.Tracking, "log", logged)
    if hasattr(module, "RLInsightLogger"):
        # verl drops the step there.
        around(module.RLInsightLogger, "log", lambda call: monitor.step(int(call["step"])))


def _patch_rollout_trace(module: Any) -> None:
    def in_session(original: Callable[..., Any]) -> Callable[..., Any]:
        @contextmanager
        def rollout_trace_attr(
            sample_index: Any = None, step: Any = None, rollout_n: Any = None, *args: Any, **kwargs: Any
        ) -> Iterator[Any]:
            facts = {"task_id": sample_index, "step": step if isinstance(step, int) else None, "rollout_n": rollout_n}
            facts |= {"validate": True} if kwargs.get("validate") else {}
            with (
                QuietContext("the sessions of verl", lambda: monitor.session(**facts)),
                original(sample_index, step, rollout_n, *args, **kwargs) as value,
            ):
                yield value

        return rollout_trace_attr

    replace_once(module, "rollout_trace_attr", in_session)
    replace_once(module, "rollout_trace_op", lambda original: lambda one: _recorded(original(one), one))


def _recorded(decorated: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
    """Record the calls of a method that verl traces: as a phase of the current session, or as a span."""
    phase = PHASES.get(function.__name__)
    note = _TEXTS.get(function.__name__)

    def manager(owner: Any) -> Any:
        if phase is None:
            return monitor.trace_span(function.__qualname__)
        return monitor.phase(phase, tool=str(owner.name)) if hasattr(owner, "name") else monitor.phase(phase)

    if note is not None and inspect.iscoroutinefunction(function):

        @functools.wraps(decorated)
        async def asynchronous(self: Any, *args: Any, **kwargs: Any) -> Any:
            with QuietContext("the phases of verl", lambda: manager(self)) as opened:
                _quietly(note.before, opened, self, args, kwargs)
                result = await decorated(self, *args, **kwargs)
                _quietly(note.after, opened, result)
                return result

        return asynchronous

    return surrounded(decorated, lambda args, _kwargs: QuietContext("the phases of verl", lambda: manager(args[0])))


class _Texts(NamedTuple):
    """What the calls of a method say about the conversation."""

    before: Callable[..., None]
    after: Callable[..., None]


@quiet("the texts of verl's agent loops")
def _quietly(note: Callable[..., None], opened: Any, *given: Any) -> None:
    """Note texts where any are recorded."""
    if opened is not None and captures_text():
        note(opened, *given)


def _begin_loop(_span: Any, loop: Any, _args: Any, kwargs: dict[str, Any]) -> None:
    """Keep the prompt with the session, and the tokenizer for its turns."""
    _tokenizer.set(getattr(loop, "tokenizer", None))
    session = monitor.current_session()
    if session is not None and "raw_prompt" in kwargs:
        note_texts(session, messages=list(kwargs["raw_prompt"]))


def _end_turn(phase: Any, output: Any) -> None:
    """Keep what a turn generated: verl has tokens, which are decoded for the sampled sessions alone."""
    tokenizer, tokens = _tokenizer.get(), getattr(output, "token_ids", None)
    if tokens is None:
        return
    phase.set_attribute("tokens", len(tokens))
    if tokenizer is not None and takes_text():
        note_texts(phase, response=tokenizer.decode(tokens))


def _begin_call(phase: Any, _tool: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Keep what a tool is called with: `execute(instance_id, parameters)`."""
    note_texts(phase, tool_arguments=kwargs.get("parameters", args[1] if len(args) > 1 else None))


def _end_call(phase: Any, result: Any) -> None:
    """Keep what a tool returned: a response with a text, a reward, and metrics."""
    response = result[0] if isinstance(result, tuple) else result
    note_texts(phase, tool_result=getattr(response, "text", response))


def _nothing(*_given: Any) -> None:
    """Note nothing."""


_TEXTS = {
    "run": _Texts(_begin_loop, _nothing),
    "generate": _Texts(_nothing, _end_turn),
    "execute": _Texts(_begin_call, _end_call),
}


def _patch_agent_loop(module: ModuleType) -> None:
    def noted(finish: Callable[..., Any]) -> Callable[..., Any]:
        async def postprocess(self: Any, *args: Any, **kwargs: Any) -> Any:
            result = await finish(self, *args, **kwargs)
            _note_result(result)
            return result

        return postprocess

    replace_once(module.AgentLoopWorker, "_agent_loop_postprocess", noted)


@quiet("the reward of verl's agent loops")
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
