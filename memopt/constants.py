"""Tables that are made once and kept."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from typing import Any, TypeVar

from torch.utils._python_dispatch import _disable_current_modes

T = TypeVar("T")


def constant(make: Callable[..., T]) -> Callable[..., T]:
    """``functools.cache`` for functions that make tensors.

    The first call may come under FakeTensorMode (`memopt.accounting` steps optimizers on tensors
    without values); a fake tensor must not stay in the cache for the training that follows.
    """

    @wraps(make)
    def real(*args: Any, **kwargs: Any) -> T:
        with _disable_current_modes():
            return make(*args, **kwargs)

    return cache(real)
