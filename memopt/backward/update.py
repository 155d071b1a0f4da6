"""LOMO's timing: each parameter is updated as soon as its gradient is complete."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from memopt.backward.handle import Handle
from memopt.errors import UnsupportedCombination
from memopt.states import sharding

NORM_EPS = 1e-6  # as in torch.nn.utils.clip_grad_norm_


class UpdateInBackward(Handle):
    """One update per parameter and mini-batch, inside the backward that completes its gradient.

    Args:
        optimizer: any with ``step_parameter(param, grad, group)``.
        micro_batches: backward passes per mini-batch. The first ones add up in ``.grad``, as
            everywhere, so only 1 keeps gradient memory at the largest parameter's.
        max_norm: clip to this global norm, exactly; then gradients come from `backward`.
    """

    micro_batches: int

    def __init__(
        self, optimizer: torch.optim.Optimizer, micro_batches: int, max_norm: float | None
    ) -> None:
        if not hasattr(optimizer, "step_parameter"):
            raise UnsupportedCombination(
                f"{type(optimizer).__name__} cannot update one parameter alone "
                "(it has no step_parameter); use an optimizer of memopt."
            )
        if max_norm is not None and not max_norm > 0:
            raise ValueError(f"max_norm must be above zero, or None for no clipping: {max_norm!r}")
        self.max_norm = max_norm
        self._arrive: Callable[[Tensor], None] = self._refuse if max_norm else self._count
        super().__init__(optimizer, micro_batches)

    def backward(self, loss_closure: Callable[[], Tensor]) -> Tensor:
        """Forward and backward of one micro-batch; with ``max_norm`` the only way to backward.

        One micro-batch: the graph is run backward twice, first to measure the norm (each gradient
        is dropped at once), then to update. It costs one more backward, and activations stay until
        the second; gradient memory stays at the largest parameter's. Several micro-batches: the
        gradients add up, which holds them all anyway, and ``step()`` clips and updates.

        Args:
            loss_closure: returns the loss, already divided by the number of micro-batches.

        Returns:
            The loss, detached.
        """
        self.attach()
        with torch.enable_grad():
            loss = loss_closure()
        if self.max_norm is None:
            loss.backward()
        elif self.micro_batches > 1:
            self._run(self._hold, loss)
        else:
            self._refuse_open("a second backward")
            self._run(self._drop, loss, retain_graph=True)
            factor = self._clip_factor()
            self.fired.clear()
            if not self._skip:
                self._run(lambda param: self._clip_and_update(param, factor), loss)
        return loss.detach()

    # ---- what happens to a gradient --------------------------------------------------------

    def _run(self, arrive: Callable[[Tensor], None], loss: Tensor, **keywords: Any) -> None:
        before, self._arrive = self._arrive, arrive
        try:
            loss.backward(**keywords)
        finally:
            self._arrive = before

    def _gradient(self, param: Tensor) -> None:
        if self.fired[param] > self.micro_batches:
            raise self._repeated(param, self.fired[param], f"micro_batches={self.micro_batches}")
        self._arrive(param)

    def _count(self, param: Tensor) -> None:
        if self.fired[param] == self.micro_batches:
            self._exchanged(param)
            if self._usable(param):
                self._update(param)
            else:
                param.grad = None

    def _hold(self, param: Tensor) -> None:
        """Leaves the gradient where it is."""

    def _drop(self, param: Tensor) -> None:
        self._exchanged(param)
        self._skip |= not self._usable(param)
        param.grad = None

    def _clip_and_update(self, param: Tensor, factor: Tensor) -> None:
        self._exchanged(param)
        _scale(param, factor)
        self._update(param)

    def _refuse(self, param: Tensor) -> None:
        raise UnsupportedCombination(
            f"max_norm={self.max_norm} with a plain backward(): the global norm is known only "
            "after the last gradient, when the first weights have already changed. Use "
            "handle.backward(lambda: loss), which runs backward twice; or max_norm=None with "
            "clipping by value (clip_value)."
        )

    def _update(self, param: Tensor) -> None:
        self.optimizer.step_parameter(param, param.grad, self.group_of(param))
        param.grad = None
        self._updated.add(param)

    # ---- mini-batches ----------------------------------------------------------------------

    def _close(self) -> None:
        """Readies what is left for the optimizer's own loop: unfinished or incomplete gradients."""
        left = [param for param in self.params() if param.grad is not None]
        for param in left:
            if param in self._updated:
                raise self._written(param)
            self._exchanged(param)
            self._measure(param)
        if self.exchange is not None:
            self.exchange.closing(self)
        if self.max_norm is not None and left:
            factor = self._clip_factor()
            for param in left:
                _scale(param, factor)
        self._reset()

    def _clip_factor(self) -> Tensor:
        assert self.max_norm is not None
        return (self.max_norm / (self._norm() + NORM_EPS)).clamp(max=1.0)

    def _consumed(self) -> bool:
        return bool(self._updated)

    def _reset(self) -> None:
        super()._reset()
        self._updated: set[Tensor] = set()
        self._skip = False


def _scale(param: Tensor, factor: Tensor) -> None:
    grad = sharding.local(param.grad)
    grad.mul_(factor.to(grad))


def update_in_backward(
    optimizer: torch.optim.Optimizer, micro_batches: int = 1, max_norm: float | None = None
) -> UpdateInBackward:
    """Lets any optimizer of memopt update each parameter inside backward.

    The loop stays ``(loss / micro_batches).backward()`` per micro-batch, then ``step()`` and
    ``zero_grad()``; ``step()`` closes the mini-batch and updates what backward left.

    Args:
        optimizer: an optimizer of memopt.
        micro_batches: backward passes that make one update.
        max_norm: exact clipping to this global gradient norm; use ``handle.backward`` then.

    Returns:
        The handle; ``remove()`` restores the ordinary optimizer.

    Raises:
        UnsupportedCombination: the optimizer, or its parameters, already have a timing.
        ValueError: ``micro_batches`` or ``max_norm`` out of range.
    """
    return UpdateInBackward(optimizer, micro_batches, max_norm)
