"""Bytes of live tensors: weights, gradients and whatever an optimizer really keeps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from memopt.accounting.live import fresh_bytes, tensors_in
from memopt.accounting.predict import by_label, dtype_name, label_of
from memopt.accounting.report import GroupBytes, Report
from memopt.optimizers.base import MemoptOptimizer


def measure(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    masters: Mapping[Tensor, Tensor] | None = None,
) -> Report:
    """Counts the bytes that a model and its optimizer hold now, each storage once.

    Call it after a step and before ``zero_grad()``: state is allocated at the first step, and
    gradients count only while they live (methods that release them in backward show none).
    A view counts with the whole storage that it keeps alive. Works for any
    ``torch.optim.Optimizer``; projections are told apart for memopt's own.

    Args:
        model: the module that is trained.
        optimizer: its optimizer; parameters that it does not hold count as frozen.
        masters: in mixed precision, the copy of each parameter that the optimizer works on; such
            copies count as states, their gradients as gradients.

    Returns:
        The report, in the categories of `memopt.accounting.predict`.
    """
    seen: set[int] = set()
    group_of = {id(p): group for group in optimizer.param_groups for p in group["params"]}
    rows: list[GroupBytes] = []
    tensors: Counter[str] = Counter()
    for param in model.parameters():
        worked = (masters or {}).get(param, param)
        group = group_of.get(id(worked))
        weights = fresh_bytes(param, seen)
        grads = [t.grad for t in (param, worked) if t.grad is not None]
        gradients = sum(fresh_bytes(grad, seen) for grad in grads)
        state = dict(optimizer.state.get(worked, {}))
        if worked is not param:
            state["master"] = worked
        kept = {key: sum(fresh_bytes(t, seen) for t in tensors_in(v)) for key, v in state.items()}
        tensors.update({key: nbytes for key, nbytes in kept.items() if nbytes})
        projected: set[str] = set()
        if isinstance(optimizer, MemoptOptimizer) and group is not None:
            declared = optimizer.declared(worked, group).items()
            projected = {key for key, buffer in declared if buffer.kind == "projection"}
        label = "frozen" if group is None else label_of(optimizer, worked, group)
        projections = sum(kept.get(key, 0) for key in projected)
        states = sum(kept.values()) - projections
        rows.append(GroupBytes(label, 1, param.numel(), weights, gradients, states, projections))
    return Report(
        source="measured",
        model=type(model).__name__,
        method=type(optimizer).__name__,
        dtype="mixed" if masters else dtype_name(model),
        arguments={},
        gradients=sum(row.gradients for row in rows),
        gradient_rule="those that lived when it was measured",
        groups=by_label(rows, released=False),
        tensors=dict(tensors),
    )
