"""Whole training steps of a real model and a real optimizer, on tensors that have no memory.

Forward, backward and update run under PyTorch's FakeTensorMode: every operation reports the shapes
that it would make, none is computed. ``torch.distributed._tools.mem_tracker`` (PyTorch's own, not
yet public) adds up the storages that live at once. A 7B model needs neither a GPU nor its memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker, _MemRefType

from memopt import catalog
from memopt.accounting.course import adapted, default_dtype, tracing_errors
from memopt.accounting.cuda import require_cuda, step_peak
from memopt.accounting.live import tensors_in
from memopt.accounting.loop import RUN_DTYPES, Loss, one_step, output_loss
from memopt.accounting.measure import measure
from memopt.accounting.predict import ANY_LR, dtype_name
from memopt.errors import unknown
from memopt.params import Targets

KINDS = ("weights", "gradients", "states", "activations", "temporaries", "other")
# module buffers and the batch are "other"
_KIND_OF: dict[str, str] = {
    _MemRefType.PARAM: "weights",
    _MemRefType.GRAD: "gradients",
    _MemRefType.OPT: "states",
    _MemRefType.ACT: "activations",
    _MemRefType.TEMP: "temporaries",
}
STEPS = 2  # state is allocated in the first; the second is what every later one is like


@dataclass(frozen=True)
class Trace:
    """Bytes that live at once in one whole training step, after the first.

    Attributes:
        model, method, dtype, arguments: what was traced.
        timeline: ``(phase, bytes by kind)`` after every operation that makes a tensor; phases are
            ``"forward"``, ``"backward"`` and ``"step"``, kinds those of `KINDS`. Temporaries are
            what backward and the update make and drop, gradients of activations among them.
        cuda: the peak of the same step on a GPU by its own allocator; None if it was not asked for.
    """

    model: str
    method: str
    dtype: str
    arguments: dict[str, Any]
    timeline: tuple[tuple[str, dict[str, int]], ...]
    cuda: int | None = None

    @property
    def peak(self) -> dict[str, int]:
        """Bytes by kind at the moment when most live at once."""
        return max((kinds for _, kinds in self.timeline), key=lambda kinds: sum(kinds.values()))

    @property
    def total(self) -> int:
        """Bytes at the peak."""
        return sum(self.peak.values())

    def highest(self, kind: str) -> int:
        """The most bytes that one kind takes at any moment, at the peak of all or not."""
        return max(kinds[kind] for _, kinds in self.timeline)

    def thinned(self, points: int = 500) -> list[dict[str, Any]]:
        """The timeline in about so many rows, each the highest moment of its stretch.

        Returns:
            Dictionaries with ``operation`` (its number), ``phase`` and the bytes of each kind.
        """
        width = max(1, -(-len(self.timeline) // points))
        rows = []
        for start in range(0, len(self.timeline), width):
            stretch = range(start, min(start + width, len(self.timeline)))
            top = max(stretch, key=lambda i: sum(self.timeline[i][1].values()))
            phase, kinds = self.timeline[top]
            rows.append({"operation": top, "phase": phase, **kinds})
        return rows

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and strings: the peak, its sum, CUDA's, and the highest of each kind."""
        return {
            "source": "traced",
            "model": self.model,
            "method": self.method,
            "dtype": self.dtype,
            "arguments": self.arguments,
            "peak": self.peak,
            "total": self.total,
            "cuda": self.cuda,
            "highest": {kind: self.highest(kind) for kind in KINDS},
        }


