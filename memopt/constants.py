"""Tables that are made once and kept."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from typing import Any, TypeVar

import torch
from torch.utils._python_dispatch import _disable_current_modes

T = TypeVar("T")


def constant(make: Callable[..., T]) -> Callable[..., T]:
    """``functools.cache`` for functions that make tensors.

    The first call may come under FakeTensorMode or on the meta device (`memopt.accounting` steps
    optimizers on tensors without values); such a tensor must not stay in the cache for the training
    that follows. What the function places nowhere is made on the CPU.
    """

    @wraps(make)
    def real(*args: Any, **kwargs: Any) -> T:
        with _disable_current_modes(), torch.device("cpu"):
            return make(*args, **kwargs)

    return cache(real)
