"""What cannot work with hooks that consume gradients, found before it does harm."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterable
from typing import Any

from torch import Tensor, distributed
from torch.amp import GradScaler
from torch.nn.parallel import DistributedDataParallel

from memopt.errors import UnsupportedCombination

DDP = (
    "the model is wrapped in DistributedDataParallel: its buckets hold every gradient, and its "
    "all-reduce comes after the hook, so each process would apply its own gradient. Leave the "
    "model unwrapped and use memopt.distributed.reduce_gradients(optimizer), or an optimizer that "
    "updates in step()."
)
SCALER = (
    "a GradScaler scales the loss: an overflow is known only after the whole backward, when the "
    "gradients are already in the weights or states. Use bfloat16 autocast without a scaler, or an "
    "optimizer that updates in step()."
)


def scalers_in_use() -> weakref.WeakSet[GradScaler]:
    """Every enabled GradScaler of the process that has scaled a loss."""
    found = _instances(GradScaler)
    return weakref.WeakSet(each for each in found if each.is_enabled() and each._scale is not None)


def refuse_wrappers(params: Iterable[Tensor], other_scalers: weakref.WeakSet[GradScaler]) -> None:
    """Looks once, at the first gradient, for a DDP wrapper or a loss scaler.

    An optimizer sees parameters only; neither wrapper leaves a mark on them. So the live objects
    of the process are searched (tens of milliseconds, once per handle).

    Args:
        params: the parameters that a wrapper must not hold.
        other_scalers: those in use before; only a scaler that has begun since scales this loss.

    Raises:
        UnsupportedCombination: DDP around one of the parameters, or a GradScaler.
    """
    ours = {id(param) for param in params}
    if _in_ddp(ours):
        gc.collect()  # a wrapper that was given up is no obstacle
        if _in_ddp(ours):
            raise UnsupportedCombination(DDP)
    if scalers_in_use() - other_scalers:
        raise UnsupportedCombination(SCALER)


def _in_ddp(ours: set[int]) -> bool:
    if not (distributed.is_available() and distributed.is_initialized()):
        return False  # DDP needs a process group
    wrappers = _instances(DistributedDataParallel)
    return any(id(param) in ours for wrapper in wrappers for param in wrapper.parameters())


def _instances(kind: type) -> list[Any]:
    """Live objects of a class or its subclasses: those that refer to it as their type."""
    kinds = [kind]
    for each in kinds:
        kinds += each.__subclasses__()
    return [each for each in gc.get_referrers(*kinds) if type(each) in kinds]
