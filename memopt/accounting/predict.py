"""Bytes by formula: what the optimizers declare to keep, summed over a model's shapes."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from memopt import catalog
from memopt.accounting import shapes
from memopt.accounting.report import GroupBytes, Report
from memopt.errors import unknown
from memopt.optimizers.base import MemoptOptimizer
from memopt.params import param_groups
from memopt.states import nbytes

# precision of weights and gradients -> (dtype of both, dtype the optimizer works on)
DTYPES = {
    "float32": (torch.float32, torch.float32),
    "bfloat16": (torch.bfloat16, torch.bfloat16),
    "mixed": (torch.bfloat16, torch.float32),
}
KEPT = "every gradient is kept until step()"
RELEASED = "one at a time, released in backward: the largest single tensor"
# bytes do not depend on it, but constructors may ask for one
ANY_LR = 1e-3


def predict(
    model: Any, method: str, dtype: str | None = None, *, targets: Any = "auto", **arguments: Any
) -> Report:
    """Predicts the bytes of weights, gradients and optimizer state, without allocating any.

    Args:
        model: what `memopt.accounting.shapes.module_of` takes: a module, a shape's name, a
            configuration or its path.
        method: catalog name of the optimizer.
        dtype: ``"float32"``; ``"bfloat16"`` (weights and gradients in bf16, no copy);
            ``"mixed"`` (the same, plus a float32 master copy on which the optimizer works, counted
            among the states). Default: a module's own dtypes, float32 for a shape.
        targets: which parameters the method treats, as in `memopt.param_groups`.
        **arguments: of the method's constructor; ``storage`` sets the precision of its state.

    Returns:
        The report. Gradients are all of them, or the largest one where the method's timing
        releases them in backward.

    Raises:
        ValueError: unknown shape, method, dtype or argument, with the nearest valid name.
        ConfigError: a configuration that lacks a field.
    """
    if dtype is not None and dtype not in DTYPES:
        raise unknown("dtype", dtype, DTYPES)
    entry = catalog.get(method)
    check_arguments(entry, arguments)
    module = shapes.module_of(model)
    held, worked = DTYPES[dtype] if dtype else (None, None)
    groups = [_stand_ins(group, worked) for group in param_groups(module, targets)]
    optimizer = entry.factory(groups, **({"lr": ANY_LR} | arguments))
    if dtype is None:
        dtype = "/".join(sorted({_name(p.dtype) for p in module.parameters()})) or "float32"
    tensors: dict[str, int] = {}
    counted = tuple(
        _predicted_group(
            optimizer, group, label, held, master=dtype == "mixed", released=entry.releases, into=tensors
        )
        for label, group in labelled(optimizer)
    )
    return Report(
        source="predicted",
        model=str(model) if isinstance(model, (str, shapes.Path)) else type(model).__name__,
        method=entry.name,
        dtype=dtype,
        arguments=dict(arguments),
        gradients=gradients_of(counted, released=entry.releases),
        gradient_rule=RELEASED if entry.releases else KEPT,
        groups=counted,
        tensors=tensors,
    )
