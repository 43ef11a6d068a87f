"""TRL: the phases of GRPO, RLOO and the other online trainers become states, and their samples sessions.

Active with `report_to="rl_insight"`, with `InsightCallback`, and under `rl-insight run`. TRL measures its phases with
`ProfilingContext` and logs them when they end; here they are visible while they run.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from types import ModuleType
from typing import Any

from rl_insight.integrations.hooks import Arguments, after, around, between, on_import, quiet
from rl_insight.integrations.samples import captures_text, note_texts
from rl_insight.monitor import default_monitor as monitor

STATES: Mapping[str, str] = {
    "vLLM.generate": "generate",
    "transformers.generate": "generate",
    "transformers.generate_batch": "generate",
    "sync_weights": "sync_weights",
    "_calculate_rewards": "reward",
    "_get_per_token_logps_and_entropies": "compute_log_prob",
    "compute_loss": "compute_loss",
}
"""TRL's phase names, without the trainer's class, to ours. Reward functions are spans inside `reward`."""

_WRAPPERS = {"_prepare_inputs"}
"""Phases that only contain others: as states they would hide what is inside."""

_TASK_KEYS = ("task_id", "id", "uid", "index", "idx")
_PHASES = {"generate", "reward"}
_batch = threading.local()


def instrument() -> None:
    """Record TRL's trainers once TRL is imported. Idempotent."""
    on_import("trl.extras.profiling", _patch_profiling)
    on_import("trl.trainer.grpo_trainer", _patch_grpo)


def _patch_profiling(module: ModuleType) -> None:
    between(module.ProfilingContext, ("__enter__", "__exit__"), lambda call: _phase(call["self"].name))


def _phase(full_name: str) -> Any:
    """Return the state, span or empty context of a phase of TRL."""
    name = full_name.split(".", 1)[-1]
    if name in _WRAPPERS:
        return nullcontext()
    state = STATES.get(name)
    return monitor.trace_span(name) if state is None else _state_of_samples(state)


@contextmanager
def _state_of_samples(state: str) -> Iterator[None]:
    """Record a state of the process that is also a phase of every sample in the batch."""
    sessions = getattr(_batch, "sessions", ()) if state in _PHASES else ()
    phases = [session.open_phase(state) for session in sessions]
    try:
        with monitor.trace_state(state):
            yield
    finally:
        for phase in phases:
            phase.__exit__(None, None, None)


def _patch_grpo(module: ModuleType) -> None:
    around(module.GRPOTrainer, "_generate_and_score_completions", _samples_of_batch)
    around(module.GRPOTrainer, "evaluate", lambda _call: monitor.trace_state("evaluate"))
    after(module.GRPOTrainer, "_calculate_rewards", _note_results)


def _note_results(call: Arguments, rewards: Any) -> None:
    _note_rewards(call["self"], rewards, call["completion_ids_list"])
    _note_texts(call["prompts"], call["completions"])


@contextmanager
def _samples_of_batch(call: Arguments) -> Iterator[None]:
    """Record one session per completion of the batch; none for validation batches."""
    trainer, inputs = call["self"], call["inputs"]
    model = getattr(trainer, "model", None)
    if model is not None and not model.training:
        yield
        return
    step = trainer.state.global_step
    _batch.sessions = [
        monitor.session(task_id=task_of(sample), step=step + 1, model_version=step).submit() for sample in inputs
    ]
    _batch.outcomes = []
    try:
        yield
    except BaseException as error:
        _finish(_batch.sessions, "failed", type(error).__name__)
        raise
    else:
        _finish(_batch.sessions, "accepted", None)
    finally:
        del _batch.sessions, _batch.outcomes


def _finish(sessions: Sequence[Any], status: str, reason: str | None) -> None:
    outcomes = _batch.outcomes or [(None, None)] * len(sessions)
    for session, (reward, tokens) in zip(sessions, outcomes, strict=True):
        session.finalize(status, reason, reward=reward, tokens=tokens)


@quiet("the rewards of TRL")
def _note_rewards(trainer: Any, rewards: Any, completion_ids: Sequence[Sequence[int]]) -> None:
    """Keep the weighted reward and the length of each completion from this process."""
    if not getattr(_batch, "sessions", None):
        return
    # TRL returns the rewards of all processes, grouped by process.
    first = trainer.accelerator.process_index * len(completion_ids)
    weighted = (rewards * trainer.reward_weights.to(rewards.device).unsqueeze(0)).nansum(dim=1).tolist()
    own = weighted[first : first + len(completion_ids)]
    _batch.outcomes = [(reward, len(ids)) for reward, ids in zip(own, completion_ids, strict=True)]


def _note_texts(prompts: Sequence[Any], completions: Sequence[Any]) -> None:
    """Keep prompts and completions: strings, or messages if the dataset has conversations."""
    if not captures_text():
        return
    for session, prompt, completion in zip(getattr(_batch, "sessions", ()), prompts, completions, strict=False):
        note_texts(session, prompt=prompt, response=completion)


def task_of(sample: Mapping[str, Any]) -> str:
    """Return the dataset item of a sample: its id column, else a hash of the prompt.

    >>> task_of({"id": 17, "prompt": "2 + 2"})
    '17'
    >>> task_of({"prompt": "2 + 2"})
    'prompt-0dd6ef84'
    """
    for key in _TASK_KEYS:
        if isinstance(sample.get(key), (int, str)):
            return str(sample[key])
    prompt = repr(sample.get("prompt")).encode()
    return f"prompt-{hashlib.blake2b(prompt, digest_size=4).hexdigest()}"
