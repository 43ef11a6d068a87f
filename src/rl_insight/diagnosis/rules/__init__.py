"""The rules, one module per family. A new rule is added to `RULES`."""

from collections.abc import Mapping

from rl_insight.diagnosis.rule import Rule
from rl_insight.diagnosis.rules.alerts import UserAlert
from rl_insight.diagnosis.rules.balance import RolloutBound, SerialAsync, SyncOverhead, TrainerBound
from rl_insight.diagnosis.rules.calls import SlowReward, SlowTool, ToolErrors
from rl_insight.diagnosis.rules.engines import CacheThrash, DeadEngine, EngineQueue, StuckEngine
from rl_insight.diagnosis.rules.evaluations import EVALUATION_RULES
from rl_insight.diagnosis.rules.idle_gpus import IdleGpus
from rl_insight.diagnosis.rules.imbalance import DataImbalance, ReplicaImbalance
from rl_insight.diagnosis.rules.learning import LEARNING_RULES
from rl_insight.diagnosis.rules.limits import LIMIT_RULES
from rl_insight.diagnosis.rules.long_tail import LongTail, WastedSamples
from rl_insight.diagnosis.rules.machines import MACHINE_RULES
from rl_insight.diagnosis.rules.network import ColdPrefixCache, SlowNetwork
from rl_insight.diagnosis.rules.regression import StepRegression
from rl_insight.diagnosis.rules.rewards import REWARD_RULES
from rl_insight.diagnosis.rules.shares import (
    DataStarvation,
    SlowCheckpoint,
    SlowValidation,
    SlowWeightSync,
    SwitchOverhead,
    UnattributedTime,
)
from rl_insight.diagnosis.rules.stalls import CollectiveHang, StalledRun
from rl_insight.diagnosis.rules.stragglers import Straggler
from rl_insight.diagnosis.rules.stuck import BlockedReward, StuckSession, StuckWeightSync
from rl_insight.diagnosis.rules.telemetry import TelemetryGap

RULES: tuple[type[Rule], ...] = (
    StalledRun, CollectiveHang, DeadEngine, StuckEngine, BlockedReward, StuckWeightSync, StuckSession,
    Straggler, DataImbalance, ReplicaImbalance, SlowTool, ToolErrors, SlowReward, LongTail, WastedSamples,
    StepRegression, RolloutBound, TrainerBound, SyncOverhead, SerialAsync,
    SlowWeightSync, SlowCheckpoint, SlowValidation, DataStarvation, SwitchOverhead, UnattributedTime,
    CacheThrash, EngineQueue, ColdPrefixCache, *MACHINE_RULES, SlowNetwork, IdleGpus, TelemetryGap, UserAlert,
    *LEARNING_RULES, *REWARD_RULES, *LIMIT_RULES, *EVALUATION_RULES,
)  # fmt: skip
"""Every rule, in the order of the documentation."""


def make_rules(
    values: Mapping[str, Mapping[str, float]] | None = None, *, off: frozenset[str] = frozenset()
) -> list[Rule]:
    """Return fresh rules for one run, with the parameters that are configured, without those that are switched off."""
    return [rule((values or {}).get(rule.name)) for rule in RULES if rule.name not in off]
