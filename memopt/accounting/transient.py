"""The largest transient of a step: what an update makes for a moment, beside what it keeps.

No formula is written by hand: the optimizer itself updates one parameter of each shape under
PyTorch's FakeTensorMode, where every operation says which tensors it would make and none is
computed, and the bytes that live at once are counted (`memopt.accounting.live`).
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.optim import Optimizer

from memopt.accounting.live import transient_of
from memopt.catalog import Method
from memopt.params import Targets

SOON = 2  # steps between refreshes, so that few steps pass one of each kind and a plain one
STEPS = 5


def derive(
    entry: Method, groups: list[dict[str, Any]], arguments: Mapping[str, Any]
) -> list[list[int]]:
    """The largest transient of each parameter's update, over plain steps and refreshes.

    Args:
        entry: the method.
        groups: its groups, parameters on any device (only their shapes and dtypes are used).
        arguments: of the constructor. Intervals count as short ones: a refresh needs the same
            room whenever it comes.

    Returns:
        Bytes, in the order of the groups and of their parameters; 0 for frozen ones. Kernels as
        on the CPU.
    """
    with FakeTensorMode(allow_non_fake_inputs=True):
        made = [_representatives(group) for group in groups]
        stand_ins = [
            group | _shortened(group) | {"params": list(p.values())}
            for group, p in zip(groups, made, strict=True)
        ]
        optimizer = entry.load()(stand_ins, **_hurried(entry, arguments))
        return _largest(optimizer, groups, made)


def derive_adapter(
    entry: Method, twin: nn.Module, targets: Targets, arguments: Mapping[str, Any]
) -> list[list[int]]:
    """As `derive`, for a method that changes the model: a merge needs room for one weight, too.

    Args:
        entry: the method.
        twin: a model on the meta device; it gets adapters.
        targets: as in `memopt.param_groups`.
        arguments: of the constructor.
    """
    with torch.device("meta"):  # peft makes adapters on the default device before it moves them
        optimizer = entry.build(twin, targets, _hurried(entry, arguments))
    with FakeTensorMode():
        fake = {
            id(p): _fake(_alike(p)) for group in optimizer.param_groups for p in group["params"]
        }
        optimizer = copy.deepcopy(optimizer, fake)
        groups = optimizer.param_groups
        return _largest(optimizer, groups, [{_alike(p): p for p in g["params"]} for g in groups])


def _largest(
    optimizer: Optimizer, groups: list[dict[str, Any]], made: list[dict[tuple[Any, ...], Any]]
) -> list[list[int]]:
    """Steps of one parameter of each kind in turn; the largest transient of each kind."""
    largest = {id(p): 0 for group in made for p in group.values() if p.requires_grad}
    for _ in range(STEPS):
        for param in (p for group in made for p in group.values() if p.requires_grad):
            param.grad = torch.empty_like(param)
            largest[id(param)] = max(largest[id(param)], transient_of(optimizer))
            param.grad = None
    return [
        [largest.get(id(params[_alike(p)]), 0) for p in _tensors_of(group)]
        for group, params in zip(groups, made, strict=True)
    ]


def _alike(param: Tensor) -> tuple[Any, ...]:
    """What decides the bytes of a parameter's update within its group."""
    return tuple(param.shape), param.dtype, param.requires_grad


def _representatives(group: dict[str, Any]) -> dict[tuple[Any, ...], nn.Parameter]:
    """One fake parameter for all that are alike."""
    kinds = {_alike(param) for param in _tensors_of(group)}
    return {kind: _fake(kind) for kind in sorted(kinds, key=str)}


def _fake(kind: tuple[Any, ...]) -> nn.Parameter:
    shape, dtype, requires_grad = kind
    return nn.Parameter(torch.empty(shape, dtype=dtype), requires_grad=requires_grad)


def _tensors_of(group: dict[str, Any]) -> list[Tensor]:
    return [param[1] if isinstance(param, tuple) else param for param in group["params"]]


def _hurried(entry: Method, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments with every interval, given or by default, cut to `SOON`."""
    return {**arguments, **_shortened(entry.arguments() | dict(arguments))}


def _shortened(values: Mapping[str, Any]) -> dict[str, int]:
    """The intervals among the values of a constructor or a group that are longer than `SOON`."""
    intervals = {k: v for k, v in values.items() if k.endswith(("_interval", "_every"))}
    return {k: SOON for k, v in intervals.items() if isinstance(v, int) and v > SOON}
