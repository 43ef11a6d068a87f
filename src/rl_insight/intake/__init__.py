"""A receiver's state per process: the ledger of accepted batches, the clock offset, and liveness.

The Ray hub and the server share this code; the server's store persists the state in the same transaction as the rows.
"""

from rl_insight.intake.admission import MAX_LOSS_COUNT, Admission
from rl_insight.intake.clock import ClockOffset
from rl_insight.intake.ledger import Ledger, first_assigned_sequence
from rl_insight.intake.process import LIVENESS, Cadence, Intake, Liveness, has_cadence, liveness, silence_ns

__all__ = [
    "LIVENESS",
    "MAX_LOSS_COUNT",
    "Admission",
    "Cadence",
    "ClockOffset",
    "Intake",
    "Ledger",
    "Liveness",
    "first_assigned_sequence",
    "has_cadence",
    "liveness",
    "silence_ns",
]