class _Tracker(MemTracker):
    """PyTorch's tracker, that also keeps the course of one step."""

    def __init__(self) -> None:
        super().__init__()
        self.phase = "forward"
        self.samples: list[tuple[str, dict[str, int]]] = []

    def watch(self, model: nn.Module) -> None:
        """Follows weights and gradients; frozen weights too, on which torch would put no hook."""
        frozen = [param for param in model.parameters() if not param.requires_grad]
        for param in frozen:
            param.requires_grad_(True)
        self._track_module_params_and_buffers(model, install_grad_hooks=True)
        for param in frozen:
            param.requires_grad_(False)

    def enter(self, phase: str) -> None:
        """Names the phase of the operations that follow."""
        if phase == "forward":
            self.reset_mod_stats()  # the tracker takes one forward at a time
        self.phase = phase

    def _update_peak_stats(self, peak_state: Any) -> None:
        """Called after each operation; module-wise peaks, which take long, are not kept."""
        now: Counter[str] = Counter()
        for device in self._curr_mem_snap.values():
            for reference, nbytes in device.items():
                if reference != "Total":
                    now[_KIND_OF.get(reference, "other")] += nbytes
        self.samples.append((self.phase, {kind: now[kind] for kind in KINDS}))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Answers questions about values with True: finite gradients, masks without padding."""
        if func is torch.ops.aten._local_scalar_dense.default and args[0].dtype is torch.bool:
            return True
        return super().__torch_dispatch__(func, types, args, kwargs)


def trace(
    build_model: Callable[[], nn.Module],
    build_batch: Callable[[], Any],
    method: str,
    dtype: str = "float32",
    *,
    micro_batches: int = 1,
    targets: Targets = "auto",
    loss: Loss | None = None,
    cuda: bool = False,
    **arguments: Any,
) -> Trace:
    """Follows one training step of the real model with the real optimizer, without memory.

    Args:
        build_model: makes the model; called under fake tensors with ``dtype`` as the default dtype.
            Switch activation checkpointing on in it where wanted.
        build_batch: makes one micro-batch: keyword arguments of the model as a mapping.
        method: catalog name of the optimizer.
        dtype: ``"float32"`` or ``"bfloat16"``, of weights, gradients and activations.
        micro_batches: forward and backward passes in one step.
        targets: which parameters the method treats, as in `memopt.param_groups`.
        loss: from model and batch; default: the model's output, or its ``.loss``.
        cuda: also train two real steps on the GPU, for `Trace.cuda`.
        **arguments: of the method's constructor.

    Returns:
        The second step, kernels as on the CPU (other devices choose other temporaries).

    Raises:
        ValueError: unknown method, dtype or argument, with the nearest valid name.
        UnsupportedCombination: the model or the optimizer decides by the values of tensors; with
            ``cuda``, there is no GPU or the step does not fit in it.
    """
    if cuda:
        require_cuda()
    if dtype not in RUN_DTYPES:
        raise unknown("dtype", dtype, RUN_DTYPES)
    if micro_batches < 1:
        raise ValueError(f"micro_batches must be 1 or more, got {micro_batches}")
    entry = catalog.get(method)
    told = {"micro_batches": micro_batches} if entry.timing == "in backward" else {}
    given = {"lr": ANY_LR} | told | arguments

    def make(model: nn.Module) -> torch.optim.Optimizer:
        return catalog.create(method, model, targets=targets, **given)

    with FakeTensorMode(allow_non_fake_inputs=True), tracing_errors():
        with default_dtype(RUN_DTYPES[dtype]):
            model, adapter = (
                adapted(build_model, make) if entry.kind == "adapter" else (build_model(), None)
            )
        tracker = _Tracker()
        tracker.watch(model)  # before the optimizer's own hooks, which may release the gradient
        optimizer = adapter or make(model)
        batches = [build_batch() for _ in range(micro_batches)]
        tracker.track_external(*tensors_in(batches))
        with tracker:
            for _ in range(STEPS):
                tracker.samples.clear()
                one_step(model, optimizer, batches, loss or output_loss, tracker.enter)
    measured = None
    if cuda:
        work: dict[str, Any] = {"micro_batches": micro_batches, "targets": targets, "loss": loss}
        measured = step_peak(build_model, build_batch, method, dtype, **work, **arguments)
    return Trace(
        model=type(model).__name__,
        method=entry.name,
        dtype=dtype_name(model),
        arguments=told | arguments,
        timeline=_separated(tracker.samples, optimizer, model),
        cuda=measured,
    )


def _separated(
    samples: list[tuple[str, dict[str, int]]], optimizer: torch.optim.Optimizer, model: nn.Module
) -> tuple[tuple[str, dict[str, int]], ...]:
    """Samples with the temporaries of ``step()``, which the tracker counts as state, set apart."""
    report = measure(model, optimizer)
    kept = report.states + report.projections

    def split(kinds: dict[str, int]) -> dict[str, int]:
        passing = kinds["states"] - kept
        return kinds | {"states": kept, "temporaries": kinds["temporaries"] + passing}

    return tuple((phase, split(kinds)) for phase, kinds in samples)
