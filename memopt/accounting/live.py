"""Live storages: which tensors a value holds, and how many bytes an optimizer makes in a step."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from memopt.states import sharding


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Tensors in a value: itself, in containers, or in the fields of an object of state."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors_in(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item)
    elif hasattr(value, "__dict__"):
        yield from tensors_in(vars(value))


def fresh_bytes(tensor: Tensor, seen: set[int]) -> int:
    """Bytes of the tensor's storage on this process, 0 if it was counted before."""
    storage = sharding.local(tensor).untyped_storage()
    if storage._cdata in seen:
        return 0
    seen.add(storage._cdata)
    return storage.nbytes()


class Alive(TorchDispatchMode):
    """Counts the bytes that live at once in the storages made while it is on, on any device.

    Results of operations count, with a view all of what it looks into; workspace inside one
    operation (LAPACK's, a kernel's) does not, nor what the allocator adds. Also under
    FakeTensorMode: there the one question about values in a step, whether every gradient is
    finite, is answered with yes.

    Attributes:
        now: bytes alive.
        peak: most bytes alive at once.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._seen: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs the operation and counts the storages that it made."""
        if func is torch.ops.aten._local_scalar_dense.default and isinstance(args[0], FakeTensor):
            return True
        given = {storage._cdata for storage in _storages((args, kwargs or {}))}
        result = func(*args, **(kwargs or {}))
        for storage in _storages(result):
            if storage._cdata not in given and storage._cdata not in self._seen:
                self._seen.add(storage._cdata)
                self.now += storage.nbytes()
                weakref.finalize(storage, self._gone, storage._cdata, storage.nbytes())
        self.peak = max(self.peak, self.now)
        return result

    def _gone(self, key: int, size: int) -> None:
        self._seen.discard(key)
        self.now -= size


def _storages(value: Any) -> list[Any]:
    return [leaf.untyped_storage() for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]


def transient_of(optimizer: torch.optim.Optimizer) -> int:
    """Takes one step of an optimizer, and counts what the step makes beside what it keeps.

    Args:
        optimizer: any; gradients must be in place. Its weights and state change.

    Returns:
        Bytes at the highest moment of ``step()``, without those by which its state has grown.
    """
    before = _kept(optimizer)
    with Alive() as alive:
        optimizer.step()
    return max(alive.peak - (_kept(optimizer) - before), 0)


def _kept(optimizer: torch.optim.Optimizer) -> int:
    seen: set[int] = set()
    states = optimizer.state.values()
    return sum(fresh_bytes(tensor, seen) for state in states for tensor in tensors_in(state))
