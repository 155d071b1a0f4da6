"""The non-finite policy: what happens to NaN and infinite gradients."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from memopt.errors import NonFiniteGradientError
from memopt.states import sharding

Work = list[tuple[Tensor, dict[str, Any]]]


def check(optimizer: Any, work: Work) -> bool:
    """Applies the policy of their groups to the gradients of ``(param, group)`` pairs.

    Returns:
        False where the update must be skipped, which is then counted.

    Raises:
        NonFiniteGradientError: under ``nonfinite="raise"``, with the first parameter's name.
    """
    bad = _first_bad(work)
    if bad is None:
        return True
    param, group = bad
    if group["nonfinite"] == "raise":
        raise NonFiniteGradientError(
            f"the gradient of {optimizer.name_of(param)!r} is not finite; no weight was changed. "
            "Lower the learning rate, clip gradients, or pass nonfinite='skip'."
        )
    for each in optimizer.param_groups:
        each["skipped_steps"] += 1
    return False


def _first_bad(work: Work) -> tuple[Tensor, dict[str, Any]] | None:
    """The first pair with a gradient that is not finite, on whichever process it is."""
    watched = [
        (param, group)
        for param, group in work
        if group["nonfinite"] != "ignore" and not param.grad.is_sparse  # type: ignore[union-attr]
    ]
    if not watched:
        return None
    params = [param for param, _ in watched]
    grads: list[Tensor] = [sharding.local(param.grad) for param in params]
    norms = torch._foreach_norm(grads)
    finite = torch.stack([norm.float().isfinite().to(grads[0].device) for norm in norms])
    finite = sharding.everywhere(finite, params)
    if bool(finite.all()):
        return None
    # a norm may overflow where the gradient does not; it is the cheapest screen all the same
    suspects = torch.nonzero(~finite).flatten().tolist()
    exact = torch.stack([grads[index].isfinite().all().to(finite.device) for index in suspects])
    exact = sharding.everywhere(exact, params)
    bad = [index for index, fine in zip(suspects, exact.tolist(), strict=True) if not fine]
    return watched[bad[0]] if bad else None
