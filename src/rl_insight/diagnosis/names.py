"""Kinds of states and roles, by their names."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final, Literal

from rl_insight.schema.names import is_waiting, normalized

StateKind = Literal[
    "wait", "generate", "tool", "reward", "update", "sync", "checkpoint", "validation", "data", "log_prob", "work"
]

_SYNC = (
    r"(sync|broadcast|update|push|publish|transfer|refit|load|pull|receive)_?(rollout_)?(weight|param)"
    r"|(weight|param)s?_?(sync|transfer|update|broadcast)|(^|_)refit(_|$)"
)
_GENERATE = r"gen|generate|generation|generating|rollout|decode|prefill|sample|sampling|make_experience"
_UPDATE = r"update|train|train_batch|train_step|forward_backward|forward|backward|optimizer|optim|learn|ppo_train"
_PATTERNS: Final[tuple[tuple[StateKind, str], ...]] = (
    ("checkpoint", r"checkpoint|ckpt|(^|_)save(_|$)"),
    ("validation", r"(^|_)(val|validate|validation|testing|test|eval|evaluate|evaluation)(_|$)"),
    ("sync", _SYNC),
    ("tool", r"tool|sandbox|(^|_)env(ironment)?(_|$)"),
    ("reward", r"reward|compute_score|(^|_)(score|scoring|verify|verifier|judge|grade)(_|$)"),
    ("log_prob", r"log_?prob|logp(_|$)"),
    ("data", r"(^|_)(data|dataloader|load_batch|load_data|data_loading|fetch_batch|get_batch)(_|$)"),
    ("generate", rf"(^|_)({_GENERATE})(_|$)"),
    ("update", rf"(^|_)({_UPDATE})(_|$)|actor_update|policy_train"),
)
_KINDS: Final = tuple((kind, re.compile(pattern)) for kind, pattern in _PATTERNS)


@lru_cache(maxsize=65_536)
def state_kind(name: str) -> StateKind:
    """Return the kind of a state, phase or span, by its name; `work` if the name does not indicate one.

    >>> [state_kind(name) for name in ("wait_for_samples", "update_weights", "update_actor", "vllm_generate", "thing")]
    ['wait', 'sync', 'update', 'generate', 'work']
    """
    if is_waiting(name):
        return "wait"
    text = normalized(name)
    for kind, pattern in _KINDS:
        if pattern.search(text):
            return kind
    return "work"


@lru_cache(maxsize=1024)
def is_rollout(role: str) -> bool:
    """Return whether a role generates samples, by its name."""
    return re.search(r"rollout|generat|infer|engine|vllm|sglang|sampler", normalized(role)) is not None
