"""Bytes of live tensors: weights, gradients and whatever an optimizer really keeps."""

from __future__ import annotations

from collections import Counter

import torch
from torch import nn

from memopt.accounting.live import fresh_bytes, tensors_in
from memopt.accounting.predict import by_label, dtype_name, label_of
from memopt.accounting.report import GroupBytes, Report
from memopt.optimizers.base import MemoptOptimizer


def measure(model: nn.Module, optimizer: torch.optim.Optimizer) -> Report:
    """Counts the bytes that a model and its optimizer hold now, each storage once.

    Call it after a step and before ``zero_grad()``: state is allocated at the first step, and
    gradients count only while they live (methods that release them in backward show none).
    A view counts with the whole storage that it keeps alive. Works for any
    ``torch.optim.Optimizer``; projections are told apart for memopt's own.

    Args:
        model: the module that is trained.
        optimizer: its optimizer; parameters that it does not hold count as frozen.

    Returns:
        The report, in the categories of `memopt.accounting.predict`.
    """
    seen: set[int] = set()
    group_of = {id(p): group for group in optimizer.param_groups for p in group["params"]}
    rows: list[GroupBytes] = []
    tensors: Counter[str] = Counter()
    for param in model.parameters():
        group = group_of.get(id(param))
        weights = fresh_bytes(param, seen)
        gradients = 0 if param.grad is None else fresh_bytes(param.grad, seen)
        state = optimizer.state.get(param, {})
        kept = {key: sum(fresh_bytes(t, seen) for t in tensors_in(v)) for key, v in state.items()}
        tensors.update({key: nbytes for key, nbytes in kept.items() if nbytes})
        projected: set[str] = set()
        if isinstance(optimizer, MemoptOptimizer) and group is not None:
            declared = optimizer.declared(param, group).items()
            projected = {key for key, buffer in declared if buffer.kind == "projection"}
        label = "frozen" if group is None else label_of(optimizer, param, group)
        projections = sum(kept.get(key, 0) for key in projected)
        states = sum(kept.values()) - projections
        rows.append(GroupBytes(label, 1, param.numel(), weights, gradients, states, projections))
    return Report(
        source="measured",
        model=type(model).__name__,
        method=type(optimizer).__name__,
        dtype=dtype_name(model),
        arguments={},
        gradients=sum(row.gradients for row in rows),
        gradient_rule="those that lived when it was measured",
        groups=by_label(rows, released=False),
        tensors=dict(tensors),
    )
