"""Bytes by formula: what the optimizers declare to keep, summed over a model's shapes."""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from memopt import catalog
from memopt.accounting import shapes, transient
from memopt.accounting.course import default_dtype
from memopt.accounting.report import LABELS, GroupBytes, Report
from memopt.errors import unknown
from memopt.optimizers.adamw import AdamW
from memopt.optimizers.base import MemoptOptimizer
from memopt.states import tensors_of

# precision of training -> dtype of weights and gradients, dtype that the optimizer works on
DTYPES = {
    "float32": (torch.float32, torch.float32),
    "bfloat16": (torch.bfloat16, torch.bfloat16),
    "mixed": (torch.bfloat16, torch.float32),
}
KEPT = "all of them, until step()"
RELEASED = "released in backward: the largest single one"
ANY_LR = 1e-3  # bytes do not depend on it, but constructors may ask for one


def predict(
    model: Any,
    method: str,
    dtype: str | None = None,
    *,
    targets: Any = "auto",
    processes: int = 1,
    in_backward: bool = False,
    **arguments: Any,
) -> Report:
    """Predicts the bytes of weights, gradients and optimizer state, without allocating any.

    Args:
        model: a module, a shape's name, a Hugging Face configuration or its path (see
            `memopt.accounting.shapes.module_of`).
        method: catalog name of the optimizer.
        dtype: ``"float32"``; ``"bfloat16"`` (weights and gradients in bf16, no copy); ``"mixed"``
            (the same plus a float32 master copy, on which the optimizer works and which counts as
            state). Default: a module's own dtypes, float32 for a shape.
        targets: which parameters the method treats, as in `memopt.param_groups`.
        processes: for `zero1_adamw`, which divides its state among so many; the report is that of
            the process which keeps the most (weights and gradients are whole on each).
        in_backward: gradients are released by `memopt.update_in_backward` with one micro-batch,
            whatever the method.
        **arguments: of the method's constructor; ``storage`` sets the precision of its state.

    Returns:
        The report. Gradients are all of them, or the largest single one where the method's
        timing releases them in backward (LOMO and AdaLomo with one micro-batch; AdamA always).

    Raises:
        ValueError: unknown shape, method, dtype or argument, with the nearest valid name; a bad
            value of an argument, in the words of the optimizer.
        ConfigError: a configuration that lacks a field.
    """
    if dtype is not None and dtype not in DTYPES:
        raise unknown("dtype", dtype, DTYPES)
    entry = catalog.get(method)
    check_arguments(entry, arguments)
    module = shapes.module_of(model)
    held, worked = DTYPES[dtype] if dtype else (None, None)
    # built for a twin: no hook and no adapter ever touches the caller's model
    given = {"lr": ANY_LR} | arguments
    optimizer, kept_here = _optimizer(entry, _twin(module, worked), targets, given, processes)
    released = in_backward or _releases(entry, arguments)
    rows: list[GroupBytes] = []
    tensors: Counter[str] = Counter()

    def updates() -> Iterator[tuple[str, tuple[int, ...], int]]:
        """Rows are in the order of the optimizer's parameters."""
        if entry.kind == "adapter":
            made = transient.derive_adapter(entry, _twin(module, worked), targets, given)
        else:
            worker = catalog.get("adamw") if entry.kind == "distributed" else entry
            made = transient.derive(worker, optimizer.param_groups, given)
        params = chain.from_iterable(group["params"] for group in optimizer.param_groups)
        sizes = chain.from_iterable(made)
        for row, param, nbytes in zip(rows, params, sizes, strict=True):
            yield row.name, tuple(param.shape), nbytes

    for group in optimizer.param_groups:
        for param in group["params"]:
            stateful = id(param) in kept_here
            row, kept = _of_parameter(optimizer, group, param, held, stateful=stateful)
            rows.append(row)
            tensors.update(kept)
    return Report(
        source="predicted",
        model=str(model) if isinstance(model, (str, Path)) else type(model).__name__,
        method=entry.name,
        dtype=dtype or dtype_name(module),
        arguments=dict(arguments),
        gradients=GroupBytes.total("all", rows, released=released).gradients,
        gradient_rule=RELEASED if released else KEPT,
        groups=by_label(rows, released=released),
        tensors=dict(tensors),
        probe=updates,
    )


def check_arguments(method: catalog.Method, arguments: Mapping[str, Any]) -> None:
    """Raises a ``ValueError`` with the nearest name for an argument the method does not have."""
    known = method.arguments()
    for key in arguments:
        if key not in known:
            raise unknown(f"argument of {method.name}", key, known)


