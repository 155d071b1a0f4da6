"""Three ways to combine gradients or states of M processes (for AdamA, see docs/backward.md).

All three start from the weights of the first process, keep weights equal on every process, and
hold no gradient buckets. Each process runs N backward passes a mini-batch on its own data, of the
loss divided by N.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, distributed

from memopt.backward.accumulate import AccumulateInBackward
from memopt.backward.handle import Handle
from memopt.errors import MiniBatchError, UnsupportedCombination
from memopt.optimizers.adama import AdamA
from memopt.states import sharding

Group = distributed.ProcessGroup | None


class ReduceGradients:
    """Averages each gradient over processes before it is used."""

    def __init__(self, handle: Handle, group: Group) -> None:
        self.group = group
        self.size = distributed.get_world_size(group)
        self.rank = distributed.get_rank(group)
        self._order = 0
        self._numbers: dict[Tensor, int] = {}
        for param in handle.params():
            self._broadcast(param, source=0)

    def gradient(self, handle: Handle, param: Tensor, grad: Tensor) -> bool:
        """Averages in place; every process goes on with the result."""
        self._note(handle, param)
        self._sum(grad)
        grad.div_(self.size)
        return True

    def opened(self, handle: Handle, param: Tensor) -> None:
        """Nothing: states are equal everywhere."""

    def closing(self, handle: Handle) -> None:
        """Checks that all processes exchanged the same parameters in the same order."""
        device = next(handle.params()).device
        order = torch.tensor([self._order, -self._order], device=device)
        self._order = 0
        distributed.all_reduce(order, op=distributed.ReduceOp.MAX, group=self.group)
        if order[0] != -order[1]:
            raise MiniBatchError(
                "processes used different parameters, or in another order, in this mini-batch, so "
                "gradients were mixed up. Every process must run the same layers in each backward "
                "pass; where they cannot, use memopt.distributed.reduce_states (AdamA)."
            )

    def closed(self, handle: Handle) -> None:
        """Nothing: weights are equal everywhere."""

    def _note(self, handle: Handle, param: Tensor) -> None:
        """Folds a parameter into the fingerprint of this mini-batch's order of exchanges."""
        if param not in self._numbers:
            self._numbers = {each: number for number, each in enumerate(handle.params(), 1)}
        self._order = (self._order * 1_000_003 + self._numbers[param]) % (2**61 - 1)

    def _sum(self, tensor: Tensor) -> None:
        dense = tensor.contiguous()  # collectives take nothing else
        distributed.all_reduce(dense, group=self.group)
        if dense is not tensor:
            tensor.copy_(dense)

    def _broadcast(self, param: Tensor, source: int) -> None:
        dense = param.detach().contiguous()
        distributed.broadcast(dense, group=self.group, group_src=source)
        if dense.data_ptr() != param.data_ptr():
            param.detach().copy_(dense)

    def _sum_squares(self, handle: Handle, divisor: int) -> None:
        """Completes the squared gradient norm, of which each process has a part."""
        device = next(handle.params()).device
        parts = [square.to(device, torch.float64) for square in handle.squares.values()]
        total = torch.stack([torch.zeros((), device=device, dtype=torch.float64), *parts]).sum()
        self._sum(total)
        handle.squares = {device: total / divisor}


class ReduceStates(ReduceGradients):
    """Sums the accumulated states once per mini-batch.

    ``v <- M b2 v`` at the start, then after the N local micro-batches ``m = sum_k m_k / M`` and
    ``v = sum_k v_k / M^2``: AdamA with N M micro-batches of gradients divided by N M.
    """

    def gradient(self, handle: Handle, param: Tensor, grad: Tensor) -> bool:
        """Stays local."""
        return True

    def opened(self, handle: Handle, param: Tensor) -> None:
        """Scales second moments by M, before their decay."""
        for value, signed in _moments(handle, param):
            if not signed:
                value.mul_(self.size)

    def closing(self, handle: Any) -> None:
        """Combines the states of every parameter that any process used."""
        params = list(handle.params())
        used = torch.tensor([param in handle.open for param in params], dtype=torch.uint8)
        used = used.to(params[0].device)
        distributed.all_reduce(used, op=distributed.ReduceOp.MAX, group=self.group)
        for param in (each for each, flag in zip(params, used.tolist(), strict=True) if flag):
            if param not in handle.open:  # not used here: decays, and adds nothing
                handle.fold(param, torch.zeros_like(param))
            for value, signed in _moments(handle, param):
                self._sum(value)
                value.div_(self.size if signed else self.size**2)
        self._sum_squares(handle, self.size**2)


