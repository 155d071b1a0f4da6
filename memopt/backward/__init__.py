"""When gradients are consumed: in backward, per update (LOMO) or per micro-batch (AdamA)."""

from memopt.backward.accumulate import AccumulateInBackward, accumulate_in_backward
from memopt.backward.handle import Handle
from memopt.backward.update import UpdateInBackward, update_in_backward

__all__ = [
    "AccumulateInBackward",
    "Handle",
    "UpdateInBackward",
    "accumulate_in_backward",
    "update_in_backward",
]
