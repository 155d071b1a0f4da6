"""What cannot work with hooks that consume gradients, found before it does harm."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterable

from torch import Tensor
from torch.amp import GradScaler
from torch.autograd.function import BackwardCFunction
from torch.nn.parallel import DistributedDataParallel

from memopt.errors import UnsupportedCombination

_CUSTOM_BACKWARD = BackwardCFunction.apply.__code__


def refuse_wrappers(params: Iterable[Tensor]) -> None:
    """Looks once, at the first gradient, for a DDP wrapper or a loss scaler in use.

    An optimizer sees parameters only; neither wrapper leaves a mark on them. So the live objects
    of the process are searched (some ten milliseconds, once per handle).

    Raises:
        UnsupportedCombination: DDP around one of the parameters, or a GradScaler that has scaled
            a loss.
    """
    ours = {id(param) for param in params}
    for found in gc.get_objects():
        kind = type(found)
        if issubclass(kind, DistributedDataParallel):
            if any(id(param) in ours for param in found.parameters()):
                raise UnsupportedCombination(
                    "the model is wrapped in DistributedDataParallel: its buckets hold every "
                    "gradient, and its all-reduce comes after the hook, so each process would "
                    "apply its own gradient. Leave the model unwrapped and use "
                    "memopt.distributed.reduce_gradients(optimizer), or an optimizer that "
                    "updates in step()."
                )
        elif issubclass(kind, GradScaler) and found.is_enabled() and found._scale is not None:
            raise UnsupportedCombination(
                "a GradScaler scales the loss: an overflow is known only after the whole "
                "backward, when the gradients are already in the weights or states. Use bfloat16 "
                "autocast without a scaler, or an optimizer that updates in step()."
            )


def in_reentrant_backward() -> bool:
    """Whether the running hook belongs to a backward started inside another one.

    That is what reentrant activation checkpointing does: `torch.autograd.Function.backward` of the
    checkpoint runs a backward of its own. Only there can a parameter receive several partial
    gradients in what the user sees as one backward.
    """
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_code is _CUSTOM_BACKWARD:
            return True
    return False