class ShardStates(ReduceGradients):
    """Keeps the state of each parameter on one process only (ZeRO stage 1).

    Each gradient is reduced to its owner, which accumulates and updates; the weight is broadcast
    after the update. Equal to `ReduceGradients` in numbers.
    """

    def __init__(self, handle: Handle, group: Group) -> None:
        super().__init__(handle, group)
        self._owners: dict[Tensor, int] = {}
        self._load = [0] * self.size

    def owner(self, handle: Handle, param: Tensor) -> int:
        """The process with the least to keep when the parameter's turn came, in group order."""
        for each in handle.params():
            if each not in self._owners:
                self._owners[each] = self._load.index(min(self._load))
                self._load[self._owners[each]] += each.numel()
        return self._owners[param]

    def gradient(self, handle: Handle, param: Tensor, grad: Tensor) -> bool:
        """Averages at the owner; the others are done with this gradient."""
        self._note(handle, param)
        owner = self.owner(handle, param)
        dense = grad.contiguous()
        distributed.reduce(dense, group=self.group, group_dst=owner)
        if owner == self.rank:
            torch.div(dense, self.size, out=grad)
        return owner == self.rank

    def closing(self, handle: Handle) -> None:
        """As for gradients; then completes the norm."""
        super().closing(handle)
        self._sum_squares(handle, 1)

    def closed(self, handle: Handle) -> None:
        """Every owner hands out its updated weights."""
        for param in handle.params():
            if param in handle.fired:
                self._broadcast(param, self.owner(handle, param))


def _moments(handle: Handle, param: Tensor) -> Iterator[tuple[Tensor, bool]]:
    """State tensors of a parameter, and whether each is linear in the gradient (else squared)."""
    optimizer = handle.optimizer
    for key, buffer in optimizer.declared(param, handle.group_of(param)).items():
        yield optimizer.state[param][key], buffer.signed


def _install(optimizer: torch.optim.Optimizer, kind: type[ReduceGradients], group: Group) -> None:
    handle = getattr(optimizer, "timing", None)
    name = type(optimizer).__name__
    if handle is None:
        raise UnsupportedCombination(
            f"{name} updates in step(): wrap the model in DistributedDataParallel or FSDP instead, "
            "or call memopt.update_in_backward(optimizer) first."
        )
    if any(sharding.is_sharded(param) for param in handle.params()):
        raise UnsupportedCombination(f"{name}: FSDP2 averages gradients already; leave this out.")
    if kind is not ReduceGradients and not isinstance(handle, AccumulateInBackward):
        raise UnsupportedCombination(
            f"{name} does not keep all of a mini-batch in its state (AdamA does); "
            "use reduce_gradients."
        )
    if kind is ReduceStates and not isinstance(optimizer, AdamA):
        raise UnsupportedCombination(
            f"the states of {name} on several processes cannot be added up (AdamA's can): GaLore's "
            "and COAP's lie in each process's own basis, and GWT also holds a sum of gradients. "
            "Use reduce_gradients or shard_states."
        )
    if handle.exchange is not None:
        raise UnsupportedCombination(f"this {name} already exchanges with other processes.")
    handle.exchange = kind(handle, group)


def reduce_gradients(optimizer: torch.optim.Optimizer, group: Group = None) -> None:
    """Data parallelism for any in-backward optimizer: averages each gradient in its hook.

    Reduce, then square: AdamA on M processes with N micro-batches each equals one process with N
    micro-batches M times as large. Costs N all-reduces of the model's size a mini-batch.

    Args:
        optimizer: one with a timing in backward; the model stays unwrapped.
        group: process group, default all processes.

    Raises:
        UnsupportedCombination: the optimizer updates in ``step()``, or exchanges already.
    """
    _install(optimizer, ReduceGradients, group)


def reduce_states(optimizer: torch.optim.Optimizer, group: Group = None) -> None:
    """AdamA's data parallelism: one all-reduce of the states a mini-batch, none of gradients.

    Square, then reduce: M processes with N micro-batches equal one with N M. Costs one all-reduce
    of twice the model's size. Arguments and errors as for `reduce_gradients`.
    """
    _install(optimizer, ReduceStates, group)


def shard_states(optimizer: torch.optim.Optimizer, group: Group = None) -> None:
    """ZeRO stage 1 for AdamA: each state on one process; equals `reduce_gradients` in numbers.

    Costs N reduces and one broadcast of the model's size a mini-batch; state memory falls to about
    1/M (whole parameters are dealt out, each to the process with the least). Each process saves
    its own ``state_dict``, to be loaded with the same M. Arguments, errors: see `reduce_gradients`.
    """
    _install(optimizer, ShardStates, group)