def _releases(entry: catalog.Method, arguments: Mapping[str, Any]) -> bool:
    """Whether gradients go as they come: an update in backward must wait for its micro-batches."""
    if entry.timing == "in backward":
        return arguments.get("micro_batches", 1) == 1
    return entry.timing == "accumulated"


def label_of(optimizer: Optimizer, param: Tensor, group: dict[str, Any]) -> str:
    """The row of `LABELS` to which a parameter belongs."""
    if not param.requires_grad:
        return "frozen"
    if isinstance(optimizer, MemoptOptimizer):
        return "treated" if optimizer.treats(param, group) else "other"
    return "treated" if group.get("treated") else "other"


def by_label(rows: list[GroupBytes], *, released: bool) -> tuple[GroupBytes, ...]:
    """One row for each label that occurs, in the order of `LABELS`."""
    return tuple(
        GroupBytes.total(label, (r for r in rows if r.name == label), released=released)
        for label in LABELS
        if any(row.name == label for row in rows)
    )


def dtype_name(module: nn.Module) -> str:
    """The dtypes of a module's parameters, for example ``float32`` or ``bfloat16+float32``."""
    return "+".join(sorted({str(p.dtype).removeprefix("torch.") for p in module.parameters()}))


def _twin(module: nn.Module, dtype: torch.dtype | None) -> nn.Module:
    """The same model without elements: its parameters and buffers stand on the meta device."""
    memo: dict[int, Any] = {}
    for param in module.parameters():
        empty = torch.empty(param.shape, dtype=dtype or param.dtype, device="meta")
        memo[id(param)] = nn.Parameter(empty, requires_grad=param.requires_grad)
    for buffer in module.buffers():
        memo[id(buffer)] = torch.empty_like(buffer, device="meta")
    return copy.deepcopy(module, memo)


def _of_parameter(
    optimizer: MemoptOptimizer,
    group: dict[str, Any],
    param: Tensor,
    held: torch.dtype | None,
    *,
    stateful: bool,
) -> tuple[GroupBytes, dict[str, int]]:
    """The bytes of one parameter, and those of its state by tensor name."""
    label = label_of(optimizer, param, group)
    weights = param.numel() * (held or param.dtype).itemsize
    if label == "frozen":
        return GroupBytes(label, 1, param.numel(), weights), {}
    kept, projections = _declared(optimizer, group, param) if stateful else ({}, 0)
    if stateful and held not in (None, param.dtype):
        kept["master"] = param.numel() * param.dtype.itemsize
    states = sum(kept.values()) - projections
    return GroupBytes(label, 1, param.numel(), weights, weights, states, projections), kept


def _declared(
    optimizer: MemoptOptimizer, group: dict[str, Any], param: Tensor
) -> tuple[dict[str, int], int]:
    """Bytes of the declared state by tensor name, and those of projections among them."""
    storage = group.get("storage", "float32")
    kept: dict[str, int] = {}
    projections = 0
    for key, buffer in optimizer.declared(param, group).items():
        specs = tensors_of(key, buffer, storage, param.dtype)
        sizes = {name: math.prod(shape) * kind.itemsize for name, (shape, kind) in specs.items()}
        kept |= sizes
        projections += sum(sizes.values()) if buffer.kind == "projection" else 0
    return kept, projections


def _optimizer(
    entry: catalog.Method, twin: nn.Module, targets: Any, arguments: dict[str, Any], processes: int
) -> tuple[MemoptOptimizer, set[int]]:
    """The method's optimizer for a model on the meta device, and whose states a process keeps."""
    if entry.kind == "distributed":  # its own needs a process group; it keeps what AdamW keeps
        worker = AdamW(entry.groups(twin, targets), **arguments)
        shares = entry.load().shares(worker.param_groups, processes)  # type: ignore[attr-defined]
        trained = [[p for p in share if p.requires_grad] for share in shares]
        fullest = max(trained, key=lambda share: sum(p.numel() for p in share))
        return worker, {id(param) for param in fullest}
    if processes != 1:
        raise ValueError(
            f"processes={processes}: {entry.name} keeps the same on every process; only "
            "zero1_adamw divides its state"
        )
    # adapters are added weights: without elements, too, and in the model's own dtype
    with torch.device("meta"), default_dtype(next(twin.parameters()).dtype):
        optimizer = entry.build(twin, targets, arguments)
    assert isinstance(optimizer, MemoptOptimizer)
    return optimizer, {id(p) for group in optimizer.param_groups for p in group["params"]}
