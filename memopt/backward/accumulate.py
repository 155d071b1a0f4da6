"""AdamA's timing: each micro-gradient enters the optimizer state at once and is freed."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from memopt.backward.handle import Handle
from memopt.errors import UnsupportedCombination
from memopt.rules import adam
from memopt.states import sharding


class AccumulateInBackward(Handle):
    """Folds micro-gradients into the state; ``step()`` updates the weights.

    `last_grad_norm` is the root of the sum of squared micro-gradient norms: the gradient of the
    whole mini-batch never exists. With one micro-batch it is the gradient norm.

    Args:
        optimizer: one with ``accumulate`` and ``finish`` (see `MemoptOptimizer`).
        micro_batches: backward passes per mini-batch, where known: more of them are then an error.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, micro_batches: int | None) -> None:
        for group in optimizer.param_groups:  # a reason outlasts the timing that is there already
            _refuse(optimizer, group)
        super().__init__(optimizer, micro_batches)

    def attach(self) -> None:
        """Hooks new parameters, after a look at what their groups ask for."""
        for group in self.optimizer.param_groups:
            _refuse(self.optimizer, group)
        super().attach()

    def _gradient(self, param: Tensor) -> None:
        if self.micro_batches is not None and self.fired[param] > self.micro_batches:
            raise self._repeated(param, self.fired[param], f"micro_batches={self.micro_batches}")
        self._take(param)

    def _take(self, param: Tensor) -> None:
        if self._exchanged(param) and self._usable(param):
            assert param.grad is not None
            self.fold(param, param.grad)
        param.grad = None

    def fold(self, param: Tensor, grad: Tensor) -> None:
        """Adds one micro-gradient to the state of a parameter."""
        optimizer, group = self.optimizer, self.group_of(param)
        state = optimizer.state_of(param, group)
        first = param not in self.open
        if first:
            self.open.add(param)
            state["step"] += 1
            if self.exchange is not None:
                self.exchange.opened(self, param)
        treated = optimizer.treats(param, group)
        with sharding.part(optimizer, param, grad, state, group) as part:
            grad = optimizer.prepared(part.grad, part.param, part.group)
            if treated:
                with optimizer.decompositions(part.param):
                    optimizer.accumulate(grad, part.state, part.group, part.param, first=first)
            else:
                adam.fold(grad, part.state, part.group["betas"], first=first)

    def _close(self) -> None:
        for param in self.params():
            if param.grad is not None:
                if param in self.fired:
                    raise self._written(param)
                self._take(param)  # set by hand
        if self.exchange is not None:
            self.exchange.closing(self)
        for param in self.params():
            if param in self.open:
                self._move(param, self.group_of(param))
        if self.exchange is not None:
            self.exchange.closed(self)
        self._reset()

    def _move(self, param: Tensor, group: dict[str, Any]) -> None:
        """Updates one weight from its state."""
        optimizer, treated = self.optimizer, self.optimizer.treats(param, group)
        with sharding.part(optimizer, param, None, optimizer.state[param], group) as part:
            if treated:
                update = optimizer.finish(part.state, part.group, part.param)
            else:
                answer = adam.settled(None, part.state, part.group)
                update = answer.value.mul_(answer.step_size)
            optimizer.apply(part.param, update, part.state, part.group)

    def _consumed(self) -> bool:
        return bool(self.open)

    def _reset(self) -> None:
        super()._reset()
        self.open: set[Tensor] = set()


def _refuse(optimizer: torch.optim.Optimizer, group: dict[str, Any]) -> None:
    name = type(optimizer).__name__
    reason = getattr(optimizer, "no_accumulation", lambda _: "it is not an optimizer of memopt")
    if reason(group):
        raise UnsupportedCombination(
            f"{name} cannot accumulate in backward: {reason(group)}. Use memopt.AdamA, or "
            "memopt.update_in_backward."
        )
    if group.get("storage", "float32") != "float32":
        raise UnsupportedCombination(
            f"{name} with storage={group['storage']!r} cannot accumulate in backward: each "
            "micro-gradient adds about a thousandth to the second moment, which rounds away. "
            "Use storage='float32'."
        )


def accumulate_in_backward(
    optimizer: torch.optim.Optimizer, micro_batches: int | None = None
) -> AccumulateInBackward:
    """Gives an optimizer AdamA's timing: the state takes each micro-gradient inside backward.

    The loop stays ``(loss / n).backward()`` per micro-batch, then ``step()`` and ``zero_grad()``.

    Args:
        optimizer: ``memopt.AdamW``; ``memopt.SGD`` with momentum; ``memopt.GaLore`` or
            ``memopt.COAP``, which project each micro-gradient and free it; or ``memopt.GWT`` with
            rule adam, whose details need the summed gradient: it holds that, and saves nothing;
            or ``memopt.Flora`` with an ``accumulation_rank``. ``memopt.AdamA`` has this timing
            from the start.
        micro_batches: backward passes per mini-batch, where known; see `AccumulateInBackward`.

    Returns:
        The handle; ``remove()`` restores the ordinary optimizer.

    Raises:
        UnsupportedCombination: the rule needs whole gradients, or the storage loses the addends.
    """
    return AccumulateInBackward(optimizer, micro_batches)
