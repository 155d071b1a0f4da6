"""Parameters that lie on several processes (FSDP2's DTensors), and what a method gets to see.

FSDP2 gives each process a block of rows of every weight, and the same block of its gradient. State
is kept in the same way: each tensor of it is a DTensor, divided along its first axis, so that a
process keeps 1/M and `torch.distributed.checkpoint` can save and load it for any M.

A method's update runs in one of two ways, `Part`:

- *by rows*, where the method says that a block of rows needs nothing of the others
  (`MemoptOptimizer.row_block`): on the local block, without communication but for what is asked
  for here (`norm`);
- *whole* otherwise: weight, gradient and state of one parameter at a time are gathered, every
  process computes the same update, and keeps its part of the result.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, distributed

_block_group: Any = None  # processes that hold the other rows, while an update runs by rows


class Part(NamedTuple):
    """What an update works on: plain tensors, whole or a block of rows, and hyperparameters."""

    param: Tensor
    grad: Any
    state: dict[str, Any]
    group: dict[str, Any]


def is_sharded(value: Any) -> bool:
    """Whether this is a DTensor."""
    module = sys.modules.get("torch.distributed.tensor")  # without it there is none
    return module is not None and isinstance(value, module.DTensor)


def local(value: Any) -> Any:
    """What this process holds of a tensor; anything but a DTensor as it is."""
    return value.to_local() if is_sharded(value) else value


def whole(value: Any) -> Any:
    """The whole tensor, gathered (all processes must ask); anything but a DTensor as it is."""
    return value.full_tensor() if is_sharded(value) else value


def placed(value: Tensor, param: Tensor) -> Tensor:
    """A whole tensor of state as it is kept for a parameter: this process's part, in own memory.

    Plain for plain parameters and for single numbers, which every process keeps.
    """
    if not is_sharded(param):
        return whole(value)
    if value.ndim == 0 or is_sharded(value):
        return value
    from torch.distributed.tensor import DTensor, Replicate, Shard

    mesh = param.device_mesh  # type: ignore[attr-defined]
    spread = [p if isinstance(p, Replicate) else Shard(0) for p in param.placements]  # type: ignore[attr-defined]
    part = _cut(value, mesh, spread).clone()
    return DTensor.from_local(part, mesh, spread, shape=value.shape, stride=value.stride())


def _cut(value: Tensor, mesh: Any, placements: Sequence[Any]) -> Tensor:
    """This process's part of a whole tensor that all processes have."""
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(value, mesh, placements, src_data_rank=None).to_local()


# ---- reductions ----------------------------------------------------------------------------------


def norm(value: Tensor) -> Tensor:
    """2-norm of a tensor, of all its rows where the running update sees a block of them."""
    if _block_group is None:
        return value.norm()
    square = value.norm().square()
    distributed.all_reduce(square, group=_block_group)
    return square.sqrt()


def square_of(grad: Tensor) -> Tensor:
    """Squared 2-norm of a gradient over all processes that hold a part of it."""
    precise = torch.float64 if grad.dtype is torch.float64 else torch.float32
    partial = is_sharded(grad) and any(p.is_partial() for p in grad.placements)  # type: ignore[attr-defined]
    square = torch.linalg.vector_norm((whole if partial else local)(grad), dtype=precise).square()
    if is_sharded(grad) and not partial:
        for group in _groups(grad, sharded=True):
            distributed.all_reduce(square, group=group)
    return square


def everywhere(flags: Tensor, params: Sequence[Tensor]) -> Tensor:
    """Flags that hold on all processes, where any of the parameters lies on several."""
    sharded = next((param for param in params if is_sharded(param)), None)
    if sharded is None:
        return flags
    agreed = flags.to(torch.int32)
    for group in _groups(sharded, sharded=False):
        distributed.all_reduce(agreed, op=distributed.ReduceOp.MIN, group=group)
    return agreed.bool()


def _groups(value: Any, *, sharded: bool) -> list[Any]:
    """Process groups of a DTensor's mesh, or of those axes along which it is divided."""
    return [
        value.device_mesh.get_group(axis)
        for axis, placement in enumerate(value.placements)
        if not (sharded and placement.is_replicate())
    ]


# ---- the two ways --------------------------------------------------------------------------------


@contextmanager
def part(
    optimizer: Any, param: Tensor, grad: Any, state: dict[str, Any], group: dict[str, Any]
) -> Iterator[Part]:
    """What one update of a parameter works on; writes the results back where they are kept."""
    if not is_sharded(param):
        yield Part(param, grad, state, group)
        return
    global _block_group
    rows = _by_rows(optimizer, param, grad, state, group)
    if rows is None:
        view = {key: whole(value) for key, value in state.items()}
        seen = Part(whole(param), whole(grad), view, group)
    else:
        view = _rows_of_state(optimizer, param, state, group)
        seen = Part(local(param), local(grad), view, rows)
        _block_group = _groups(param, sharded=True)[0]
    try:
        with optimizer.named(seen.param, optimizer.name_of(param)):
            yield seen
    finally:
        _block_group = None
    _put_back(param, seen.param)
    for key in [key for key in state if key not in view]:
        del state[key]
    for key, value in view.items():
        if is_sharded(state.get(key)):
            _put_back(state[key], value)
        else:
            state[key] = value


def _by_rows(
    optimizer: Any, param: Any, grad: Any, state: dict[str, Any], group: dict[str, Any]
) -> dict[str, Any] | None:
    """The group under which a block of rows can be updated alone; None where it cannot.

    Blocks of 8-bit state, and the noise of stochastic rounding, do not end with a row.
    """
    from torch.distributed.tensor import Shard

    divided = [placement for placement in param.placements if not placement.is_replicate()]
    noise = group.get("rounding") == "stochastic"
    if noise or group.get("storage") == "8bit" or [type(p) for p in divided] != [Shard]:
        return None
    if divided[0].dim != 0 or (grad is not None and grad.placements != param.placements):
        return None
    return optimizer.row_block(param, state, group) if optimizer.treats(param, group) else group


def _rows_of_state(
    optimizer: Any, param: Tensor, state: dict[str, Any], group: dict[str, Any]
) -> dict[str, Any]:
    """Moments that have the parameter's rows: the local ones; what has none (bases): whole."""
    declared = optimizer.declared(param, group)
    rows = {
        key
        for key, buffer in declared.items()
        if buffer.kind != "projection" and buffer.shape[:1] == param.shape[:1]
    }
    return {key: local(value) if key in rows else whole(value) for key, value in state.items()}


def _put_back(kept: Any, value: Tensor) -> None:
    """Writes a part, or this process's part of a whole, where it is kept."""
    mine = kept.to_local()
    if value.shape != mine.shape:
        value = _cut(value, kept.device_mesh, kept.placements)
    if value.data_ptr() != mine.data_ptr():
        mine.copy_(value)
