"""What a receiver knows about a process: which batches it has taken, how far the clock is off, whether it is live.

The Ray hub and the server use the same objects; the server's store keeps them in the transaction of the rows.
"""

from rl_insight.intake.admission import MAX_LOSS_COUNT, Admission
from rl_insight.intake.cadence import Cadence, has_cadence
from rl_insight.intake.clock import ClockOffset
from rl_insight.intake.ledger import Ledger
from rl_insight.intake.process import LIVENESS, Intake, Liveness, liveness, silence_ns

__all__ = [
    "LIVENESS",
    "MAX_LOSS_COUNT",
    "Admission",
    "Cadence",
    "ClockOffset",
    "Intake",
    "Ledger",
    "Liveness",
    "has_cadence",
    "liveness",
    "silence_ns",
]
