"""What CUDA's allocator really handed out in a step, beside what was predicted or traced."""

from __future__ import annotations

from collections.abc import Callable

import torch

from memopt.errors import UnsupportedCombination


def cuda_peak(step: Callable[[], object], device: torch.device | str = "cuda") -> int:
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
    if not torch.cuda.is_available():
        raise UnsupportedCombination(
            "there is no CUDA device: use memopt.accounting.step or trace, which need none"
        )
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    step()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device)
