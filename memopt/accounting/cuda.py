"""What CUDA's allocator really hands out in a step, beside what was predicted or traced."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from memopt import catalog
from memopt.accounting.course import default_dtype
from memopt.accounting.loop import RUN_DTYPES, Loss, one_step, output_loss
from memopt.accounting.predict import ANY_LR
from memopt.errors import UnsupportedCombination, unknown
from memopt.params import Targets

DEVICE = "cuda"


def cuda_peak(step: Callable[[], object], device: torch.device | str = DEVICE) -> int:
    """Runs a step on a GPU and returns the most bytes that lived at once.

    ``torch.cuda.max_memory_allocated``: tensors, rounded up to the allocator's blocks; without the
    CUDA context and without fragmentation. To be set beside ``accounting.step(...).peak``. Take
    the second step of a training: the first one makes the state.

    Args:
        step: forward, backward and update, on tensors of the device.
        device: which GPU.

    Raises:
        UnsupportedCombination: there is no GPU.
    """
    require_cuda()
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    step()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device)


def require_cuda() -> None:
    """Raises `UnsupportedCombination` where there is no GPU."""
    if not torch.cuda.is_available():
        raise UnsupportedCombination(
            "there is no CUDA device: use memopt.accounting.step or trace, which need none"
        )


def step_peak(
    build_model: Callable[[], nn.Module],
    build_batch: Callable[[], Any],
    method: str,
    dtype: str = "float32",
    *,
    micro_batches: int = 1,
    targets: Targets = "auto",
    loss: Loss | None = None,
    **arguments: Any,
) -> int:
    """Trains a model for two steps on the GPU; the peak of the second, by `cuda_peak`.

    Args: as `memopt.accounting.trace`; the model is built on the GPU.

    Raises:
        ValueError: unknown method or dtype, with the nearest valid name.
        UnsupportedCombination: there is no GPU, or the step does not fit in its memory.
    """
    if dtype not in RUN_DTYPES:
        raise unknown("dtype", dtype, RUN_DTYPES)
    require_cuda()
    gc.collect()  # what an earlier model has left would count
    given = {"lr": ANY_LR} | catalog.get(method).in_loop(micro_batches) | arguments
    try:
        with torch.device(DEVICE), default_dtype(RUN_DTYPES[dtype]):
            model = build_model()
        model.to(DEVICE)
        optimizer = catalog.create(method, model, targets=targets, **given)
        batches = [tree_map(_on_device, build_batch()) for _ in range(micro_batches)]

        def step() -> None:
            one_step(model, optimizer, batches, loss or output_loss)

        step()
        return cuda_peak(step)
    except torch.OutOfMemoryError:
        raise UnsupportedCombination(
            f"a step of {method} does not fit in the memory of this GPU: take a smaller batch"
        ) from None


def _on_device(value: Any) -> Any:
    return value.to(DEVICE) if isinstance(value, Tensor) else value
