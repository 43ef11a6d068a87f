"""What a receiver knows about a process: which batches it has taken, how far the clock is off, whether it is live.

The Ray hub and the server use the same objects; the server's store keeps them in the transaction of the rows.
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
