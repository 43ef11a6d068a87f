"""The rules, one module per family. Add a new rule to `RULES`."""

from collections.abc import Mapping

from rl_insight.diagnosis.rule import Rule
from rl_insight.diagnosis.rules.balance import RolloutBound, SerialAsync, SyncOverhead, TrainerBound
from rl_insight.diagnosis.rules.calls import SlowReward, SlowTool, ToolErrors
from rl_insight.diagnosis.rules.engines import ColdPrefixCache, DeadEngine, EngineQueue, KvCacheThrash, StuckEngine
from rl_insight.diagnosis.rules.imbalance import DataImbalance, ReplicaImbalance
from rl_insight.diagnosis.rules.learning import LEARNING_RULES, MismatchAfterSync
from rl_insight.diagnosis.rules.limits import LIMIT_RULES
from rl_insight.diagnosis.rules.machines import MACHINE_RULES, GpuIdleInRollout
from rl_insight.diagnosis.rules.regression import StepRegression
from rl_insight.diagnosis.rules.rewards import REWARD_RULES, NoisyReward, RewardHacking
from rl_insight.diagnosis.rules.sessions import LongTail, StaleEngineWeights, WastedSamples
from rl_insight.diagnosis.rules.shares import SHARE_RULES
from rl_insight.diagnosis.rules.stalls import CollectiveHang, StalledRun
from rl_insight.diagnosis.rules.stragglers import SlowNetwork, Straggler
from rl_insight.diagnosis.rules.stuck import BlockedReward, StuckSession, StuckWeightSync
from rl_insight.diagnosis.rules.telemetry import TelemetryGap, UserAlert

RULES: tuple[type[Rule], ...] = (
    StalledRun, CollectiveHang, DeadEngine, StuckEngine, BlockedReward, StuckWeightSync, StuckSession,
    Straggler, DataImbalance, ReplicaImbalance, SlowTool, ToolErrors, SlowReward, LongTail, WastedSamples,
    StepRegression, RolloutBound, TrainerBound, SyncOverhead, SerialAsync, *SHARE_RULES, KvCacheThrash, EngineQueue,
    ColdPrefixCache, *MACHINE_RULES, SlowNetwork, GpuIdleInRollout, TelemetryGap, UserAlert,
    *LEARNING_RULES, *REWARD_RULES, *LIMIT_RULES, MismatchAfterSync, RewardHacking, NoisyReward,
    StaleEngineWeights,
)  # fmt: skip
"""Every rule, in the order of the documentation."""


def make_rules(
    values: Mapping[str, Mapping[str, float]] | None = None, *, off: frozenset[str] = frozenset()
) -> list[Rule]:
    """Return new rules for one run, with their configured parameters and without those that are turned off."""
    return [rule((values or {}).get(rule.name)) for rule in RULES if rule.name not in off]
